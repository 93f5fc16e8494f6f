"""What the router decides about loops: opening a stage, cutting it into frames, ending it."""

from __future__ import annotations

import pytest

from noetl.core import kinds
from noetl.core.codec import canonical_json
from noetl.core.errors import Failure
from noetl.core.event import Draft, Event
from noetl.core.execution.decide import decide
from noetl.core.execution.looping import loops
from noetl.core.execution.state import CommandStatus, Entry, Status
from noetl.core.limits import FRAME_MS_AIM, FRAME_ROWS_MAX, LOOP_IN_FLIGHT_MAX
from noetl.core.reference import Result
from tests.support.loops import Looping, drain, give_up, loop_step, looping, parallel, tell, windows
from tests.support.playbooks import BOOM, JsonObject, address_of, graph, step

ERROR = {"step": "rescue", "when": "{{ output.status == 'error' }}"}


def started(run: Looping) -> Event:
    (event,) = run.of(kinds.LOOP_STARTED)
    return event


def failure_of(run: Looping) -> JsonObject:
    assert run.state.failure is not None
    error: JsonObject = dict(run.state.failure["error"])  # type: ignore[call-overload]
    return error


# --- opening ---------------------------------------------------------------------------------------------


def test_a_small_collection_is_opened_without_a_worker() -> None:
    run = looping([1, 2, 3], "after")
    assert started(run).meta == {
        "step": "each",
        "run": 1,
        "parents": [],
        "total": 3,
        "collection": {"v": [1, 2, 3]},
        "policy": {"is_sequential": True, "max_in_flight": 1, "is_best_effort": False, "one_row_frames": False},
    }
    assert (started(run).stage_id, started(run).transition_key) == ("each#1", "loop.started/each#1")
    assert run.open == ["each#1/1"]


def test_a_frame_carries_its_window_and_where_its_rows_are() -> None:
    run = looping([1, 2, 3], "after", spec=parallel(2, max_rows=2, max_attempts=5))
    assert run.frames == ["each#1/1", "each#1/2"]
    assert run.body("each#1/1")["stage"] == {
        "stage_id": "each#1",
        "total": 3,
        "done": 0,
        "collection": {"v": [1, 2, 3]},
        "number": 1,
        "first": 0,
        "rows": 2,
        "concurrency": 1,
        "sequential": False,
        "best_effort": False,
        "heartbeats": 0,
        "parts": [],
    }
    assert run.stage().policy.max_attempts == 5


@pytest.mark.parametrize(
    ("frame", "frames"),
    [
        ({"max_rows": 10}, [2, 2, 2, 2]),
        ({"max_rows": 100}, [4, 4]),
        ({"max_rows": 100, "row_concurrency": 3}, [3, 3]),
        ({"max_rows": 10, "row_concurrency": 1}, [1] * 8),
        ({"row_concurrency": 1}, [1] * 8),
        ({"max_rows": 10, "row_concurrency": 3, "process": "frame"}, [1] * 8),
    ],
)
def test_rows_of_a_frame_run_side_by_side_as_far_as_it_may(frame: JsonObject, frames: list[int]) -> None:
    run = looping(list(range(200)), spec=parallel(8, **frame))
    assert [event.meta["concurrency"] for event in run.of(kinds.FRAME_DISPATCHED)] == frames


def test_a_collection_of_an_earlier_step_comes_as_an_atom() -> None:
    run = Looping(graph(step("start", "each"), loop_step("each", "{{ start.rows }}")))
    run.complete("start#1", {"rows": ["a", "b"]})
    assert started(run).meta["collection"] == {"v": ["a", "b"]}
    assert started(run).meta["parents"] == ["start"]


@pytest.mark.parametrize("rows", ["{{ start.rows }}", "{{ steps[ctx.which | default('start')].rows }}"])
def test_a_collection_that_the_router_does_not_hold_is_cut_by_a_worker(rows: str) -> None:
    run = Looping(graph(step("start", "each"), loop_step("each", rows, spec=parallel(3))))
    run.complete("start#1", {"rows": ["x" * 100] * 40})
    assert run.open == ["each#1/eval/1"]
    assert run.state.commands["each#1/eval/1"].kind == "collect"
    assert run.stage().collection is None
    assert run.state.issued_steps == {"each": 1}
    run.collect("each#1/eval/1")
    assert started(run).meta["total"] == 40
    assert set(started(run).meta["collection"]) == {"ref", "path"}  # type: ignore[call-overload]
    assert run.frames
    run.finish()
    assert run.result()["count"] == 40


