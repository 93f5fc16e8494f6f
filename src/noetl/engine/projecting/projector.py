"""The projector: follows the ledger of its shards and writes what it folds, rows and watermark in one commit.

It may die anywhere: whatever it had not committed is folded again by whoever comes next.  It never continues on a
ledger that is not the one its watermark is of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from noetl.core.errors import LedgerCorrupt, LedgerRestored, LedgerUnavailable, NoetlError
from noetl.core.event import Event
from noetl.engine.control.states import Held
from noetl.engine.projecting.counts import ProjectorCounts
from noetl.engine.projecting.feed import Feed, Told
from noetl.engine.projecting.folder import Folder
from noetl.engine.projecting.ownership import Ownership
from noetl.engine.projecting.watching import Watched
from noetl.points import point
from noetl.ports.clock import Clock
from noetl.ports.ledger import ExecutionRow
from noetl.ports.projections import Move, Projections, ProjectionShard, ShardProgress, Tail, Unreadable

RETRY_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0)
REFOLDED_MAX = 1_000
log = logging.getLogger("noetl.projector")
Record = Event | Unreadable
Observer = Callable[[Sequence[Held]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long events are gathered, how many at most of a shard, and how often the ledger is asked for more."""

    window_seconds: float = 0.1
    batch_events: int = 500
    poll_seconds: float = 0.1


@dataclass(slots=True, kw_only=True)
class ProjectorParts:
    """`observers` get the states behind the rows of a commit."""

    ownership: Ownership
    projections: Projections
    tail: Tail
    folder: Folder
    feed: Feed
    watched: Watched
    clock: Clock
    observers: list[Observer] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    """Events of one shard that go into one commit."""

    shard: ProjectionShard
    records: Sequence[Record]
    waited_ms: int | None = None

    @property
    def move(self) -> Move:
        last, shard = self.records[-1], self.shard
        return Move(
            shard_id=shard.shard_id,
            epoch=shard.epoch,
            seen=shard.position,
            position=last.position,
            last_event_id=last.event_id,
            ingest_time=None if self.waited_ms is not None else self.records[0].ingest_time,
            waited_ms=self.waited_ms or 0,
        )


