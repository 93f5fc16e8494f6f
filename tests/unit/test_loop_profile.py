"""What the rows of a loop cost: measured in frames, summed up over them, shown by task and kind."""

from __future__ import annotations

from noetl.core import kinds
from noetl.core.execution.looping.profile import Profile, TaskCost, added, profile_document
from noetl.core.reference import Result
from noetl.engine.work.frames.profile import Cost, FrameProfile
from tests.support.loops import looping, parallel, record, tell


def frame(calls: int, wall_ms: float) -> dict[str, object]:
    cost = FrameProfile()
    for number in range(calls):
        cost.add("get", "http", Cost(0.001, 0.01, 0.003), has_failed=number == 0)
        cost.add("put", "http", Cost(0.002, 0.02), has_failed=False)
    cost.add("code", "python", Cost(0.0, 0.5), has_failed=False)
    return {"rows": calls, "wall_ms": wall_ms, "tasks": cost.to_json()}


def test_frames_add_up() -> None:
    profile = added(added(Profile(), frame(3, 40.0)), frame(2, 30.5))
    assert profile.wall_ms == 70.5
    assert profile.tasks == {
        "get": TaskCost("http", 5, 2, 5.0, 50.0, 15.0),
        "put": TaskCost("http", 5, 0, 10.0, 100.0),
        "code": TaskCost("python", 2, 0, 0.0, 1000.0),
    }


def test_a_status_shows_tasks_and_kinds() -> None:
    shown = profile_document(added(Profile(), frame(2, 9.0)))
    assert (shown["wall_ms"], shown["render_ms"], shown["tool_ms"], shown["limit_ms"]) == (9.0, 6.0, 560.0, 6.0)
    get = {"kind": "http", "calls": 2, "failed": 1, "render_ms": 2.0, "tool_ms": 20.0, "limit_ms": 6.0}
    assert shown["tasks"]["get"] == get
    assert shown["kinds"] == {
        "http": {"calls": 4, "failed": 1, "render_ms": 6.0, "tool_ms": 60.0, "limit_ms": 6.0},
        "python": {"calls": 1, "failed": 0, "render_ms": 0.0, "tool_ms": 500.0, "limit_ms": 0.0},
    }


def test_what_has_no_limit_says_nothing_of_one() -> None:
    tasks = frame(1, 1.0)["tasks"]
    assert isinstance(tasks, dict)
    assert "limit_ms" in tasks["get"]
    assert "limit_ms" not in tasks["put"]


def test_what_is_no_number_is_nothing() -> None:
    odd = {
        "wall_ms": "long",
        "tasks": {"a": 7, "b": {"kind": 3, "calls": -1, "render_ms": float("nan"), "tool_ms": True}},
    }
    profile = added(Profile(), odd)
    assert profile == Profile(0.0, {"a": TaskCost(""), "b": TaskCost("3")})
    assert added(profile, {"tasks": [1]}) == profile


def test_rows_that_wait_for_permits_are_no_slow_rows() -> None:
    """A frame of its own for each row would be three events per row, and a worker's slot for each row that waits."""

    def second(limit_ms: float) -> int:
        run = looping(list(range(200)), spec=parallel(16))
        frame_id = run.frames[0]
        rows = run.frame(frame_id).rows
        cost = {"kind": "http", "calls": rows, "limit_ms": limit_ms * rows}
        profile = {"rows": rows, "wall_ms": 320.0, "tasks": {"each_task": cost}}
        reference = run._keep({"first": 0, "records": [record(index) for index in range(rows)]})
        meta = {"outcomes": {"success": rows, "failed": 0, "skipped": 0}, "profile": profile}
        result = Result(status="ok", reference=None).to_json() | {"reference": reference}
        tell(run, run.take(frame_id), kinds.FRAME_COMMITTED, meta=meta, result=result)
        return run.frame(run.frames[-1]).rows

    assert second(limit_ms=0.0) == 1
    assert second(limit_ms=310.0) > 10
    assert second(limit_ms=10_000.0) > 10