def test_a_literal_that_is_too_large_for_an_event_is_cut_by_a_worker_too() -> None:
    run = looping(["x" * 100] * 40, "after")
    assert [command.kind for command in run.state.commands.values()] == ["collect"]
    assert run.finish().result()["stats"] == {"total": 40, "success": 40, "failed": 0}


def test_the_number_of_items_in_flight_may_need_a_worker_and_so_may_the_rows() -> None:
    which = "steps[ctx.which | default('start')]"
    each = loop_step("each", f"{{{{ {which}.rows }}}}", "after", spec=parallel(f"{{{{ {which}.n }}}}"))
    run = Looping(graph(step("start", "each"), each, step("after")))
    run.complete("start#1", {"rows": [1, 2, 3], "n": 2})
    assert [(c.kind, c.parents) for c in run.state.commands.values()] == [("evaluate", ("start",))]
    run.evaluate("each#1/eval/1")
    assert [(c.kind, c.parents) for c in run.state.commands.values()] == [("collect", ("start",))]
    run.collect("each#1/eval/2")
    assert run.stage().policy.max_in_flight == 2
    assert run.finish().state.status is Status.COMPLETED


def test_questions_before_and_after_a_loop_have_different_numbers() -> None:
    guard = {"step": "end", "when": "{{ steps[ctx.which | default('each')].count == 2 }}"}
    run = looping(["x" * 2_000, "y"], guard)
    run.collect("each#1/eval/1")
    for frame_id in ("each#1/1", "each#1/2"):
        run.commit(frame_id)
    run.seal("each#1/seal")
    assert run.open == ["each#1/eval/2"]
    run.finish()
    assert run.decided("each").meta["arcs"] == [0]


def test_questions_after_a_refused_loop_have_numbers_of_their_own() -> None:
    guard = {"step": "rescue", "when": "{{ error and steps[ctx.which | default('each')].status == 'error' }}"}
    each = loop_step("each", "{{ steps[ctx.w | default('start')].x }}", guard)
    run = Looping(graph(step("start", "each"), each, step("rescue")))
    run.complete("start#1", {"x": 7})
    run.collect("each#1/eval/1")
    assert run.open == ["each#1/eval/2"]
    assert run.finish().state.status is Status.COMPLETED


def test_the_step_that_requested_a_loop_is_its_result_before_it_has_one() -> None:
    run = Looping(graph(step("start", "each"), loop_step("each", "{{ result.rows }}", spec=parallel("{{ result.n }}"))))
    run.complete("start#1", {"rows": [1, 2, 3], "n": 3})
    for command_id in ("each#1/eval/1", "each#1/eval/2"):
        assert run.body(command_id)["parents"] == ["start"]
        assert set(run.body(command_id)["steps"]) == {"start"}
        if command_id == "each#1/eval/1":
            answer = Result(status="ok", context={"value": 3}).to_json()
            run._fact(run.state.commands[command_id], kinds.COMMAND_COMPLETED, answer, None)
    assert run.state.commands["each#1/eval/2"].kind == "collect"


