"""What a server counts about frames."""

from __future__ import annotations

from typing import Any

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.core import kinds
from noetl.core.event import Sealed, seal
from noetl.engine.sharing.frame_counts import LAST_FRAMES, FrameCounts
from noetl.engine.sharing.gauges import _backlog
from noetl.ports.durability.examination import FrameDepth
from tests.support.events import EventMaker

CLOCK = VirtualClock()
MAKE = EventMaker(ids=VirtualIds(CLOCK), clock=CLOCK)


def event(event_type: str, number: int, **meta: object) -> Sealed:
    made = MAKE.event(
        7,
        event_type,
        f"{event_type}/{number}",
        stage_id="rows#1",
        frame_id=f"rows#1/{number}",
        meta={"attempt": 1, **meta},
    )
    return seal(made)


def ended(number: int, wall_ms: float, *, failed: int = 0, kind: str = kinds.FRAME_COMMITTED) -> Sealed:
    outcomes = {"success": 10 - failed, "failed": failed, "skipped": 0}
    return event(kind, number, outcomes=outcomes, profile={"rows": 10, "wall_ms": wall_ms})


def shown(counts: FrameCounts) -> dict[str, Any]:
    return {name + "".join(sorted(labels.values())): value for name, labels, value in counts.samples()}


def test_frames_are_counted_by_their_ends() -> None:
    counts = FrameCounts()
    assert "frame_p95_lease_duration" not in shown(counts)
    counts.see([ended(1, 200.0), ended(2, 400.0, failed=3), ended(3, 30.0, failed=10, kind=kinds.FRAME_FAILED)])
    counts.see([event(kinds.FRAME_ABANDONED, 4), event(kinds.FRAME_STARTED, 4), event(kinds.FRAME_DISPATCHED, 5)])
    found = shown(counts)
    assert (found["noetl_frames_ended_totalcommitted"], found["noetl_frames_ended_totalfailed"]) == (2, 1)
    assert (found["noetl_frame_rows_totalsuccess"], found["noetl_frame_rows_totalfailed"]) == (17, 13)
    assert found["noetl_frames_reclaimed_total"] == 1
    assert found["noetl_frame_lease_seconds_count"] == 3
    assert found["frame_p95_lease_duration"] == 0.4


def test_the_p95_is_that_of_the_last_frames() -> None:
    counts = FrameCounts()
    counts.see(ended(number, 60_000.0) for number in range(50))
    counts.see(ended(number, float(number)) for number in range(LAST_FRAMES))
    assert shown(counts)["frame_p95_lease_duration"] == 0.95
    assert shown(counts)["noetl_frame_lease_seconds_count"] == LAST_FRAMES + 50


def test_a_frame_without_a_profile_is_counted_all_the_same() -> None:
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
