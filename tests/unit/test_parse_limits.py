"""`limits` at the root and `limit` of a task (dsl §1.1)."""

from __future__ import annotations

import pytest

from noetl.core.limits import LIMITS_PER_PLAYBOOK_MAX
from noetl.core.permits.rates import Allowance
from noetl.core.playbook.difference import Edition, difference
from tests.support.playbooks import compiled, document, problems

LIMITS = (
    "limits: {api: {rate: 50/s, concurrency: 20}, slow: {rate: 6/min}, few: {concurrency: 2, desc: of the vendor}}\n"
)


def flow(task: str, *, more: str = "") -> str:
    return document(f"{LIMITS}{more}workflow:\n  - step: load\n    tool: {task}\n")


def test_limits_are_read_by_name() -> None:
    assert compiled(flow("{kind: noop, limit: api}")).playbook.limits == {
        "api": Allowance(rate=50.0, concurrency=20),
        "slow": Allowance(rate=0.1),
        "few": Allowance(concurrency=2),
    }


@pytest.mark.parametrize(
    "task",
    [
        "{kind: http, limit: api, url: 'http://x'}",
        "[{name: get, kind: http, limit: api, url: 'http://x'}]",
        "[get: {kind: python, limit: api, code: 'result = 1'}]",
        "{kind: workbook, name: shared}",
        "{kind: workbook, name: other, limit: api}",
    ],
)
def test_a_task_of_any_kind_and_shape_names_its_limit(task: str) -> None:
    more = "workbook: {shared: {tool: {kind: noop, limit: api}}, other: {tool: {kind: noop, limit: slow}}}\n"
    (found,) = compiled(flow(task, more=more)).steps["load"].tasks
    assert found.limit == "api"
    assert "limit" not in found.fields


def test_an_unknown_limit_is_an_error_with_its_place_and_what_was_meant() -> None:
    (problem,) = problems(flow("\n      kind: noop\n      limit: apo"))
    assert problem.code == "unknown_limit"
    assert "step 'load', task 'load_task': the playbook has no limit 'apo' (did you mean 'api'?)" in problem.message
    assert (problem.line, problem.column, problem.step, problem.field) == (9, 14, "load", "limit")


def test_without_anything_alike_it_says_how_to_declare_one() -> None:
    (problem,) = problems(flow("{kind: noop, limit: warehouse}"))
    assert "declare it at the root, as in `limits: {warehouse: {rate: 50/s}}`" in problem.message


def test_an_unknown_limit_of_a_workbook_entry_points_to_the_entry() -> None:
    more = "workbook:\n  shared:\n    tool: {kind: noop, limit: ip}\n"
    (problem,) = problems(flow("{kind: workbook, name: shared}", more=more))
    assert (problem.code, problem.line) == ("unknown_limit", 7)


@pytest.mark.parametrize("limit", ["'{{ workload.which }}'", "{rate: 5/s}", "3"])
def test_the_name_of_a_limit_is_written_out(limit: str) -> None:
    (problem,) = problems(flow(f"{{kind: noop, limit: {limit}}}"))
    assert problem.code == "limit_shape"


def test_a_limit_that_is_declared_wrongly_is_one_error_and_not_one_for_each_task() -> None:
    text = document("limits: {api: {rate: often}}\nworkflow: [{step: a, tool: {kind: noop, limit: api}}]")
    assert [problem.code for problem in problems(text)] == ["limit_rate"]


def test_a_limit_that_nobody_uses_and_one_that_cannot_hold_are_told() -> None:
    text = document(
        "limits: {api: {concurrency: 2}, spare: {rate: 1/s}}\n"
        "workflow: [{step: a, tool: {kind: playbook, path: b, limit: api}}]"
    )
    found = {problem.code: problem.message for problem in compiled(text).warnings}
    assert found["unused_limit"] == "limit 'spare': no task uses it"
    assert "given back when it has started" in found["limit_of_playbook"]


def test_an_unknown_key_of_a_limit_is_told_with_a_suggestion() -> None:
    text = document("limits: {api: {rat: 3, rate: 5/s}}\nworkflow: [{step: a, tool: {kind: noop, limit: api}}]")
    (warning,) = compiled(text).warnings
    assert warning.message == "limit 'api': unknown key 'rat' is ignored (did you mean 'rate'?)"


def test_too_many_limits_are_refused() -> None:
    many = ", ".join(f"l{n}: {{rate: 1/s}}" for n in range(LIMITS_PER_PLAYBOOK_MAX + 1))
    found = problems(document(f"limits: {{{many}}}\nworkflow: [{{step: a, next: end}}]"))
    assert [problem.code for problem in found] == ["limits_shape"]


def test_a_change_of_a_limit_is_told_in_the_words_of_the_language() -> None:
    old, new = flow("{kind: noop, limit: api}"), flow("{kind: noop, limit: slow}").replace("50/s", "40/s")
    found = difference(Edition(label="1", text=old), Edition(label="2", text=new))
    told = [str(change) for change in found.changes]
    assert any("limits" in line for line in told)
    assert any("load" in line and "limit" in line for line in told)
