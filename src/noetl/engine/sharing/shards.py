"""The shards of a server: which it owns, how it comes to them, and how it lets them go.

Everybody owns his share, so many that all have about the same.  A server beats; one that is silent for longer than its
lease has lost its shards to whoever looks next.  Who has too many lets some go between two commits, without anybody
waiting for a lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from noetl.core.errors import LeaseLost, LedgerUnavailable
from noetl.engine.control.commands import Dispatcher
from noetl.engine.control.decider import Decider
from noetl.engine.control.sessions import Sessions, session_rows
from noetl.engine.control.watch import Watchers
from noetl.engine.sharing.neighbours import Neighbours
from noetl.engine.sharing.waiting import patiently
from noetl.ports.clock import Clock
from noetl.ports.data.counters import Sample
from noetl.ports.ledger import Ledger, ShardHead
from noetl.ports.serving.roster import HeldCommand, Roster
from noetl.ports.serving.runtimes import Runtimes
from noetl.ports.serving.shards import OwnedShard, Shards
from noetl.ports.session import Stop

LOOK_SECONDS = 0.25
"""How often whoever has less than his share looks for a free shard."""
TAIL_SECONDS = 0.025
"""How often an owner looks for what other servers recorded in its shards."""
STOPS_SECONDS = 1.0
BEHIND_LEASE_SECONDS = 0.02
log = logging.getLogger("noetl.shards")


class NumberedIds(Protocol):
    @property
    def last_id(self) -> int:
        """The newest id of this process, kept so that whoever has its node number next does not make it again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingParts:
    """What sharing shards is done with."""

    runtimes: Runtimes
    shards: Shards
    roster: Roster
    ledger: Ledger
    decider: Decider
    dispatcher: Dispatcher
    sessions: Sessions
    watchers: Watchers
    neighbours: Neighbours
    ids: NumberedIds
    clock: Clock
    lease_seconds: float
    heartbeat_seconds: float


