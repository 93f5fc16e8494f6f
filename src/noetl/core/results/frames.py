"""The frames of a loop as its events tell them: windows of rows, how each ended, and where the outcomes are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from noetl.core import kinds
from noetl.core.event import Event

FRAME_EVENTS = (
    kinds.FRAME_DISPATCHED,
    kinds.FRAME_STARTED,
    kinds.CURSOR_CLAIMED,
    kinds.FRAME_HEARTBEAT,
    kinds.FRAME_ABANDONED,
    kinds.FRAME_COMMITTED,
    kinds.FRAME_FAILED,
)
_ENDED = frozenset((kinds.FRAME_COMMITTED, kinds.FRAME_FAILED))
WAITING, RUNNING, COMMITTED, FAILED = "waiting", "running", "committed", "failed"
WITHDRAWN = "withdrawn"


class FrameRow(NamedTuple):
    """A frame.  `parts` are rows that were persisted before its end; rows that are nowhere have `error` as their
    outcome.  `slot` and `claim` are those of a cursor: whose turn it was, and where the rows are that it took.
    `origin` is the execution in which it ran, when that was another one; of such a frame only the rows in `parts`
    count, or all when it has its reference."""

    frame_id: str
    number: int
    first: int
    rows: int
    status: str = WAITING
    attempt: int = 0
    slot: int | None = None
    claim: Mapping[str, Any] | None = None
    outcomes: Mapping[str, int] | None = None
    profile: Mapping[str, Any] = {}
    reference: Mapping[str, Any] | None = None
    parts: tuple[Mapping[str, Any], ...] = ()
    error: Mapping[str, Any] | None = None
    ref_id: int | None = None
    origin: int | None = None

    @property
    def is_ended(self) -> bool:
        return self.status in (COMMITTED, FAILED, WITHDRAWN)

    @property
    def has_failed_rows(self) -> bool:
        """Whether rows of it have failed, as far as that is known."""
        if self.outcomes is not None:
            return self.outcomes["failed"] + self.outcomes["skipped"] > 0
        return self.status == WITHDRAWN or any(part["failed"] for part in self.parts)

    def when_over(self) -> FrameRow:
        """Of a loop that has ended: a frame without an end was taken back, and what it did not persist never ran."""
        return self if self.is_ended else self._replace(status=WITHDRAWN)

    def output(self) -> dict[str, Any]:
        """As the result of a loop names it."""
        found: dict[str, Any] = {"first": self.first, "rows": self.rows, "ref": self.reference}
        if self.reference is None and self.parts:
            found["parts"] = [dict(part) for part in self.parts]
        if self.error is not None and not (self.outcomes or {}).get("skipped"):
            found["error"] = self.error
        return found


class Frames:
    """The frames of one stage, from its events in order."""

    def __init__(self) -> None:
        self._found: dict[str, FrameRow] = {}
        self.kept: list[FrameRow] = []
        """What other executions have come to, and this one need not run."""

    def __len__(self) -> int:
        return len(self._found) + len(self.kept)

    def see(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.event_type == kinds.EXECUTION_SEEDED:
                self.kept.extend(_kept(event))
                continue
            known = self._found.get(event.frame_id or "")
            if known is None and event.event_type == kinds.FRAME_DISPATCHED:
                self._found[event.frame_id or ""] = _dispatched(event)
            elif known is not None:
                self._found[known.frame_id] = _changed(known, event)

    def known(self, frame_id: str | None) -> FrameRow | None:
        return self._found.get(frame_id or "")

    def rows(self) -> list[FrameRow]:
        """By number.  Of a window that was given out again as another frame only the last one is there: its rows have
        the outcome that counts."""
        windows: dict[tuple[int | None, int], FrameRow] = {}
        for frame in sorted(self._found.values(), key=lambda one: one.number):
            # The turns of a cursor's slots all begin at their first row.
            windows[(None, frame.first) if frame.slot is None else (frame.number, 0)] = frame
        return sorted(windows.values(), key=lambda one: one.number)


def _kept(event: Event) -> Iterator[FrameRow]:
    outputs: Any = event.meta.get("outputs", ())
    for output in outputs:
        parts = [{"failed": 0, **_part(part)} for part in output.get("parts", ())]
        rows = sum(end - first for part in parts for first, end in part["ranges"]) if parts else output["rows"]
        number = output.get("number", 0)
        yield FrameRow(
            frame_id=f"{event.stage_id}/{number}",
            number=number,
            first=output["first"],
            rows=output["rows"],
            status=COMMITTED,
            attempt=output.get("attempt", 0),
            claim=output.get("claim"),
            outcomes={"success": rows, "failed": 0, "skipped": 0},
            reference=output["reference"],
            parts=tuple(parts),
            origin=output["origin"],
        )


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"ref": part["reference"], "ranges": part["ranges"], "shift": part.get("shift", 0)}


def _dispatched(event: Event) -> FrameRow:
    meta: Any = event.meta
    return FrameRow(
        frame_id=event.frame_id or "",
        number=meta["number"],
        first=meta["first"],
        rows=meta["rows"],
        slot=meta.get("slot"),
    )


def _changed(frame: FrameRow, event: Event) -> FrameRow:
    meta: Any = event.meta
    if frame.is_ended:
        return frame
    if event.event_type == kinds.FRAME_STARTED:
        return frame._replace(status=RUNNING, attempt=max(frame.attempt, meta["attempt"]))
    if event.event_type == kinds.CURSOR_CLAIMED:
        return frame._replace(rows=meta["rows"], claim=event.payload_ref, parts=())
    if event.event_type == kinds.FRAME_HEARTBEAT:
        part = {"ref": event.payload_ref, "ranges": meta["ranges"], "failed": meta["failed"]}
        return frame._replace(parts=(*frame.parts, part))
    if event.event_type == kinds.FRAME_ABANDONED:
        return frame._replace(status=WAITING, parts=() if meta["retry_mode"] == "whole_frame" else frame.parts)
    if event.event_type in _ENDED:
        return _ended(frame, event)
    return frame


def _ended(frame: FrameRow, event: Event) -> FrameRow:
    meta: Any = event.meta
    result: Any = event.result
    # A claim that was rolled back took nothing.
    rows = 0 if frame.slot is not None and (frame.claim is None or meta.get("claim") is not None) else frame.rows
    return frame._replace(
        status=COMMITTED if event.event_type == kinds.FRAME_COMMITTED else FAILED,
        rows=rows,
        attempt=max(frame.attempt, meta["attempt"]),
        outcomes=meta["outcomes"],
        profile=meta.get("profile") or {},
        reference=result["reference"],
        error=result["context"].get("error"),
        ref_id=event.event_id,
    )
