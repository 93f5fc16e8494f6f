"""Results made of results: list pipelines, loops and what failed are seen as the specification says (dsl §8.2-8.4)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.expression import (
    FailedView,
    LoopView,
    OutputView,
    PipelineView,
    ResultRows,
    compile_template,
    data_of,
    pack,
    plain,
    render,
    unaliased,
    unpack,
    view_of,
)
from noetl.core.expression.views import failed_view, loop_summary, pipeline_result, row_result

BODY = {"paging": {"next": 2}, "items": [1]}
HTTP = {"status_code": 200, "headers": {"etag": "x"}, "url": "u", "elapsed": 0.1, "data": BODY, "body": BODY}
ERROR = {"kind": "python", "message": "boom"}
KEYS = st.sampled_from(["a", "b", "data", "result", "status", "results", "_prev", "n", "body", "error"])
RESULTS = st.one_of(
    st.dictionaries(KEYS, st.one_of(st.integers(0, 9), st.just({"n": 1})), max_size=4),
    st.lists(st.integers(), max_size=2),
    st.integers(),
    st.none(),
    st.just(HTTP),
)


def ask(expression: str, **names: object) -> object:
    """The value of an expression, the same for the names after a journey to a child process."""
    template = compile_template("{{ " + expression + " }}")
    found = render(template, names)
    assert render(template, unpack(json.loads(json.dumps(pack(names))))) == found
    return found


# --- list pipelines --------------------------------------------------------------------------------------


@given(st.lists(st.tuples(KEYS, RESULTS), max_size=4, unique_by=lambda pair: pair[0]))
def test_a_pipeline_is_its_merged_mapping_without_merging_it(tasks: list[tuple[str, Any]]) -> None:
    order, results = [label for label, _ in tasks], dict(tasks)
    view, merged = PipelineView(order, results), pipeline_result(order, results)
    assert ask("s", s=view) == merged
    assert (len(view), set(view), view == merged) == (len(merged), set(merged), True)
    for key in ("a", "b", "data", "result", "status", "results", "_prev", "n", "body", "missing", "error"):
        expected = ask(f"s['{key}']", s=view_of(merged))
        assert ask(f"s['{key}']", s=view) == expected, key
        assert ask(f"s['{key}'] is defined", s=view) == ask(f"s['{key}'] is defined", s=view_of(merged))
        assert ask(f"'{key}' in s", s=view) == (key in merged)
        plain_data: Any = data_of(view)
        assert ask(f"s['{key}']", s=plain_data) == merged.get(key)


def test_labels_are_never_overwritten_by_merged_keys() -> None:
    view = PipelineView(["pull", "fold"], {"pull": {"fold": "of pull", "n": 1}, "fold": {"pull": "of fold", "n": 2}})
    assert ask("s.pull.n + s.fold.n", s=view) == 3
    assert ask("[s.n, s._prev.n, s.results.pull.fold]", s=view) == [2, 2, "of pull"]


def test_tasks_are_results_with_all_that_results_have() -> None:
    extras = {"pull": {"_ref": {"uri": "noetl://x"}}}
    view = PipelineView(["pull", "rows", "last"], {"pull": HTTP, "rows": [1, 2], "last": 7}, tasks=extras)
    for root in ("s", "s.results", "output", "output.data", "output.results"):
        names = {"s": view, "output": OutputView(status="ok", data=unaliased(view))}
        assert ask(f"{root}.pull.paging.next", **names) == 2
        assert ask(f"{root}.pull.status", **names) == "ok"
        assert ask(f"{root}.pull.result.status_code", **names) == 200
        assert ask(f"{root}.pull._ref.uri", **names) == "noetl://x"
        assert ask(f"{root}.rows.data", **names) == [1, 2]
        assert ask(f"{root}.last.result", **names) == 7
    assert ask("s.pull", s=view) == HTTP
    assert ask("s.data", s=view) == 7
    assert ask("s.status_code", s=view) == 200
    assert ask("s.paging is defined", s=view) is False


def test_an_empty_pipeline_has_nothing() -> None:
    assert ask("s", s=PipelineView([], {})) == {"results": {}, "_prev": None}
    assert ask("1 if s else 2", s=PipelineView([], {})) == 1


# --- what failed -----------------------------------------------------------------------------------------


@given(st.one_of(RESULTS, st.just({**HTTP, "status": "x"})))
def test_a_failed_result_shows_its_error_beside_what_there_is(value: Any) -> None:
    view, merged = FailedView(ERROR, view_of(value)), failed_view(ERROR, value)
    assert ask("s", s=view) == merged
    assert ask("[s.status, s.error.kind]", s=view) == ["error", "python"]
    for key in ("a", "b", "n", "data", "result", "missing", "results"):
        assert ask(f"s.{key}", s=view) == ask(f"s.{key}", s=view_of(merged)), key


def test_the_body_of_an_http_result_that_failed_is_searched() -> None:
    for view in (FailedView(ERROR, view_of(HTTP)), view_of({**HTTP, "status": "error", "error": ERROR})):
        assert ask("s.paging.next", s=view) == 2
        assert ask("[s.status, s.status_code, s.error.message]", s=view) == ["error", 200, "boom"]
    failed = FailedView(ERROR, PipelineView(["pull"], {"pull": HTTP}))
    assert ask("s.pull.paging.next", s=failed) == 2
    assert ask("[s.status, s.pull.status]", s=failed) == ["error", "ok"]


# --- loops -----------------------------------------------------------------------------------------------

RECORDS: list[Any] = [
    {"v": {"n": 1}},
    {"v": HTTP},
    None,
    {"v": None, "e": ERROR},
    {"p": {"order": ["a"], "results": {"a": {"n": 5}}}},
    {"v": [1, 2]},
]
COUNTS = {"total": 6, "success": 5, "failed": 1, "status": "ok"}


def looped(records: list[Any]) -> LoopView:
    return LoopView(loop_summary(COUNTS), ResultRows(records))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("s.results[0].data.n", 1),
        ("s.results[0].status", "ok"),
        ("s.results[1].paging.next", 2),
        ("s.data[1].paging.next", 2),
        ("s.result[-1][1]", 2),
        ("s.results[2]", None),
        ("s.results[2].x is defined", False),
        ("s.results[3].error.message", "boom"),
        ("s.results[3].status", "error"),
        ("s.results[4].a.n + s.results[4].n", 10),
        ("s.results | length", 6),
        ("(s.results | first).status", "ok"),
        ("s.results[3:5] | map(attribute='status') | list", ["error", "ok"]),
        ("s.results | selectattr('status', 'equalto', 'error') | list | length", 1),
        ("s.results | rejectattr('error', 'defined') | list | length", 5),
        ("s.stats.failed + s.count", 7),
        ("s.status", "ok"),
        ("s.missing is defined", False),
        ("s.results.missing is defined", False),
        ("s is mapping and s.results is sequence", True),
        ("1 if s.results else 2", 1),
    ],
)
def test_rows_of_a_loop_are_results(expression: str, value: object) -> None:
    assert ask(expression, s=looped(RECORDS)) == value


def test_a_loop_handed_over_is_plain() -> None:
    rows = [row_result(record) for record in RECORDS]
    assert ask("s.results", s=looped(RECORDS)) == rows
    assert ask("s", s=looped(RECORDS)) == {**loop_summary(COUNTS), "results": rows}
    assert ask("s.results[0]", s=looped(RECORDS)) == {"n": 1}
    assert ask("s.results + [1]", s=looped(RECORDS)) == [*rows, 1]
    assert ask("{'n': 1} in s.results", s=looped(RECORDS)) is True
    assert ask("s.results | tojson | fromjson", s=looped(RECORDS)) == rows


def test_output_of_a_loop_is_its_mapping_and_data_its_rows() -> None:
    names = {"s": looped(RECORDS), "output": OutputView(status="ok", data=unaliased(looped(RECORDS)))}
    assert ask("output.data.stats.total", **names) == 6
    assert ask("output.results[1].paging.next", **names) == 2
    assert ask("s.data == output.data.results", **names) is True
    failed = FailedView(ERROR, looped(RECORDS))
    assert ask("s.data[0].n + s.results[0].n", s=failed) == 2
    assert ask("[s.status, s.error.kind, s.count]", s=failed) == ["error", "python", 6]


# --- the envelope ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [{"status": "mine", "rows": [1], "data": 5}, [1, 2], 7, None])
def test_an_unknown_name_of_the_envelope_falls_through_to_its_data(data: Any) -> None:
    output = OutputView(status="error", data=data, error=ERROR)
    assert ask("output.status", output=output) == "error"
    assert ask("output.data", output=output) == data
    assert ask("[output.result, output.response]", output=output) == [data, data]
    assert ask("output.rows is defined", output=output) is isinstance(data, dict)
    assert plain(output) == ask("output", output=output)