class ShardKeeper:
    """`run` belongs to the caller's task group.  `ready` is set when the first share is taken and resumed; `resumed`
    are the executions that were open in it."""

    def __init__(self, parts: SharingParts) -> None:
        self._parts = parts
        self._neighbours = parts.neighbours
        self._decider = parts.decider
        self._claimed: asyncio.Queue[Sequence[ShardHead]] = asyncio.Queue()
        self._told: set[tuple[int, str, int, str]] = set()
        self._orphans: set[tuple[int, int, str, int]] = set()
        self._is_taking = False
        self._is_known = asyncio.Event()
        self._taken = self._lost = self._handed_over = 0
        self.total = 0
        self.resumed: list[int] = []
        self.ready = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beats())
            group.create_task(self._sharing())
            group.create_task(self._takeovers())
            group.create_task(self._tail())
            group.create_task(self._stops())

    # --- the beat --------------------------------------------------------------------------------------------

    async def _beats(self) -> None:
        """Live on.  Beside everything else: the decider waits for a lease that holds, and whoever shares waits for the
        decider."""
        while True:
            try:
                await self.beat()
                pause = self._parts.heartbeat_seconds
            except LedgerUnavailable as error:
                log.warning("no heartbeat", extra={"event": "ledger.unavailable", "reason": str(error)})
                pause = LOOK_SECONDS
            await asyncio.sleep(pause)

    async def beat(self) -> None:
        parts, begun = self._parts, self._parts.clock.monotonic()
        servers = await parts.runtimes.renew(
            self._neighbours.runtime_id, last_id=parts.ids.last_id, lease_seconds=parts.lease_seconds
        )
        if servers is None:
            raise LeaseLost("this process lost its node number")
        self._neighbours.renewed(begun=begun, lease_seconds=parts.lease_seconds, servers=servers)
        self._is_known.set()
        await parts.roster.keep(
            self._neighbours.runtime_id, session_rows(parts.sessions), lease_seconds=parts.lease_seconds
        )
        await self._look_for_near()
        parts.watchers.look_seconds = None if self._neighbours.is_alone else LOOK_SECONDS

    async def _look_for_near(self) -> None:
        """Where the sessions of other servers are; only when something here may have to wait for them."""
        nearness = self._parts.sessions.nearness
        if self._neighbours.is_alone:
            nearness.elsewhere = ()
        elif not nearness.is_asked:
            nearness.elsewhere = None
        else:
            own = self._parts.sessions.connected
            nearness.elsewhere = [row for row in await self._parts.roster.living() if row.session_id not in own]

    async def _sharing(self) -> None:
        await self._is_known.wait()
        while True:
            try:
                pause = await self.share()
            except LedgerUnavailable as error:
                log.warning("shards wait", extra={"event": "ledger.unavailable", "reason": str(error)})
                pause = LOOK_SECONDS
            await asyncio.sleep(pause)

    async def share(self) -> float:
        """Have the right number of shards; returns the seconds until the next look."""
        view = await self._parts.shards.look()
        self.total = len(view)
        await self._give_up(view)
        share = -(-len(view) // self._neighbours.servers)
        await self._hand_over(share)
        if await self._claim(view, share):
            return 0.0
        return self._pause(view, share)

    async def _give_up(self, view: Sequence[OwnedShard]) -> None:
        """What others have taken, and what this process owns without knowing it: the answer to its claim was lost."""
        own = {one.head.shard_id: one.head for one in view if one.owner_runtime_id == self._neighbours.runtime_id}
        heads = self._decider.heads
        lost = [shard for shard, head in heads.items() if shard not in own or own[shard].epoch != head.epoch]
        if lost:
            self._lost += len(lost)
            log.warning("shards lost", extra={"event": "shards.lost", "reason": ", ".join(map(str, sorted(lost)))})
            await self._decider.let_go(lost)
        unknown = [shard for shard in own if shard not in heads and self._claimed.empty() and not self._is_taking]
        if unknown:
            await self._parts.shards.hand_over(self._neighbours.runtime_id, unknown)
        if any(shard in own and own[shard].next_position != head.next_position for shard, head in heads.items()):
            await self._decider.catch_up()

    async def _hand_over(self, share: int) -> None:
        surplus = sorted(self._decider.heads)[share:]
        if surplus:
            await self._decider.let_go(surplus)
            await self._parts.shards.hand_over(self._neighbours.runtime_id, surplus)
            self._handed_over += len(surplus)
            log.info("shards handed over", extra={"event": "shards.handed_over", "reason": f"{len(surplus)}"})

    async def _claim(self, view: Sequence[OwnedShard], share: int) -> bool:
        wanted = share - len(self._decider.heads)
        is_busy = self._is_taking or not self._claimed.empty()
        if wanted <= 0 or is_busy or not any(one.is_free for one in view):
            if not self.ready.is_set() and not is_busy:
                self.ready.set()  # there is nothing for this server yet
            return False
        heads = await self._parts.shards.claim(self._neighbours.runtime_id, count=wanted)
        if heads:
            self._claimed.put_nowait(heads)
        return bool(heads)

    def _pause(self, view: Sequence[OwnedShard], share: int) -> float:
        """Until the next heartbeat; sooner when shards are free or about to be, or when somebody has too many."""
        me, heartbeat = self._neighbours.runtime_id, self._parts.heartbeat_seconds
        others = [one for one in view if one.owner_runtime_id != me]
        owners = Counter(one.owner_runtime_id for one in others if not one.is_free)
        has_less = len(self._decider.heads) < share
        if has_less and (any(one.is_free for one in others) or any(count > share for count in owners.values())):
            return min(LOOK_SECONDS, heartbeat)
        ends = [one.lease_seconds + BEHIND_LEASE_SECONDS for one in others if one.lease_seconds and not one.is_free]
        return min([heartbeat, *ends])

    def samples(self) -> Iterator[Sample]:
        yield "noetl_shards_owned", {}, len(self._decider.heads)
        yield "noetl_shards_taken_total", {}, self._taken
        yield "noetl_shards_lost_total", {}, self._lost
        yield "noetl_shards_handed_over_total", {}, self._handed_over
        yield "noetl_servers_alive", {}, self._neighbours.servers

    async def release_dead(self) -> int:
        """Give back what sessions hold that nobody vouches for any more."""
        count = await self._parts.roster.release_dead()
        if count:
            self._parts.sessions.pools.expect()
        return count

    # --- taking over -----------------------------------------------------------------------------------------

    async def _takeovers(self) -> None:
        """One after the other, beside the heartbeat: what must be resumed may be much."""
        while True:
            heads = await self._claimed.get()
            self._is_taking = True
            try:
                await self._take_over(heads)
            finally:
                self._is_taking = False
            self.ready.set()

    async def _take_over(self, heads: Sequence[ShardHead]) -> None:
        # Whoever owned them may have died with its sessions.
        await patiently(self.release_dead)
        await self._decider.adopt(heads)
        shards = [head.shard_id for head in heads]
        resumed = await self._parts.dispatcher.restore(shards)
        if not self.ready.is_set():
            self.resumed = resumed
        self._taken += len(shards)
        log.info("shards taken over", extra={"event": "shards.taken", "reason": ", ".join(map(str, shards))})

    # --- what others recorded, and what they want stopped ----------------------------------------------------

    async def _tail(self) -> None:
        while True:
            await self._neighbours.company.wait()
            try:
                heads = await self._parts.ledger.heads()
                if self._is_behind(heads):
                    await self._decider.catch_up(heads)
            except LedgerUnavailable:
                await asyncio.sleep(LOOK_SECONDS)
            await asyncio.sleep(TAIL_SECONDS)

    def _is_behind(self, heads: Sequence[ShardHead]) -> bool:
        known = self._decider.heads
        return any(head.shard_id in known and head.next_position > known[head.shard_id].next_position for head in heads)

    async def _stops(self) -> None:
        while True:
            await self._neighbours.company.wait()
            with contextlib.suppress(LedgerUnavailable):  # they are told later
                await self.tell_stops()
            await asyncio.sleep(STOPS_SECONDS)

    async def _give_back(self, rows: Sequence[HeldCommand]) -> None:
        """What our sessions have taken, and know nothing of in two looks: the statement that took it was given up and
        came through all the same."""
        connected = self._parts.sessions.connected
        lost = {
            (row.session_id, row.execution_id, row.command_id, row.attempt)
            for row in rows
            if row.session_id in connected
            # Its end may be told, and on its way to the ledger.
            and row.execution_id not in self._decider.unanswered
            and connected[row.session_id].holds.get((row.execution_id, row.command_id)) != row.attempt
        }
        for session_id, execution_id, command_id, _ in sorted(lost & self._orphans):
            await self._parts.dispatcher.give_back(session_id, [(execution_id, command_id)])
        self._orphans = lost

    async def tell_stops(self) -> None:
        """Tell our sessions what the owners of shards wrote into the rows that they hold.  A row that is gone, or
        somebody else's, says the same: stop."""
        sessions = self._parts.sessions
        held = {
            (session_id, *key): attempt
            for session_id, one in sessions.connected.items()
            for key, attempt in one.holds.items()
        }
        if not sessions.connected:
            return
        rows = await self._parts.roster.held(list(sessions.connected))
        await self._give_back(rows)
        words = {(row.session_id, row.execution_id, row.command_id): row.stop for row in rows}
        told = set()
        for (session_id, execution_id, command_id), attempt in held.items():
            word = words.get((session_id, execution_id, command_id), "cancel")
            if word is None:
                continue
            key = (execution_id, command_id, attempt, word)
            told.add(key)
            if key not in self._told:
                sessions.stop(Stop(execution_id, command_id, attempt, word == "drain"))
        self._told = told