# --- collections (dsl §4.2) ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ([1, "two", None], [1, "two", None]),
        ({"a": 1}, [{"a": 1}]),
        ("text", ["text"]),
        ("", [""]),
        ("[1, 2]", [1, 2]),
        (' [{"a": 1}] ', [{"a": 1}]),
        ("[]", []),
        ("[1, 2", ["[1, 2"]),
        ("[not json]", ["[not json]"]),
        ('{"a": 1}', ['{"a": 1}']),
        ("[NaN]", ["[NaN]"]),
        ('["\\ud800"]', ['["\\ud800"]']),
        ("[" * 5_000, ["[" * 5_000]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_what_is_a_collection(given: object, rows: list[object]) -> None:
    run = Looping(graph(loop_step("each", "{{ rows }}"), workload={"rows": 0}), workload={"rows": given})
    run.finish(pick=lambda waiting: waiting[0])
    assert started(run).meta["total"] == len(rows)
    if "v" in started(run).meta["collection"]:  # type: ignore[operator]
        assert started(run).meta["collection"] == {"v": rows}


@pytest.mark.parametrize(
    ("given", "says"), [(None, "gave nothing"), (7, "gave 7"), (0.5, "gave 0.5"), (True, "gave True")]
)
def test_what_is_no_collection_fails_the_step_and_names_it(given: object, says: str) -> None:
    run = Looping(graph(loop_step("each", "{{ rows }}", ERROR), step("rescue")), workload={"rows": given})
    (done,) = run.finish().of(kinds.LOOP_DONE)
    assert done.meta["status"] == "refused"
    error = run.state.step_results["each"].error
    assert error is not None
    assert (error["kind"], error["code"]) == ("config", "loop_not_iterable")
    assert error["message"] == f"step 'each': loop.in {says}, which is no collection"
    assert run.decided("each").meta["targets"] == ["rescue"]
    assert not run.of(kinds.LOOP_STARTED)
    assert run.state.status is Status.COMPLETED


def test_a_typing_mistake_is_no_empty_loop() -> None:
    run = looping("{{ rwos }}", "after")
    assert run.state.status is Status.FAILED
    assert failure_of(run)["code"] == "loop_not_iterable"


def test_a_collection_that_a_worker_refuses_fails_the_step() -> None:
    run = Looping(graph(step("start", "each"), loop_step("each", "{{ steps[ctx.w | default('start')].x }}")))
    run.complete("start#1", {"x": 7})
    run.collect("each#1/eval/1")
    assert run.state.status is Status.FAILED
    assert failure_of(run)["code"] == "loop_not_iterable"
    assert failure_of(run)["message"].count("step 'each'") >= 1


def test_a_template_that_fails_fails_the_step() -> None:
    run = looping("{{ 1 + rwos }}", "after")
    assert run.state.status is Status.FAILED
    assert failure_of(run)["kind"] == "template"
    assert "step 'each', loop.in: " in failure_of(run)["message"]


def test_a_value_that_cannot_be_stored_fails_its_own_step() -> None:
    run = looping("{{ ['\\ud800'] }}", "after")
    assert run.state.status is Status.FAILED
    assert failure_of(run)["code"] == "loop_not_iterable"


def test_a_collection_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LOOP_ITEMS_MAX", 3)
    assert looping([1, 2, 3]).state.status is Status.RUNNING
    error = failure_of(looping([1, 2, 3, 4]))
    assert (error["kind"], error["code"]) == ("config", "loop_too_large")
    assert error["message"] == "step 'each': loop.in has 4 items, the limit is 3"


def test_an_empty_collection_completes_and_routes() -> None:
    done = {"step": "after", "when": "{{ event.name == 'loop.done' and each.count == 0 }}"}
    run = looping([], done)
    assert [event.event_type for event in run.events[1:5]] == [
        *("stage.opened", "loop.started", "loop.done", "command.issued")
    ]
    assert run.of(kinds.LOOP_DONE)[0].meta["status"] == "ok"
    assert run.open == ["each#1/seal"]
    run.seal("each#1/seal")
    assert run.result() == {"results": [], "stats": {"total": 0, "success": 0, "failed": 0}, "count": 0, "status": "ok"}
    assert run.decided("each").meta["targets"] == ["after"]


@pytest.mark.parametrize(
    ("name", "in_loop", "in_step"),
    [("loop.done", True, False), ("call.done", True, True), ("step.done", True, True), ("call.error", False, False)],
)
def test_only_a_loop_is_done_as_a_loop(name: str, in_loop: bool, in_step: bool) -> None:
    guard = {"step": "yes", "when": f"{{{{ event.name == '{name}' }}}}"}
    steps = [loop_step("each", [1], guard, {"step": "plain"}), step("plain", guard), step("yes")]
    run = Looping(graph(*steps)).finish()
    assert (run.decided("each").meta["targets"] == ["yes"]) == in_loop
    alone = Looping(graph(step("plain", guard), step("yes"))).finish()
    assert (alone.decided("plain").meta["targets"] == ["yes"]) == in_step


# --- max_in_flight ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "number"), [("{{ 3 }}", 3), ("{{ '3' }}", 3), ("5", 5), (" 6 ", 6), (7, 7)])
def test_items_in_flight_are_rendered_when_the_loop_begins(given: object, number: int) -> None:
    assert looping([1], spec=parallel(given)).stage().policy.max_in_flight == number


@pytest.mark.parametrize(
    "given",
    ["{{ 0 }}", "{{ -1 }}", "{{ 2.5 }}", "{{ true }}", "{{ none }}", "{{ x }}", "many", "{{ [1] }}", "{{ 10001 }}"],
)
def test_a_value_that_is_no_number_of_items_fails_the_step(given: str) -> None:
    run = looping([1], spec=parallel(given))
    assert run.state.status is Status.FAILED
    error = failure_of(run)
    assert (error["kind"], error["code"]) == ("config", "max_in_flight")
    assert "step 'each': loop.spec.max_in_flight must be a whole number from 1 to 10,000, not " in error["message"]
    assert LOOP_IN_FLIGHT_MAX == 10_000


def test_a_number_of_items_that_cannot_be_rendered_fails_the_step() -> None:
    run = looping([1], spec=parallel("{{ 1 + x }}"))
    assert failure_of(run)["kind"] == "config"
    assert "loop.spec.max_in_flight: " in failure_of(run)["message"]


# --- frames ----------------------------------------------------------------------------------------------


def test_a_sequential_loop_has_one_frame_with_one_row_at_a_time() -> None:
    run = looping(list(range(20)))
    assert windows(run) == [(0, 1, 1)]
    while "each" in run.state.loop_state and run.frames:
        assert len(run.frames) == 1
        assert run.frame(run.frames[0]).concurrency == 1
        run.commit(run.frames[0], ms=FRAME_MS_AIM / 4)
    assert [event.meta["rows"] for event in run.of(kinds.FRAME_DISPATCHED)] == [1, 4, 4, 4, 4, 3]


def test_before_anything_is_known_every_item_in_flight_has_a_place() -> None:
    assert windows(looping(list(range(100)), spec=parallel(4))) == [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1)]
    wide = windows(big(100, total=300))
    assert sum(concurrency for _, _, concurrency in wide) == 100
    assert all(rows == concurrency for _, rows, concurrency in wide)
    assert len(wide) < 20


