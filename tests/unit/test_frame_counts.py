"""What a server counts about frames."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.core import kinds
from noetl.core.event import Sealed, seal
from noetl.engine.sharing import frame_counts as module
from noetl.engine.sharing.frame_counts import LAST_FRAMES, FrameCounts
from noetl.engine.sharing.gauges import _backlog
from noetl.ports.durability.examination import FrameDepth
from tests.support.events import EventMaker

CLOCK = VirtualClock()
MAKE = EventMaker(ids=VirtualIds(CLOCK), clock=CLOCK)


def event(event_type: str, number: int, /, **meta: object) -> Sealed:
    made = MAKE.event(
        7,
        event_type,
        f"{event_type}/{number}",
        stage_id="rows#1",
        frame_id=f"rows#1/{number}",
        meta={"attempt": 1, **meta},
    )
    return seal(made)


def held(number: int, seconds: float, *, failed: int = 0, kind: str = kinds.FRAME_COMMITTED) -> list[Sealed]:
    """A frame that was taken, and ended so much later."""
    taken = event(kinds.FRAME_STARTED, number)
    CLOCK.advance(seconds)
    outcomes = {"success": 10 - failed, "failed": failed, "skipped": 0}
    return [taken, event(kind, number, outcomes=outcomes, profile={"rows": 10, "wall_ms": 1.0})]


def shown(counts: FrameCounts) -> dict[str, Any]:
    return {name + "".join(sorted(labels.values())): value for name, labels, value in counts.samples()}


def test_frames_are_counted_by_their_ends() -> None:
    counts = FrameCounts()
    assert "frame_p95_lease_duration" not in shown(counts)
    counts.see([*held(1, 0.2), *held(2, 0.4, failed=3), *held(3, 0.03, failed=10, kind=kinds.FRAME_FAILED)])
    counts.see([event(kinds.FRAME_ABANDONED, 4), event(kinds.FRAME_STARTED, 4), event(kinds.FRAME_DISPATCHED, 5)])
    found = shown(counts)
    assert (found["noetl_frames_ended_totalcommitted"], found["noetl_frames_ended_totalfailed"]) == (2, 1)
    assert (found["noetl_frame_rows_totalsuccess"], found["noetl_frame_rows_totalfailed"]) == (17, 13)
    assert found["noetl_frames_reclaimed_total"] == 1
    assert found["noetl_frame_lease_seconds_count"] == 3
    assert found["frame_p95_lease_duration"] == 0.4


def test_the_p95_is_that_of_the_last_frames() -> None:
    counts = FrameCounts()
    for number in range(50):
        counts.see(held(number, 60.0))
    for number in range(LAST_FRAMES):
        counts.see(held(number, number / 1000))
    assert shown(counts)["frame_p95_lease_duration"] == 0.95
    assert shown(counts)["noetl_frame_lease_seconds_count"] == LAST_FRAMES + 50


def test_of_a_frame_that_was_taken_from_the_dead_the_last_lease_counts() -> None:
    counts = FrameCounts()
    counts.see([event(kinds.FRAME_STARTED, 1), event(kinds.FRAME_ABANDONED, 1)])
    CLOCK.advance(30)
    counts.see([event(kinds.FRAME_STARTED, 1, attempt=2)])
    CLOCK.advance(2)
    outcomes = {"success": 1, "failed": 0, "skipped": 0}
    counts.see([event(kinds.FRAME_COMMITTED, 1, attempt=2, outcomes=outcomes)])
    assert shown(counts)["frame_p95_lease_duration"] == 2.0


def test_what_is_remembered_of_frames_that_never_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_FRAMES_MAX", 10)
    counts = FrameCounts()
    counts.see(event(kinds.FRAME_STARTED, number) for number in range(100))
    assert len(counts._taken_at) == 10


def test_a_frame_whose_claim_was_recorded_elsewhere_is_counted_all_the_same() -> None:
    counts = FrameCounts()
    counts.see([event(kinds.FRAME_FAILED, 1, outcomes={"success": 0, "failed": 2, "skipped": 3})])
    found = shown(counts)
    assert (found["noetl_frames_ended_totalfailed"], found["noetl_frame_rows_totalskipped"]) == (1, 3)


def test_the_backlog_has_a_sum_for_autoscalers_also_when_it_is_empty() -> None:
    name = "noetl_frame_backlog_total"
    assert list(_backlog([])) == [(name, {"stage_kind": "all", "status": "all"}, 0)]
    rows = [
        FrameDepth("a", "x", "cursor", 2, 1),
        FrameDepth("b", "x", "cursor", 3, 0),
        FrameDepth("b", "x", "collection", 0, 4),
    ]
    found = list(_backlog(rows))
    assert (name, {"stage_kind": "cursor", "status": "waiting"}, 5) in found
    assert (name, {"stage_kind": "all", "status": "all"}, 10) in found
    detail = {"tenant_id": "b", "organization_id": "x", "stage_kind": "collection", "status": "held"}
    assert ("noetl_frame_backlog_detail_total", detail, 4) in found