class Projector:
    """`run` belongs to the caller's task group; `leave` hands everything over when it has ended."""

    def __init__(self, parts: ProjectorParts, *, pace: Pace | None = None) -> None:
        self._parts = parts
        self._pace = pace or Pace()
        self._ownership = parts.ownership
        parts.ownership.on_change = parts.feed.nudge
        self._halted: dict[int, str] = {}
        self._incarnation = ""
        self._polled_at = float("-inf")
        self._failures = 0
        self.counts = ProjectorCounts()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ownership.run())
            group.create_task(self._follow())

    async def leave(self) -> None:
        await self._ownership.leave()

    def look_again(self) -> None:
        """Read where all shards are that are held here, those that are halted too, as if they were new."""
        self._ownership.fresh.update(self._ownership.held)
        self._ownership.changed.set()
        self._parts.feed.nudge()

    def summary(self) -> dict[str, object]:
        """What this projector does, for whoever asks it."""
        held = self._ownership.held
        return {
            "shards": [
                {
                    "shard_id": shard.shard_id,
                    "epoch": shard.epoch,
                    "position": shard.position,
                    "lag_ms": self.counts.lag_ms.get(shard.shard_id),
                    "halted": self._halted.get(shard.shard_id),
                }
                for _, shard in sorted(held.items())
            ],
            "ledger_incarnation": self._incarnation or None,
            "events": self.counts.events,
            "batches": self.counts.batches,
            "quarantined": self.counts.quarantined,
            "stale_records": self.counts.stale,
            "errors": dict(self.counts.errors),
        }

    # --- the loop ------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                await self._ownership.settle()
                has_more = await self.advance()
                self._failures = 0
            except LedgerUnavailable as error:
                seconds = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
                self._failures += 1
                self.counts.error("unavailable")
                log.warning("projecting waits", extra={"event": "ledger.unavailable", "reason": str(error)})
                await asyncio.sleep(seconds)
                # Whether the last commit came through only the watermark knows.
                self._ownership.fresh.update(self._ownership.held)
                continue
            if not has_more and not self._ownership.changed.is_set():
                left = self._polled_at + self._pace.poll_seconds - self._parts.clock.monotonic()
                await self._parts.feed.wait(window_seconds=self._pace.window_seconds, timeout_seconds=max(0.001, left))

    async def advance(self) -> bool:
        """One commit, if there is something to write; whether there may be more at once."""
        if self._ownership.changed.is_set():
            self._ownership.changed.clear()
            self._parts.feed.follow(self._ownership.held)
        if self._ownership.fresh:
            await self._look_at(set(self._ownership.fresh))
        steps = self._handed_over()
        now = self._parts.clock.monotonic()
        stuck = self._parts.feed.stuck.difference(steps, self._halted)
        if stuck or now - self._polled_at >= self._pace.poll_seconds:
            self._polled_at = now
            if self._ownership.held:
                await self._read(steps)
        if not steps:
            return False
        await self._write(list(steps.values()))
        return any(len(step.records) >= self._pace.batch_events for step in steps.values())

    def _handed_over(self) -> dict[int, _Step]:
        """What this process has committed itself."""
        feed, found, now = self._parts.feed, {}, self._parts.clock.monotonic()
        for shard in self._active():
            told = feed.take(shard.shard_id, after=shard.position, limit=self._pace.batch_events)
            if told:
                waited_ms = round((now - told[0].at) * 1000)
                found[shard.shard_id] = _Step(shard, _events_of(told), waited_ms)
        return found

    def _active(self) -> list[ProjectionShard]:
        return [shard for shard in self._ownership.held.values() if shard.shard_id not in self._halted]

    async def _read(self, steps: dict[int, _Step]) -> None:
        """Add what the ledger has behind the watermarks."""
        progress = {one.shard_id: one for one in await self._parts.projections.progress()}
        behind: dict[int, ProjectionShard] = {}
        for shard in self._active():
            known = progress[shard.shard_id]
            if await self._is_of_another_ledger(shard, known):
                steps.pop(shard.shard_id, None)
            elif shard.shard_id not in steps:
                if known.head > shard.position:
                    behind[shard.shard_id] = shard
                else:
                    self.counts.is_quiet(shard.shard_id, now=self._polled_at)
        if not behind:
            return
        after = {shard_id: shard.position for shard_id, shard in behind.items()}
        records: dict[int, list[Record]] = {}
        for record in await self._parts.tail.read(after, limit=self._pace.batch_events):
            records.setdefault(record.shard_id, []).append(record)
        for shard_id, shard in behind.items():
            found = records.get(shard_id, [])
            if self._is_gapless(shard, found):
                steps[shard_id] = _Step(shard, found)

    def _is_gapless(self, shard: ProjectionShard, records: Sequence[Record]) -> bool:
        """Whether every event follows the one before it.  A reader that goes on over a gap has lost events for ever:
        the shard is halted, and somebody must look."""
        expected = shard.position
        for record in records:
            expected += 1
            if record.position != expected:
                break
        else:
            if records:
                return True
            expected += 1
        error = LedgerCorrupt(
            f"shard {shard.shard_id} has no event at position {expected}: it is not projected further"
        )
        self._halt(shard, error)
        return False

    def _halt(self, shard: ProjectionShard, error: NoetlError) -> None:
        self._halted[shard.shard_id] = str(error)
        self.counts.error("gap")
        log.error(
            "a shard is halted", extra={"event": "projection.halted", "shard_id": shard.shard_id, "reason": str(error)}
        )

    # --- writing -------------------------------------------------------------------------------------------

    async def _write(self, steps: Sequence[_Step]) -> None:
        started = self._parts.clock.monotonic()
        records = [record for step in steps for record in step.records]
        folded = await self._parts.folder.fold(records)
        point("projector.folded")
        moved = await self._parts.projections.project(
            [step.move for step in steps], folded.rows, incarnation=self._incarnation
        )
        point("projector.written")
        refused = set()
        for step in steps:
            shard = step.shard
            if shard.shard_id in moved:
                self._ownership.moved(shard, step.records[-1].position)
                self.counts.lagged(shard.shard_id, moved[shard.shard_id], now=started)
                self.counts.events += len(step.records)
            else:
                refused.add(shard.shard_id)
                self.counts.stale += len(step.records)
        self.counts.batches += 1
        self.counts.rows += len(folded.rows)
        self.counts.quarantined += folded.quarantined
        self.counts.last_batch_events = len(records)
        self.counts.last_batch_ms = (self._parts.clock.monotonic() - started) * 1000
        self._tell(row for row in folded.rows if row.shard_id in moved)
        for observer in self._parts.observers:
            observer([held for held in folded.states if held.shard_id in moved])
        if refused:
            await self._look_at(refused)

    def _tell(self, rows: Iterable[ExecutionRow]) -> None:
        self._parts.watched.projected(rows)

    # --- trouble -------------------------------------------------------------------------------------------

    async def _look_at(self, shard_ids: set[int]) -> None:
        """Read where these shards are: they are new here, or a commit of theirs was refused or is unknown."""
        progress = {one.shard_id: one for one in await self._parts.projections.progress()}
        owner, new = self._ownership, []
        for shard_id in shard_ids:
            shard = owner.held.get(shard_id)
            if shard is None:
                continue
            known = progress[shard_id]
            self._incarnation = known.ledger_incarnation
            if known.epoch != shard.epoch or known.owner != owner.runtime_id:
                owner.lost(shard_id, shard.epoch)
                continue
            self._halted.pop(shard_id, None)
            owner.replace(shard._replace(position=known.position, incarnation=known.incarnation or ""))
            await self._is_of_another_ledger(owner.held[shard_id], known)
            new.append(shard_id)
        self.counts.keep_only(owner.held)
        if new and shard_ids & owner.fresh:
            await self._heal(new)
        owner.fresh -= shard_ids

    async def _is_of_another_ledger(self, shard: ProjectionShard, known: ShardProgress) -> bool:
        """Whether a watermark cannot be of this ledger: it is of another incarnation, or ahead of the last event.  Then
        nothing of the projection is true any more, and it begins anew."""
        self._incarnation = known.ledger_incarnation
        if shard.incarnation == known.ledger_incarnation and shard.position <= known.head:
            return False
        if shard.incarnation == known.ledger_incarnation:
            why = f"its watermark {shard.position} is ahead of the last event {known.head}"
        else:
            why = f"it is of {shard.incarnation}, the ledger is {known.ledger_incarnation}"
        error = LedgerRestored(f"the projection of shard {shard.shard_id} is of another ledger ({why}): it is rebuilt")
        self.counts.error("ledger_restored")
        log.error(
            "a projection is of another ledger",
            extra={"event": "projection.restored", "shard_id": shard.shard_id, "reason": str(error)},
        )
        await self.rebuild(shard)
        return True

    async def rebuild(self, shard: ProjectionShard) -> None:
        """Forget what was projected and fold all of it again."""
        self._parts.folder.clear()
        rebuilt = await self._parts.projections.rebuild(shard, incarnation=self._incarnation)
        self.counts.rebuilds += 1
        if rebuilt is None:
            self._ownership.lost(shard.shard_id, shard.epoch)
        else:
            self._ownership.replace(rebuilt)

    async def _heal(self, shard_ids: Sequence[int]) -> None:
        """Executions that could not be folded may be foldable now: this may be newer code."""
        for execution_id in await self._parts.projections.quarantined(shard_ids, limit=REFOLDED_MAX):
            await self.refold(execution_id)

    async def refold(self, execution_id: int) -> bool:
        """Try an execution again that could not be folded; whether it can be now."""
        row = await self._parts.folder.refold(execution_id)
        if row is None or not await self._parts.projections.heal(row):
            return False
        log.info("an execution is projected again", extra={"event": "execution.healed", "execution_id": execution_id})
        self._tell([row])
        return True


def _events_of(told: Sequence[Told]) -> list[Event]:
    return [one.event for one in told]