@pytest.mark.parametrize("in_flight", [1, 2, 3, 5, 6, 7, 10, 33, 100, 1_000])
def test_all_places_are_used_when_there_are_rows_enough(in_flight: int) -> None:
    run = looping("{{ range(3000) | list }}", spec=parallel(in_flight))
    if run.open == ["each#1/eval/1"]:
        run.collect("each#1/eval/1")
    assert run.stage().in_use == in_flight


@pytest.mark.parametrize(("ms", "rows"), [(0.5, 240), (10.0, 12), (60.0, 2), (119.0, 1), (120.0, 1), (5_000.0, 1)])
def test_a_frame_has_as_many_rows_as_fit_into_its_time(ms: float, rows: int) -> None:
    run = big(4, total=100_000)
    run.commit(run.frames[0], ms=ms)
    assert run.frame(run.frames[-1])[2:4] == (rows, 1)


def test_a_frame_of_tiny_rows_has_an_end() -> None:
    run = big(1, total=1_000_000)
    run.commit(run.frames[0], ms=0.000_001)
    assert run.frame(run.frames[0]).rows == FRAME_ROWS_MAX


def test_slow_rows_have_frames_of_their_own_so_that_a_place_is_free_when_one_ends() -> None:
    run = big(20, total=1_000)
    run.commit(run.frames[0], ms=900.0)
    freed = [window for window in windows(run) if window[1] == 1]
    assert len(freed) == 5
    assert all(window[2] == 1 for window in freed)


def test_an_old_measurement_fades() -> None:
    run = big(1, total=100_000)
    sizes = []
    for ms in (FRAME_MS_AIM / 2, 1.0, 1.0, 1.0, 1.0, 1.0):
        run.commit(run.frames[0], ms=ms)
        sizes.append(run.frame(run.frames[0]).rows)
    assert sizes[0] == 2
    assert sizes == sorted(sizes)
    assert sizes[-1] > 100


