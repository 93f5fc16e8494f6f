"""Where results of tasks are stored, who stored what is missing, and how often a run goes back for it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from noetl.cli.data.trace import _task
from noetl.core import limits
from noetl.core.errors import (
    REFERENCE_NOT_AVAILABLE,
    Failure,
    LeaseLost,
    PayloadCorrupt,
    PayloadMissing,
    StoreRefused,
)
from noetl.core.limits import REFERENCE_RETURNS_MAX
from noetl.core.reference import address
from noetl.core.results.parts import Parted, StoredPart
from noetl.engine.stored.unavailable import digest_of, failed_by, is_unavailable, told, unavailable, unstored
from noetl.engine.work.pipeline.outcome import TaskOutcome
from noetl.engine.work.pipeline.pointers import pointers_of, with_pointers
from noetl.engine.work.pipeline.producers import Producers
from noetl.engine.work.pipeline.run import Run
from noetl.engine.work.pipeline.scope import PipelineScope

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
NAMES: dict[str, object] = {"workload": {}, "steps": {}, "iter": {}}


def reference(text: str, **members: Any) -> dict[str, Any]:
    found = address(text.encode(), media_type="text/plain", store="file", **OWNER).reference.to_json()
    return {**found, **members}


def outcome(value: object, stored: dict[str, Any] | None = None) -> TaskOutcome:
    return TaskOutcome(
        value=value, failure=None, attempt=1, duration_ms=1.0, started_at="", reference=stored, extras=None
    )


def missing(document: dict[str, Any]) -> PayloadMissing:
    return PayloadMissing(f"{document['uri']} is not in the file store")


# --- pointers --------------------------------------------------------------------------------------------


def test_pointers_are_those_of_the_result_of_its_parts_and_of_what_a_tool_stored() -> None:
    own, part, body, put = (reference(name) for name in ("own", "part", "body", "put"))
    assert pointers_of({"n": 1}, None) == ()
    assert pointers_of({"n": 1}, own) == (own,)
    assert pointers_of({"data": {"_ref": body}}, None) == (body,)
    assert pointers_of({"_ref": body, "ref": put, "other": {"_ref": {"sha256": "x"}}}, own) == (own, body, put)
    assert pointers_of(StoredPart(part), own) == (own, part)
    assert pointers_of(Parted({"rows": None, "_ref": body}, {("rows",): StoredPart(part)}), None) == (part, body)
    assert pointers_of([{"_ref": body}], None) == ()


def test_a_scope_points_to_the_last_result_of_each_task_and_begins_empty() -> None:
    one, two = reference("one"), reference("two")
    scope, run = PipelineScope(dict(NAMES), frozenset()), Run()
    scope.restore(run)
    assert (scope.task_pointers, scope._prev) == ({}, ())
    scope.outcome(run, "a", outcome({"_ref": one}))
    scope.outcome(run, "b", outcome({"n": 1}, two))
    assert (scope.task_pointers, scope._prev) == ({"a": (one,), "b": (two,)}, (two,))
    assert (scope.producer_of(one["sha256"]), scope.producer_of("0"), scope.producer_of(None)) == ("a", None, None)
    scope.outcome(run, "a", outcome({"n": 2}))
    assert (scope.task_pointers, scope._prev) == ({"b": (two,)}, ())
    scope.restore(run)
    assert scope.task_pointers == {}


def test_pointers_come_back_with_a_resume_point() -> None:
    one, two = reference("one"), reference("two", index={"sha256": "f" * 64, "bytes": 1})
    run = Run(order=["a", "b"], results={"a": {"_ref": one}, "b": {"n": 1}}, stored={"b": {"_ref": two}})
    scope = PipelineScope(dict(NAMES), frozenset())
    scope.restore(Run(**run.to_json()))  # type: ignore[arg-type]
    assert scope.task_pointers == {"a": (one,), "b": (two,)}
    assert scope._prev == (two,)
    assert scope.producer_of("f" * 64) == "b"


def test_the_last_entry_of_a_task_says_where_its_result_is() -> None:
    one = reference("one", row_count=3)
    run = Run(order=["a"], results={"a": {"_ref": one}, "b": 1})
    tasks: list[dict[str, object]] = [{"task": "a", "ms": 1}, {"task": "a", "ms": 2}, {"task": "b", "ms": 3}]
    assert with_pointers(tasks, run) == [
        {"task": "a", "ms": 1},
        {
            "task": "a",
            "ms": 2,
            "stored": {name: one[name] for name in ("sha256", "media_type", "bytes", "row_count", "store")},
        },
        {"task": "b", "ms": 3},
    ]


def test_of_a_result_in_several_parts_every_part_is_told_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = reference("good", row_count=3), reference("bad", row_count=1)
    parts = {("good", "rows"): StoredPart(good), ("quarantine", "good", "rows"): StoredPart(bad)}
    base = {"good": {"rows": None}, "quarantine": {"good": {"rows": None}}}
    run = Run(order=["a"], results={"a": Parted(base, parts)})
    (entry,) = with_pointers([{"task": "a", "ms": 1}], run)
    told: Any = entry["parts"]
    assert [(one["name"], one["sha256"], one["row_count"]) for one in told] == [
        ("good.rows", good["sha256"], 3),
        ("quarantine.good.rows", bad["sha256"], 1),
    ]
    lines = list(_task({**entry}))
    assert [line.split()[1] for line in lines] == ["a", "good.rows", "quarantine.good.rows"]
    assert bad["sha256"][:12] in lines[2]
    monkeypatch.setattr(limits, "RESULT_PARTS_TOLD_MAX", 1)
    (entry,) = with_pointers([{"task": "a", "ms": 1}], run)
    assert (entry["parts"], entry["parts_more"]) == (told[:1], 1)
    assert list(_task(entry))[-1] == "  … 1 more parts"


# --- failures --------------------------------------------------------------------------------------------


def test_an_error_of_a_store_says_which_payload_it_is_about() -> None:
    document = reference("x")
    assert digest_of(missing(document)) == document["sha256"]
    assert digest_of(PayloadCorrupt(f"there is no payload {document['sha256']}")) == document["sha256"]
    assert digest_of(PayloadMissing("nothing")) is None
    assert digest_of(PayloadMissing("a" * 65)) is None


@pytest.mark.parametrize("error", [missing(reference("x")), PayloadCorrupt("damaged"), StoreRefused("closed")])
def test_errors_of_stores_are_references_that_are_not_available(error: Any) -> None:
    failure = failed_by(error, "s", "t")
    assert (failure.kind, failure.code) == ("missing_reference", REFERENCE_NOT_AVAILABLE)
    assert is_unavailable(failure)
    assert is_unavailable(told(error))
    assert "step 's', task 't'" in failure.message


def test_other_errors_are_what_they_were() -> None:
    for failure in (failed_by(LeaseLost("gone"), "s", "t"), told(LeaseLost("gone"))):
        assert (failure.kind, failure.code, is_unavailable(failure)) == ("unknown", "lease_lost", False)
    assert not is_unavailable(None)


# --- going back ------------------------------------------------------------------------------------------


def producers(run: Run, steps: dict[str, Any] | None = None) -> Producers:
    step: Any = SimpleNamespace(name="s", tasks=[SimpleNamespace(label=label) for label in ("a", "b", "c")])
    scope = PipelineScope(dict(NAMES), frozenset())
    scope.restore(run)
    return Producers(step, run, scope, {"steps": steps or {}})


def test_a_run_goes_back_to_who_stored_what_is_missing_and_not_for_ever() -> None:
    one = reference("one")
    run = Run(index=2, order=["a", "b"], results={"a": 0, "b": {"_ref": one}})
    found, failure = producers(run), unavailable(missing(one), "c")
    for count in range(REFERENCE_RETURNS_MAX):
        run.index = 2
        assert found.goes_back(failure)
        assert (run.index, run.returns) == (1, count + 1)
    assert not found.goes_back(failure)
    named = found.named(failure)
    assert named is not None
    assert named.details == {"sha256": one["sha256"], "step": "s", "task": "b"}
    assert "task 'b' of this step" in named.message
    assert found.named(named) == named


def test_what_cannot_be_stored_is_made_again_by_the_task_itself() -> None:
    run = Run(index=0)
    assert producers(run).goes_back(unstored(OSError("full"), "s", "a"))
    assert (run.index, run.returns) == (0, 1)


def test_what_another_step_gave_is_not_made_again() -> None:
    one = reference("one")
    run = Run(index=2)
    found = producers(run, {"x": {"ref": None}, "y": {"ref": one}})
    failure = unavailable(missing(one), "c")
    assert not found.goes_back(failure)
    named = found.named(failure)
    assert named is not None
    assert named.details == {"sha256": one["sha256"], "step": "y", "task": None}
    unknown = unavailable(missing(reference("two")), "c")
    assert found.named(unknown) == unknown


def test_other_failures_leave_a_run_alone() -> None:
    run = Run(index=2)
    found, failure = producers(run), Failure(kind="python", message="boom")
    assert not found.goes_back(failure)
    assert not found.goes_back(None)
    assert found.named(failure) == failure
    assert found.named(None) is None
    without_digest = replace(unavailable(PayloadMissing("x"), "c"))
    assert not found.goes_back(without_digest)
    assert (run.index, run.returns) == (2, 0)
