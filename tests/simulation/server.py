"""One of several servers on one database: the engine with everything that `wiring` gives it, over memory adapters."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from noetl.adapters.memory.clock import VirtualIds
from noetl.adapters.memory.ledger import MemoryLedger
from noetl.adapters.memory.serving.processes import MemoryRoster, MemoryRuntimes, MemoryShards, Presence
from noetl.core.errors import LedgerUnavailable
from noetl.engine.control.parts import ControlParts
from noetl.engine.control.states import States
from noetl.engine.control.timers import Timers
from noetl.engine.sharing.ids import OwnIds
from noetl.engine.sharing.neighbours import Neighbours
from noetl.engine.sharing.recorder import Recorder
from noetl.engine.sharing.shards import ShardKeeper, SharingParts
from noetl.ports.serving.roster import SessionRow
from noetl.ports.serving.runtimes import NodeLease, Profile
from tests.simulation.life import PRODUCER, Life
from tests.simulation.side import Surroundings


class ServerLife(Life):
    """`presence` are the tables that say who is there; they outlive every server."""

    is_alone = False

    def __init__(self, presence: Presence, around: Surroundings, **given: Any) -> None:
        super().__init__(around, **given)
        self._tuning = around.tuning
        self._runtimes = MemoryRuntimes(presence, self._faults)
        self._shards = MemoryShards(presence, self._faults)
        self._roster = MemoryRoster(presence, self._faults)
        self._node: NodeLease | None = None
        self.keeper: ShardKeeper | None = None

    async def run(self) -> None:
        profile = Profile(instance=f"server {self.number}", kind="host")
        self._node = node = await self._runtimes.register(profile, lease_seconds=self._tuning.lease_seconds)
        ids = VirtualIds(self._clock, node=node.node_number, last_id=node.last_id)
        count = len(self._database.tables.heads)
        self._wire(
            ids,
            OwnIds(ids, owned=lambda: self.decider.free_shards or self.decider.heads, shard_count=count),
            meet=self._meet,
        )
        self.keeper = self._keeper()
        session_id = ids.next_id()
        await self._vouch(session_id)
        worker = self._worker(session_id)
        assert self.session is not None
        async with asyncio.TaskGroup() as group:
            self.session.echoes = group
            group.create_task(self.decider.run())
            group.create_task(worker.run())
            group.create_task(self._recorder.run())
            group.create_task(self.keeper.run())
            await self.keeper.ready.wait()
            group.create_task(self.dispatcher.run())
            group.create_task(self.dispatcher.look_for_others())
            group.create_task(Timers(decider=self.decider, queue=self.queue).run())
            group.create_task(
                self.side.run(
                    node.runtime_id,
                    ids=ids,
                    states=States(self.ledger, self.side.snapshots),
                    sessions=self.keeper,
                    on_checkpoint=self.decider.catch_up,
                )
            )
            self.is_open.set()

    async def leave(self) -> None:
        """What a server says when it ends as it should."""
        assert self._node is not None
        with contextlib.suppress(LedgerUnavailable):
            if self.side.projector is not None:
                await self.side.projector.leave()
        with contextlib.suppress(LedgerUnavailable):
            await self._runtimes.leave(self._node.runtime_id, last_id=self._ids.last_id)

    def _meet(self, parts: ControlParts) -> Neighbours:
        assert self._node is not None
        self._parts = parts
        ledger = MemoryLedger(self._database, self._faults)
        self._recorder = Recorder(parts, ledger=ledger, queue=self.queue, producer=PRODUCER)
        self._neighbours = Neighbours(
            roster=self._roster, runtime_id=self._node.runtime_id, clock=self._clock, outward=self._recorder
        )
        return self._neighbours

    def _keeper(self) -> ShardKeeper:
        return ShardKeeper(
            SharingParts(
                runtimes=self._runtimes,
                shards=self._shards,
                roster=self._roster,
                ledger=self.ledger,
                decider=self.decider,
                dispatcher=self.dispatcher,
                sessions=self.sessions,
                watchers=self._parts.watchers,
                neighbours=self._neighbours,
                ids=self._ids,
                clock=self._clock,
                lease_seconds=self._tuning.lease_seconds,
                heartbeat_seconds=self._tuning.heartbeat_seconds,
            )
        )

    async def _vouch(self, session_id: int) -> None:
        assert self._node is not None
        row = SessionRow(
            session_id=session_id,
            worker_id=f"worker {self.number}",
            pool="default",
            kinds=None,
            slots=self._slots,
            place=self.place,
        )
        await self._roster.keep(self._node.runtime_id, [row], lease_seconds=self._tuning.lease_seconds)