def test_declared_rows_are_the_rows_of_every_frame() -> None:
    run = big(3, total=20, max_rows=5)
    run.commit(run.frames[0], ms=10_000.0)
    run.finish()
    assert [event.meta["rows"] for event in run.of(kinds.FRAME_DISPATCHED)] == [5, 5, 5, 5]


def test_a_declared_frame_that_holds_everything_still_runs_its_rows_at_the_same_time() -> None:
    assert windows(looping(list(range(7)), spec=parallel(5, max_rows=7))) == [(0, 7, 5)]
    assert windows(looping(list(range(14)), spec=parallel(6, max_rows=7))) == [(0, 7, 3), (7, 7, 3)]
    assert windows(looping(list(range(3)), spec=parallel(50, max_rows=9))) == [(0, 3, 3)]


def test_towards_the_end_frames_become_smaller() -> None:
    run = big(4, total=1_000)
    while run.frames:
        run.commit(run.frames[0], ms=0.5)
    sizes = [event.meta["rows"] for event in run.of(kinds.FRAME_DISPATCHED)]
    assert sizes[4] == 125
    assert max(sizes[-4:]) <= 60
    assert sum(int(str(size)) for size in sizes) == 1_000


def test_a_loop_that_waits_for_other_executions_has_frames_of_one_row() -> None:
    run = big(4, total=100)
    patient = run.stage()._replace(policy=run.stage().policy._replace(one_row_frames=True), timed_rows=9.0, busy_ms=1.0)
    run.state = run.state.changed({"loop_state": {"each": patient}})
    run.commit(run.frames[0])
    assert windows(run)[-1][1:] == (1, 1)


def big(in_flight: int, *, total: int, **frame: object) -> Looping:
    """A parallel loop over a stored collection of some size."""
    text = graph(loop_step("each", "{{ rows }}", "after", spec=parallel(in_flight, **frame)), step("after"))
    run = Looping(text, workload={"rows": Entry(None, {"sha256": "0"}, ())})
    command = run.state.commands["each#1/eval/1"]
    result = {"status": "ok", "reference": {"sha256": "0"}, "parent_ref": None, "context": {"total": total}}
    run._fact(command, kinds.COMMAND_COMPLETED, result, None)
    return run


# --- the end ---------------------------------------------------------------------------------------------


def test_rows_are_in_item_order_whoever_ended_first() -> None:
    run = looping(list(range(9)), "after", spec=parallel(3, max_rows=2))
    run.finish({"each": lambda index: f"row {index}"}, pick=lambda waiting: waiting[-1])
    assert run.result()["results"] == [f"row {index}" for index in range(9)]
    assert run.result()["stats"] == {"total": 9, "success": 9, "failed": 0}
    (done,) = run.of(kinds.LOOP_DONE)
    assert {name: done.meta[name] for name in ("total", "done", "failed", "frames", "status")} == {
        "total": 9,
        "done": 9,
        "failed": 0,
        "frames": 5,
        "status": "ok",
    }


def test_writes_of_a_frame_reach_the_context_and_the_next_frame() -> None:
    run = looping([1, 2], "after", tool={"kind": "noop", "input": {"n": "{{ ctx.n }}"}})
    run.commit("each#1/1", writes=[{"path": ["n"], "v": 41}])
    assert run.body("each#1/2")["ctx"] == {"n": {"v": 41}}
    assert run.context == {"n": 41}


def test_the_result_of_a_loop_is_read_by_guards_and_writes() -> None:
    arcs = [{"step": "after", "when": "{{ each.stats.failed == 1 and each.results[1].status == 'error' }}"}]
    run = looping([1, 2, 3], *arcs, best_effort=True, set={"ctx.n": "{{ output.data.count }}"})
    run.finish({"each": {1: BOOM}})
    assert run.decided("each").meta["targets"] == ["after"]
    assert run.context == {"n": 3}


# --- failures (dsl §3.7) ---------------------------------------------------------------------------------


