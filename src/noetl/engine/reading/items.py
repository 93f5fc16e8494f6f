"""The items of a loop, one by one: in which frame each ran, how it ended, what went in and what came out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from noetl.core import kinds
from noetl.core.errors import ResultUnknown
from noetl.core.event import Event
from noetl.core.execution.state import ExecutionState
from noetl.core.expression import bare, find
from noetl.core.expression.views import part_of, row_result
from noetl.core.limits import LOOP_FRAMES_READ_MAX
from noetl.core.playbook.frame_fields import FRAME
from noetl.core.results.frames import FRAME_EVENTS, FrameRow, Frames
from noetl.engine.executions import ExecutionService
from noetl.engine.payloads import Payloads
from noetl.engine.stored.reader import LoopRecords, Reader
from noetl.engine.stored.sources import settled
from noetl.engine.work.collections import rows_between
from noetl.ports.data.lineage import Lineage

SUCCESS, FAILED, SKIPPED, RUNNING, WAITING = "success", "failed", "skipped", "running", "waiting"
_PAGE_EVENTS = 2_000
_EVENTS = (*FRAME_EVENTS, kinds.EXECUTION_SEEDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """`index` counts over the loop; `row` within the frame.  What went in and what came out is told of a single item
    only.  `origin` is the execution that it ran in, when that was another one, and the frame is one of that."""

    index: int
    status: str
    frame_id: str | None
    row: int | None
    attempt: int
    error: Mapping[str, Any] | None = None
    input: object = None
    result: object = None
    origin: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """`next_index` is where the page behind this one begins.  `kind` is `collection` or `cursor`.  `dead_letter` is the
    payload that lists what failed, when the loop has ended with failures."""

    step: str
    run: int
    kind: str
    total: int
    done: int
    failed: int
    frames: int
    items: Sequence[Item]
    next_index: int | None
    dead_letter: Mapping[str, Any] | None = None


class ItemService:
    def __init__(self, *, executions: ExecutionService, lineage: Lineage, payloads: Payloads) -> None:
        self._executions = executions
        self._lineage = lineage
        self._payloads = payloads

    async def find(
        self, execution_id: int, step: str, *, tenant_id: str, organization_id: str, run: int | None = None
    ) -> LoopReading:
        """The loop of a step's last run, or of one of its runs.  Raises ExecutionUnknown and ResultUnknown."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        state = await self._executions.state(execution_id, **owner)
        number = state.runs.get(step, 0) if run is None else run
        stage_id = f"{step}#{number}"
        started = await self._lineage.ended(execution_id, kinds.loop_started_key(stage_id))
        if started is None:
            raise ResultUnknown(_no_loop(state, step, number))
        frames, position = Frames(), 0
        while page := await self._lineage.of_stage(
            execution_id, stage_id, kinds=_EVENTS, after_position=position, limit=_PAGE_EVENTS
        ):
            position = page[-1].position
            frames.see(page)
            if len(frames) > LOOP_FRAMES_READ_MAX:
                raise ResultUnknown(
                    f"step {step[:100]!r} of execution {execution_id} has more than {LOOP_FRAMES_READ_MAX:,} frames, "
                    "too many to look through here: ask the database for them (noetl_views.frames)"
                )
        stage = state.loop_state.get(step)
        is_open = stage is not None and stage.run == number and not stage.is_sealing and not state.is_terminal
        ended = state.ended_loops.get(step)
        letter = ended.dead_letter if ended is not None and ended.run == number else None
        return LoopReading(started, frames, is_open=is_open, dead_letter=letter, payloads=self._payloads, owner=owner)


def _no_loop(state: ExecutionState, step: str, run: int) -> str:
    where = f"step {step[:100]!r} of execution {state.execution_id}"
    if step not in state.runs:
        return f"{where} has not begun, or there is no such step"
    if not 1 <= run <= state.runs[step]:
        return f"{where} has no run {run}: its last one is {state.runs[step]}"
    return f"{where} is no loop in run {run}, or has not begun to loop: only loops have items"


class _Window(NamedTuple):
    """Rows of a frame: the indexes in the loop where they begin and end, and where its first row would be."""

    first: int
    end: int
    base: int
    frame: FrameRow


