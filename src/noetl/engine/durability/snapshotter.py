"""Takes snapshots beside everything else: nobody waits for one, and one that is not taken costs time later, never a
result."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from noetl.core.errors import EnvelopeInvalid, LedgerUnavailable
from noetl.core.snapshot.snapshot import Snapshot, take
from noetl.engine.control.states import Held
from noetl.points import point
from noetl.ports.background import Background
from noetl.ports.data.counters import Sample
from noetl.ports.durability.snapshots import Snapshots

WAITING_MAX = 1_000
SAVED_TOGETHER_MAX = 32
LONG_EXECUTIONS_MAX = 10_000
RETRY_SECONDS = 1.0
log = logging.getLogger("noetl.snapshots")


class Snapshotter:
    """`offer` is for whoever folds; `run` belongs to the caller's task group."""

    def __init__(self, snapshots: Snapshots, *, background: Background, interval_events: int) -> None:
        self._snapshots = snapshots
        self._background = background
        self._interval = interval_events
        self._waiting: OrderedDict[int, Held] = OrderedDict()
        self._taken: OrderedDict[int, int] = OrderedDict()
        self._wake = asyncio.Event()
        self._saved = 0
        self._dropped = 0

    def offer(self, held: Held) -> None:
        """A state at the end of a batch.  Never blocks; a state that is not due is forgotten at once."""
        if not self._is_due(held):
            return
        execution_id = held.state.execution_id
        self._waiting[execution_id] = held
        self._waiting.move_to_end(execution_id)
        if len(self._waiting) > WAITING_MAX:
            self._waiting.popitem(last=False)
            self._dropped += 1
        self._wake.set()

    def observe(self, states: Sequence[Held]) -> None:
        """The states behind one commit of a projector."""
        for held in states:
            self.offer(held)

    def _is_due(self, held: Held) -> bool:
        state = held.state
        if state.is_terminal:
            self._taken.pop(state.execution_id, None)
            return True
        if state.version < self._interval:
            return False
        # Of one that is long already and not known here, nobody knows how old its last snapshot is.
        last = self._taken.get(state.execution_id, 0)
        if state.version - last < self._interval:
            return False
        self._taken[state.execution_id] = state.version
        self._taken.move_to_end(state.execution_id)
        if len(self._taken) > LONG_EXECUTIONS_MAX:
            self._taken.popitem(last=False)
        return True

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._save()

    async def _save(self) -> None:
        taken = [self._waiting.popitem(last=False)[1] for _ in range(min(len(self._waiting), SAVED_TOGETHER_MAX))]
        # Beside the loop: the state of a long run is large.
        snapshots = await self._background.run(_snapshots_of, taken)
        self._dropped += len(taken) - len(snapshots)
        point("snapshot.taken")
        try:
            await self._snapshots.save(snapshots)
            point("snapshot.saved")
        except EnvelopeInvalid as error:
            self._dropped += len(snapshots)
            log.warning("snapshots were refused", extra={"event": "snapshots.refused", "reason": str(error)})
        except LedgerUnavailable as error:
            log.warning("snapshots wait", extra={"event": "snapshots.unavailable", "reason": str(error)})
            for held in taken:
                self._waiting.setdefault(held.state.execution_id, held)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            self._saved += len(snapshots)

    def samples(self) -> Iterator[Sample]:
        yield "noetl_snapshots_total", {}, self._saved
        yield "noetl_snapshots_dropped_total", {}, self._dropped


def _snapshots_of(taken: list[Held]) -> list[Snapshot]:
    made = []
    for held in taken:
        # What cannot be written as text was never in the ledger; nothing depends on its snapshot.
        with contextlib.suppress(EnvelopeInvalid):
            made.append(take(held.state, shard_id=held.shard_id, position=held.position))
    return made