def test_with_the_first_failed_row_nothing_further_starts() -> None:
    run = looping(list(range(40)), ERROR, spec=parallel(4, max_rows=3))
    frames = run.frames
    run.take(frames[0])
    run.take(frames[1])
    run.commit(frames[0], {1: BOOM})
    # What nobody had taken is gone; what somebody works on may end.
    assert run.frames == [frames[1]]
    assert run.stage().failure is not None
    assert (run.stage().open_frames, run.stage().in_use) == (1, 1)
    assert not run.of(kinds.LOOP_DONE)
    run.commit(frames[1])
    assert run.open == ["each#1/seal"]
    (done,) = run.of(kinds.LOOP_DONE)
    assert (done.meta["status"], done.meta["done"], done.meta["failed"]) == ("failed", 5, 1)
    run.finish()
    assert run.state.status is Status.COMPLETED
    assert run.decided("each").meta == {**run.decided("each").meta, "outcome": "handled", "targets": ["rescue"]}


def test_the_step_fails_with_the_error_of_the_first_failed_row() -> None:
    run = looping(list(range(8)), "after", spec=parallel(4, max_rows=2))
    first, second = run.frames[:2]
    run.take(second)
    run.commit(first, {1: Failure(kind="timeout", message="too slow", code="T")})
    run.commit(second, {2: BOOM})
    run.finish()
    assert run.state.status is Status.FAILED
    error = failure_of(run)
    assert (error["kind"], error["code"], error["message"]) == ("timeout", "T", "item 1: too slow")
    assert run.state.failure is not None
    assert run.state.failure["step"] == "each"
    assert run.issued == []


def test_a_commit_cannot_hide_the_failed_rows_of_a_loop_that_ends_at_the_first() -> None:
    run = looping(list(range(4)), "after", spec=parallel(1, max_rows=4))
    command = run.take("each#1/1")
    meta = {"outcomes": {"success": 3, "failed": 1, "skipped": 0}}
    result = Result(status="ok", reference=address_of({"first": 0, "records": [None] * 4}).reference)
    run._keep({"first": 0, "records": [None] * 4})
    tell(run, command, kinds.FRAME_COMMITTED, meta=meta, result=result.to_json())
    run.finish()
    assert run.state.status is Status.FAILED
    assert failure_of(run)["code"] == "rows_failed"


def test_a_frame_that_was_told_to_stop_is_no_reason_of_its_own() -> None:
    run = looping(list(range(8)), "after", spec=parallel(2, max_rows=4))
    first, second = run.frames
    run.take(second)
    run.commit(first, {0: BOOM})
    drain(run, second)
    run.finish()
    assert failure_of(run)["message"] == "item 0: boom"
    assert run.result()["results"] == [
        {"status": "error", "error": run.result()["results"][0]["error"]},
        *[None] * 7,
    ]
    assert run.result()["stats"] == {"total": 8, "success": 0, "failed": 1}


def test_a_failed_loop_shows_its_rows_to_the_arc_that_handles_it() -> None:
    arc = {
        **ERROR,
        "set": {
            "ctx.first": "{{ output.data.results[0] }}",
            "ctx.why": "{{ error.message }}",
            "ctx.n": "{{ each.stats }}",
        },
    }
    run = looping([1, 2, 3], arc).finish({"each": {1: BOOM}})
    assert run.state.status is Status.COMPLETED
    assert run.context == {"first": 0, "why": "item 1: boom", "n": {"total": 3, "success": 1, "failed": 1}}


def test_a_loop_that_does_its_best_runs_every_row() -> None:
    run = looping(list(range(10)), "after", spec=parallel(3, max_rows=2), best_effort=True)
    run.finish({"each": {1: BOOM, 7: BOOM}})
    assert run.state.status is Status.COMPLETED
    result = run.result()
    assert result["stats"] == {"total": 10, "success": 8, "failed": 2}
    assert (result["status"], result["count"]) == ("ok", 10)
    assert result["results"][7]["status"] == "error"
    assert result["results"][7]["error"]["message"] == "boom"
    assert [row for row in result["results"] if not isinstance(row, dict)] == [0, 2, 3, 4, 5, 6, 8, 9]
    assert run.of(kinds.LOOP_DONE)[0].meta["failed"] == 2