class LoopReading:
    def __init__(
        self,
        started: Event,
        frames: Frames,
        *,
        is_open: bool,
        dead_letter: Mapping[str, Any] | None,
        payloads: Payloads,
        owner: Mapping[str, str],
    ) -> None:
        meta: Any = started.meta
        self._step, self._run = str(meta["step"]), int(meta["run"])
        self._is_framewise = meta["policy"].get("process") == FRAME
        self._collection: Any = meta.get("collection")
        self._is_cursor = meta.get("cursor") is not None
        self._is_claimed = meta.get("claimed") is not None
        given_out = frames.rows() if is_open else [frame.when_over() for frame in frames.rows()]
        self._windows = _counted(given_out) if self._is_cursor else _placed(given_out, frames.kept)
        self._total = sum(frame.rows for frame in given_out) if self._is_cursor else int(meta["total"])
        self._ended = [one.outcomes for one in (*given_out, *frames.kept) if one.outcomes is not None]
        self._frames = len(given_out)
        self._payloads, self._owner = payloads, owner
        self._dead_letter = dead_letter
        # Of a loop that has ended nothing waits any more.
        self._ungiven = WAITING if is_open else SKIPPED

    async def page(self, first: int, limit: int, *, is_failed: bool) -> Items:
        """Items from an index on; with `is_failed` only those that failed or never ran."""
        found: list[Item] = []
        following: int | None = None
        async with aclosing(self._items(first, is_failed=is_failed)) as items:
            async for item in items:
                if len(found) == limit:
                    following = item.index
                    break
                found.append(item)
        return self._page(found, following)

    async def one(self, index: int) -> Items:
        """One item with what went in and what came out.  Raises ResultUnknown."""
        if not 0 <= index < self._total:
            raise ResultUnknown(f"step {self._step!r} has {self._total:,} items, and none with the index {index}")
        window = next((one for one in self._windows if one.first <= index < one.end), None)
        given = await self._input(window, index)
        if window is None:
            return self._page([replace(self._nowhere(index), input=given)], None)
        (record,) = await self._records(window, index, index + 1)
        (item,) = _told(window, index, [record])
        return self._page([replace(item, input=given, result=row_result(record))], None)

    def _page(self, items: Sequence[Item], following: int | None) -> Items:
        failed = sum(one["failed"] for one in self._ended)
        return Items(
            step=self._step,
            run=self._run,
            kind="cursor" if self._is_cursor or self._is_claimed else "collection",
            total=self._total,
            done=failed + sum(one["success"] for one in self._ended),
            failed=failed,
            frames=self._frames,
            items=items,
            next_index=following,
            dead_letter=self._dead_letter,
        )

    async def _items(self, first: int, *, is_failed: bool) -> AsyncGenerator[Item]:
        """From an index on, frame by frame: nothing is read of frames in which nothing is wanted."""
        index = first
        for window in self._windows:
            if window.end <= index:
                continue
            for item in self._gap(index, window.first, is_failed=is_failed):
                yield item
            index = max(index, window.first)
            if not is_failed or window.frame.has_failed_rows:
                for item in _told(window, index, await self._records(window, index, window.end)):
                    if not is_failed or item.status in (FAILED, SKIPPED):
                        yield item
            index = window.end
        for item in self._gap(index, self._total, is_failed=is_failed):
            yield item

    def _gap(self, first: int, end: int, *, is_failed: bool) -> Iterator[Item]:
        """Items that were never given out."""
        if is_failed and self._ungiven is WAITING:
            return
        yield from (self._nowhere(index) for index in range(first, end))

    def _nowhere(self, index: int) -> Item:
        return Item(index=index, status=self._ungiven, frame_id=None, row=None, attempt=0)

    async def _input(self, window: _Window | None, index: int) -> object:
        place, row = self._collection, index
        if self._is_cursor:
            assert window is not None
            place, row = {"ref": window.frame.claim}, index - window.base
        (found,) = await rows_between(self._payloads, place, row, row + 1, **self._owner)
        return found

    async def _records(self, window: _Window, first: int, end: int) -> list[Any]:
        """The outcomes of some rows as they are kept; null for those that are nowhere."""
        frame = window.frame
        # As the frame counts its rows: so do the parts that it has persisted.
        low, high = frame.first + first - window.base, frame.first + end - window.base
        document = {"total": frame.first + frame.rows, "frames": [frame.output()]}
        records = LoopRecords(Reader(self._payloads, **self._owner), document)
        if self._is_framewise and frame.reference is not None:
            # One outcome for all of them.
            one = await settled(lambda: bare(find(records, frame.first)))
            return [one] * (high - low)
        found: Any = await settled(lambda: [bare(one) for one in _list(part_of(records, slice(low, high)))])
        return list(found)


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, Iterable) else []


def _placed(frames: Iterable[FrameRow], kept: Iterable[FrameRow]) -> list[_Window]:
    found = [_Window(frame.first, frame.first + frame.rows, frame.first, frame) for frame in frames]
    for frame in kept:
        # What was kept of a frame that failed in part has holes: there stand the rows that run again.
        whole = [(frame.first, frame.first + frame.rows)]
        ranges = whole if frame.reference is not None else [one for part in frame.parts for one in part["ranges"]]
        found.extend(_Window(first, end, frame.first, frame) for first, end in ranges)
    return sorted(found, key=lambda one: one.first)


def _counted(frames: Iterable[FrameRow]) -> list[_Window]:
    """Rows of a cursor have no place of their own: they count in the order of the frames that took them."""
    found: list[_Window] = []
    base = 0
    for frame in frames:
        found.append(_Window(base, base + frame.rows, base, frame))
        base += frame.rows
    return found


def _told(window: _Window, first: int, records: Sequence[Any]) -> Iterator[Item]:
    frame = window.frame
    for number, record in enumerate(records):
        index = first + number
        error = record.get("e") if isinstance(record, Mapping) else None
        if record is None:
            status = SKIPPED if frame.is_ended else RUNNING if frame.status == "running" else WAITING
        else:
            status = SUCCESS if error is None else FAILED
        yield Item(
            index=index,
            status=status,
            frame_id=frame.frame_id,
            # Where it stood in a frame of another execution only that one's events tell.
            row=index - window.base if frame.origin is None else None,
            attempt=frame.attempt,
            error=error,
            origin=frame.origin,
        )
