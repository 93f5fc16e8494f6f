"""The document that people are shown of an execution: complete when it is small, and small when there is too much."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core.codec import ordered_bytes
from noetl.core.execution.looping.ends import closed
from noetl.core.execution.state import (
    Command,
    CommandStatus,
    Entry,
    ExecutionState,
    Frame,
    Looped,
    Shards,
    Stage,
    StagePolicy,
    Status,
    StepResult,
)
from noetl.core.execution.view.document import commands_of, execution_view
from noetl.core.limits import VIEW_COMMANDS_MAX, VIEW_LOOPS_MAX, VIEW_STEPS_MAX

COLLECTION = Entry(reference={"uri": "noetl://tenant/x/payload/y", "sha256": "0"})
OPEN = Stage("each#2", "each", 2, collection=COLLECTION, total=100, done=40, failed=3, frames=9, open_frames=4)


def state(**fields: Any) -> ExecutionState:
    return ExecutionState(**{"execution_id": 7, "path": "p", **fields})


def command(command_id: str, **fields: Any) -> Command:
    step, _, run = command_id.partition("#")
    given = {"kind": "step", "status": CommandStatus.ISSUED, "step": step, "run": int(run.partition("/")[0]), **fields}
    return Command(command_id=command_id, **given)


def test_an_open_loop_shows_its_progress() -> None:
    view = execution_view(state(loop_state={"each": OPEN}, issued_steps={"each": 2}, runs={"each": 2}))
    assert view["progress"] == {
        "loop.each": {
            "loop_id": "each#2",
            "total": 100,
            "done": 40,
            "failed": 3,
            "collection_ref": "noetl://tenant/x/payload/y",
            "completed": False,
        }
    }
    assert view["steps"]["each"] == {
        "runs": 2,
        "status": "running",
        "loop": {
            **{"total": 100, "done": 40, "failed": 3, "frames": {"given_out": 9, "open": 4}},
            "profile": {"wall_ms": 0.0, "render_ms": 0, "tool_ms": 0, "limit_ms": 0, "tasks": {}, "kinds": {}},
        },
    }


@pytest.mark.parametrize("is_ok", [True, False])
def test_a_closed_loop_keeps_its_counters(is_ok: bool) -> None:
    before = state(loop_state={"each": OPEN}, runs={"each": 2}, completed_steps={"each": 2})
    after = before.changed(closed(before, "each", is_ok=is_ok))
    assert after.loop_state == {}
    view = execution_view(after)
    assert view["progress"]["loop.each"] == {
        "loop_id": "each#2",
        "total": 100,
        "done": 40,
        "failed": 3,
        "collection_ref": "noetl://tenant/x/payload/y",
        "completed": True,
    }
    assert view["steps"]["each"]["loop"]["frames"] == {"given_out": 9, "open": 0}
    # A further run of the step is another loop: those counters are not its own.
    again = after.changed({"runs": {"each": 3}, "issued_steps": {"each": 3}})
    assert "loop" not in execution_view(again)["steps"]["each"]


def test_a_fanout_counts_its_shards() -> None:
    policy = StagePolicy(is_sequential=False, max_in_flight=4, frame_rows=10, shard_retries=2)
    shards = Shards(succeeded=3, failed=1)
    stage = OPEN._replace(step="out", stage_id="out#1", run=1, policy=policy, total=95, shards=shards)
    running = state(loop_state={"out": stage}, runs={"out": 1})
    assert execution_view(running)["progress"] == {
        "fanout.out": {"loop_id": "out#1", "total_shards": 10, "done": 4, "failed": 1, "status": "running"}
    }
    ended = running.changed(closed(running, "out", is_ok=False))
    assert execution_view(ended)["progress"] == {
        "fanout.out": {"loop_id": "out#1", "total_shards": 10, "done": 4, "failed": 1, "status": "failed"}
    }


def test_steps_stand_in_the_order_of_their_first_turn_with_what_became_of_them() -> None:
    results = {"b": StepResult(1, "error", None, {}), "c": StepResult(1, "ok", None, {}, jobs=({"rows": 3},))}
    view = execution_view(
        state(
            runs={"b": 1, "a": 1, "c": 1, "d": 1},
            issued_steps={"d": 1, "e": 1},
            skipped_steps={"a": 1},
            completed_steps={"c": 1},
            step_results=results,
            commands={"d#1": command("d#1", status=CommandStatus.CLAIMED, attempt=2)},
        )
    )
    found = {name: step["status"] for name, step in view["steps"].items()}
    assert list(found.items()) == [
        ("b", "failed"),
        ("a", "skipped"),
        ("c", "completed"),
        ("d", "claimed"),
        ("e", "deciding"),
    ]
    assert view["steps"]["c"]["jobs"] == [{"rows": 3}]
    assert view["commands"] == [{"command_id": "d#1", "step": "d", "kind": "step", "status": "claimed", "attempt": 2}]
    assert view["left_out"] == {}


def test_what_is_shown_of_commands_is_enough_to_know_who_could_take_them() -> None:
    open_ = {
        "a#1": command("a#1", attempt=3),
        "b#1/1": command("b#1/1", kind="frame", frame=Frame(1, 0, 25, 4)),
        "c#1": command("c#1", status=CommandStatus.WAITING, due_at="2026-01-01T00:00:00.000000Z"),
    }
    found = commands_of(execution_view(state(commands=open_)))
    assert [(one.command_id, one.step, one.kind, one.status, one.attempt) for one in found] == [
        ("a#1", "a", "step", CommandStatus.ISSUED, 3),
        ("b#1/1", "b", "frame", CommandStatus.ISSUED, 0),
        ("c#1", "c", "step", CommandStatus.WAITING, 0),
    ]
    assert [one.frame is not None for one in found] == [False, True, False]


def test_why_it_failed_was_cancelled_or_is_being_cancelled() -> None:
    failed = state(failure={"step": "a", "error": {"kind": "x", "message": "m"}}, status=Status.FAILED)
    assert execution_view(failed)["error"] == {"step": "a", "kind": "x", "message": "m"}
    result = {"status": "error", "reference": None, "parent_ref": None, "context": {"error": {"kind": "cancelled"}}}
    cancelled = state(status=Status.CANCELLED, result=result)
    assert execution_view(cancelled)["error"] == {"step": None, "kind": "cancelled"}
    assert execution_view(state(cancelling={"reason": "enough"}))["cancelling"] == {"reason": "enough"}
    result = {"status": "ok", "reference": {"uri": "u"}, "parent_ref": None, "context": {}}
    done = execution_view(state(status=Status.COMPLETED, result=result))
    assert done["outcome"] == {"status": "ok", "reference": {"uri": "u"}}


def test_a_large_state_gives_a_small_document_that_says_what_is_left_out() -> None:
    many = 10_000
    job = {"text": "x" * 4_000}
    huge = state(
        runs={f"s{n}": 1 for n in range(many)},
        issued_steps={"s17": 1, "s9999": 1},
        completed_steps={f"s{n}": 1 for n in range(many)},
        step_results={f"s{n}": StepResult(1, "ok", None, {}, jobs=(job,) * 20) for n in range(many)},
        commands={f"s{n}#1": command(f"s{n}#1", status=CommandStatus.CLAIMED) for n in range(many)}
        | {"late#1": command("late#1")},
        loop_state={f"l{n}": OPEN._replace(total=1_000_000, frames=1_000_000) for n in range(many)},
        ended_loops={f"e{n}": Looped(f"e{n}#1", 1) for n in range(many)},
    )
    view = execution_view(huge)
    assert len(ordered_bytes(view)) < 400_000
    assert len(view["steps"]) == VIEW_STEPS_MAX
    assert {"s17", "s9999", "s9998"} <= view["steps"].keys(), "what is live is shown, then what was last"
    assert "s18" not in view["steps"]
    assert view["commands"][0]["command_id"] == "late#1", "what nobody has taken comes first"
    assert view["left_out"] == {
        "steps": many - VIEW_STEPS_MAX,
        "commands": many + 1 - VIEW_COMMANDS_MAX,
        "progress": 2 * many - VIEW_LOOPS_MAX,
    }
    # The last of the closed ones are shown when there is room.
    few = execution_view(huge.changed({"loop_state": {"l0": OPEN}}))
    assert [*few["progress"]] == ["loop.l0", *(f"loop.e{n}" for n in range(many - VIEW_LOOPS_MAX + 1, many))]