def branches(*, targets: tuple[JsonObject, ...] = ()) -> Looping:
    loop = loop_step("each", list(range(9)), *targets, spec=parallel(2, max_rows=2))
    return Looping(graph(step("start", "each", "other", mode="inclusive"), loop, step("other"), step("rescue")))


def test_a_loop_stops_when_another_branch_fails() -> None:
    run = branches(targets=(ERROR,))
    run.complete("start#1")
    run.take(run.frames[0])
    run.fail("other#1")
    assert run.state.failure is not None
    frames = run.frames
    run.commit(frames[0])
    assert run.frames == frames[1:]
    run.commit(frames[1])
    (done,) = run.of(kinds.LOOP_DONE)
    assert (done.meta["status"], done.meta["done"], done.meta["total"]) == ("stopped", 4, 9)
    assert run.finish().state.status is Status.FAILED
    assert run.state.failure["step"] == "other"
    assert run.issued == ["start#1", "other#1"]


def test_a_loop_that_is_being_opened_when_another_branch_fails_does_not_begin() -> None:
    loop = loop_step("each", "{{ steps[ctx.w | default('start')].rows }}")
    run = Looping(graph(step("start", "each", "other", mode="inclusive"), loop, step("other")))
    run.complete("start#1", {"rows": [1, 2]})
    run.fail("other#1")
    run.collect("each#1/eval/1")
    assert not run.of(kinds.FRAME_DISPATCHED)
    assert run.state.status is Status.FAILED


def test_the_final_step_runs_all_of_its_rows_after_a_failure() -> None:
    executor = {"spec": {"final_step": "last"}}
    run = Looping(graph(step("start"), loop_step("last", [1, 2, 3], spec=parallel(2)), executor=executor))
    run.fail("start#1")
    assert run.frames
    run.finish()
    assert run.state.status is Status.FAILED
    assert run.result("last")["stats"] == {"total": 3, "success": 3, "failed": 0}
    assert run.of(kinds.STAGE_OPENED)[0].meta["closing"] is True


# --- epochs ----------------------------------------------------------------------------------------------


def cycle(turns: int) -> Looping:
    again = {"step": "each", "when": f"{{{{ ctx.turns < {turns} }}}}"}
    count = {"ctx.turns": "{{ (ctx.turns | default(0)) + 1 }}"}
    return Looping(graph(loop_step("each", [1, 2], "turn", spec=parallel(2)), step("turn", again, "end", set=count)))


def test_a_loop_that_is_entered_again_is_a_new_loop() -> None:
    run = cycle(3).finish()
    assert run.state.status is Status.COMPLETED
    assert [event.stage_id for event in run.of(kinds.LOOP_STARTED)] == ["each#1", "each#2", "each#3"]
    assert [event.stage_id for event in run.of(kinds.LOOP_DONE)] == ["each#1", "each#2", "each#3"]
    keys = [event.transition_key for event in run.events]
    assert len(keys) == len(set(keys))
    assert run.state.runs["each"] == 3
    assert run.context == {"turns": 3}


def test_what_is_told_about_an_earlier_epoch_is_ignored() -> None:
    run = cycle(2)
    first = run.frames[0]
    command = run.take(first)
    late = run.commit(first)
    run.commit(run.frames[0])
    run.seal("each#1/seal")
    run.complete("turn#1")
    assert run.frames == ["each#2/1", "each#2/2"]
    before = run.state
    for event in (late, *[e for e in run.events if e.frame_id == first]):
        repeated = run.append(_draft(event))
        assert run.again(repeated).drafts == ()
    assert run.state == before.changed({"version": run.state.version, "last_event_id": run.state.last_event_id})
    assert command.run == 1


def _draft(event: Event) -> Draft:
    """What an event says, to be told once more."""
    return Draft(**{name: getattr(event, name) for name in Draft._fields})


# --- frames that are lost --------------------------------------------------------------------------------


def test_a_frame_whose_session_is_gone_is_given_out_again_behind_its_persisted_rows() -> None:
    run = looping(list(range(6)), "after", spec=parallel(1, max_rows=6), best_effort=True)
    (frame_id,) = run.frames
    run.beat(frame_id, {0: "zero", 1: BOOM})
    run.beat(frame_id, {2: "two"})
    run.take(frame_id)
    assert [event.transition_key for event in run.events[-3:]] == [
        "frame.abandoned/each#1/1/1",
        "frame.dispatched/each#1/1/2",
        "frame.started/each#1/1/2",
    ]
    abandoned, dispatched, _ = run.events[-3:]
    for event in (abandoned, dispatched):
        assert (event.meta["retry_mode"], event.meta["skipped"]) == ("behind_persisted_rows", 3)
    parts = run.body(frame_id)["stage"]["parts"]
    assert [part["ranges"] for part in parts] == [[[0, 1], [1, 2]], [[2, 3]]]
    assert (run.stage().open_frames, run.stage().in_use, run.stage().frames) == (1, 1, 1)
    run.commit(frame_id)
    assert run.stage().done == 6


def test_a_frame_that_is_to_be_repeated_as_a_whole_forgets_its_rows() -> None:
    run = looping(list(range(6)), spec=parallel(1, max_rows=6, retry_mode="whole_frame"))
    (frame_id,) = run.frames
    run.beat(frame_id, {0: "zero", 1: "one"})
    assert run.body(frame_id)["stage"]["parts"] == []
    run.take(frame_id)
    assert [event.meta["skipped"] for event in run.of(kinds.FRAME_ABANDONED)] == [0]
    assert run.of(kinds.FRAME_ABANDONED)[0].meta["retry_mode"] == "whole_frame"
    assert run.frame(frame_id).parts == ()
    run.beat(frame_id, {0: "zero again"})
    give_up(run, frame_id)
    assert run.of(kinds.FRAME_FAILED)[0].meta["outcomes"] == {"success": 1, "failed": 5, "skipped": 0}


def test_a_frame_that_was_claimed_too_often_fails_and_keeps_what_was_persisted() -> None:
    run = looping(list(range(4)), ERROR, spec=parallel(1, max_rows=4), best_effort=True)
    (frame_id,) = run.frames
    run.beat(frame_id, {0: "zero", 3: BOOM})
    run.take(frame_id)
    give_up(run, frame_id)
    failed = run.of(kinds.FRAME_FAILED)[0]
    assert failed.meta["outcomes"] == {"success": 1, "failed": 3, "skipped": 0}
    run.finish()
    result = run.result()
    assert result["stats"] == {"total": 4, "success": 1, "failed": 3}
    assert result["results"][0] == "zero"
    assert result["results"][3]["error"]["message"] == "boom"
    for row in result["results"][1:3]:
        assert row["error"]["code"] == "attempts_exhausted"
        assert "claimed 2 times" in row["error"]["message"]


def test_a_lost_frame_fails_a_loop_that_ends_at_the_first_failure() -> None:
    run = looping(list(range(4)), "after", spec=parallel(2, max_rows=2))
    run.take(run.frames[0])
    give_up(run, run.frames[0])
    run.finish()
    assert failure_of(run)["code"] == "attempts_exhausted"


def test_a_stale_claim_changes_nothing() -> None:
    run = looping(list(range(4)), spec=parallel(1, max_rows=4))
    (frame_id,) = run.frames
    run.take(frame_id)
    run.take(frame_id)
    assert (run.state.commands[frame_id].attempt, run.state.commands[frame_id].status) == (2, CommandStatus.CLAIMED)
    before = run.state
    for event in [e for e in run.events if e.frame_id == frame_id]:
        run.append(_draft(event))
    assert run.state == before.changed({"version": run.state.version, "last_event_id": run.state.last_event_id})


# --- deciding twice --------------------------------------------------------------------------------------


def test_deciding_twice_gives_the_same_bytes() -> None:
    run = looping(list(range(30)), "after", spec=parallel(4))
    command = run.take(run.frames[0])
    run.commit(command.command_id, ms=3.0)
    decided = [decide(run.state, event, run.playbook) for event in run.events for _ in range(2)]
    texts = [canonical_json([list(draft) for draft in decision.drafts]) for decision in decided]
    assert texts[::2] == texts[1::2]
    # What the state contains already is not decided again.
    assert set(texts) == {"[]"}
