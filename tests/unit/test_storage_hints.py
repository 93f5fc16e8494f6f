"""`output`, `output_select` and `spec.result`: which shapes are read, what they come to, and what never changes."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core.playbook.storage.hints import NO_HINTS, Hints, Selection
from noetl.core.playbook.storage.reading import path_of
from tests.support.playbooks import compiled, problems, workflow


def hints(keys: str, *, tool: str = "kind: noop") -> Hints:
    return compiled(workflow(f"- {{step: s, tool: {{{tool}}}, {keys}}}")).steps["s"].hints


@pytest.mark.parametrize(
    ("keys", "tool", "found"),
    [
        ("output: {}", "kind: noop", NO_HINTS),
        ("output: null", "kind: noop", NO_HINTS),
        ("output: {inline_max_bytes: 0}", "kind: noop", Hints(inline_max_bytes=0)),
        ("output: {inline_max_bytes: '10'}", "kind: noop", Hints(inline_max_bytes=10)),
        ("output: {preview_max_bytes: 5}", "kind: noop", Hints(preview_max_bytes=5)),
        ("output: {store: {kind: disk}}", "kind: noop", Hints(store="disk")),
        ("output: {store: {kind: Object}}", "kind: noop", Hints(store="disk")),
        ("output: {store: {kind: postgres}, scope: execution}", "kind: noop", Hints(store="db")),
        ("desc: x", "kind: noop, output: {store: {kind: kv}}", Hints(store="kv")),
        ("desc: x", "kind: noop, spec: {result: {inline_max_bytes: 7}}", Hints(inline_max_bytes=7)),
        (
            "output: {inline_max_bytes: 1}",
            "kind: noop, output: {inline_max_bytes: 2, store: {kind: kv}}, "
            "spec: {result: {inline_max_bytes: 3, preview_max_bytes: 4}}",
            Hints(inline_max_bytes=1, store="kv", preview_max_bytes=4),
        ),
        ("output_select: [n]", "kind: noop", Hints(select=(Selection(("n",)),))),
        (
            "output: {select: [{path: $.a.b, as: c}], output_select: [n]}",
            "kind: noop, output_select: [x.y, n]",
            Hints(select=(Selection(("x", "y")), Selection(("n",)), Selection(("a", "b"), "c"))),
        ),
    ],
)  # fmt: skip
def test_hints_are_read_from_the_step_and_its_only_tool(keys: str, tool: str, found: Hints) -> None:
    assert hints(keys, tool=tool) == found


def test_hints_of_a_task_in_a_list_belong_to_the_task() -> None:
    step = compiled(
        workflow(
            """
            - step: s
              tool: [{name: a, kind: noop, output: {inline_max_bytes: 5}}, {name: b, kind: noop}]
              output: {preview_max_bytes: 9}
            """
        )
    ).steps["s"]
    assert step.hints == Hints(preview_max_bytes=9)
    assert [task.hints for task in step.tasks] == [Hints(inline_max_bytes=5), NO_HINTS]
    assert step.kept == {"a"}


@pytest.mark.parametrize(
    ("expression", "kept"),
    [
        ("{{ s.a._ref }}", {"a"}),
        ("{{ s.results.b._size_bytes }}", {"b"}),
        ("{{ steps.s.a._store }}", {"a"}),
        ("{{ s._ref }}", set()),
        ("{{ s.a.x }}", set()),
    ],
)
def test_a_result_of_a_task_is_stored_on_its_own_when_somebody_asks_where_it_is(
    expression: str, kept: set[str]
) -> None:
    text = workflow(
        f"""
        - step: s
          tool: [{{name: a, kind: noop}}, {{name: b, kind: noop}}]
          next: [{{step: end, when: "{expression}"}}]
        - {{step: end, tool: {{kind: noop}}}}
        """
    )
    assert compiled(text).steps["s"].kept == kept


@pytest.mark.parametrize(
    ("keys", "code", "column"),
    [
        ("output: [a]", "output_shape", "output"),
        ("output: x", "output_shape", "output"),
        ("output: {store: kv}", "output_shape", "store"),
        ("output: {store: {kind: [a]}}", "output_shape", "kind"),
        ("output: {inline_max_bytes: -1}", "output_shape", "inline_max_bytes"),
        ("output: {inline_max_bytes: true}", "output_shape", "inline_max_bytes"),
        ('output: {inline_max_bytes: "{{ n }}"}', "output_shape", "inline_max_bytes"),
        ("output: {preview_max_bytes: 100000}", "output_shape", "preview_max_bytes"),
        ("output: {select: $.a}", "select_shape", "select"),
        ("output: {select: [{as: c}]}", "select_shape", "0"),
        ("output: {select: [{path: $.a, as: 'not a name'}]}", "select_shape", "as"),
        ("output: {select: [{path: 'a..b', as: c}]}", "select_shape", "0"),
        ("output: {output_select: [7]}", "select_shape", "0"),
        (f"output: {{output_select: [{', '.join(['a'] * 60)}]}}", "select_shape", "output_select"),
        (f"output: {{output_select: [{'x' * 900}]}}", "select_shape", "output_select"),
    ],
)
def test_a_shape_that_nobody_can_follow_is_refused_with_its_place(keys: str, code: str, column: str) -> None:
    (problem,) = problems(workflow(f"- {{step: s, tool: {{kind: noop}}, {keys}}}"))
    assert (problem.code, problem.step, problem.field) == (code, "s", column)
    assert problem.message.startswith("step 's'")
    assert problem.line is not None


def test_hints_of_a_tool_are_refused_with_their_place_too() -> None:
    (problem,) = problems(workflow("- {step: s, tool: {kind: noop, output_select: x}}"))
    assert (problem.code, problem.field) == ("select_shape", "output_select")
    (problem,) = problems(workflow("- {step: s, tool: [{name: t, kind: noop, spec: {result: 5}}]}"))
    assert (problem.code, problem.message.split(":")[0]) == ("output_shape", "step 's', task 't'")


@pytest.mark.parametrize(
    ("keys", "codes"),
    [
        ("output: {store: {kind: s3, bucket: b, prefix: p}}", {"not_applied", "store_kind"}),
        ("output: {store: {kind: gcs}}", {"store_kind"}),
        ("output: {store: {kind: memory}}", {"store_kind"}),
        ("output: {store: {kind: diks}}", {"store_kind"}),
        ("output: {store: {kind: kv, ttl: 5m, compression: gzip, credential: c}}", {"not_applied"}),
        ("output: {stor: {}}", {"unknown_key"}),
        ("output: {store: {kinds: kv}}", {"unknown_key"}),
    ],
)
def test_what_this_installation_lacks_is_a_warning(keys: str, codes: set[str]) -> None:
    playbook = compiled(workflow(f"- {{step: s, tool: {{kind: noop}}, {keys}}}"))
    assert {warning.code for warning in playbook.warnings} == codes
    assert playbook.steps["s"].hints.store in ("auto", "kv")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("name", ("name",)),
        ("a.b", ("a", "b")),
        ("$.a.b", ("a", "b")),
        ("$.rows[0].x", ("rows", 0, "x")),
        ("rows[-1]", ("rows", -1)),
        ("$['a b'].c", ("a b", "c")),
        ('a["b.c"]', ("a", "b.c")),
        ("$", None),
        ("", None),
        (".a", None),
        ("a..b", None),
        ("a[x]", None),
        ("a]", None),
    ],
)
def test_a_path_is_keys_and_indexes(text: str, path: Any) -> None:
    assert path_of(text) == path


@pytest.mark.parametrize(
    ("given", "size", "stored"),
    [
        (NO_HINTS, 65_536, None),
        (NO_HINTS, 65_537, {"store": "kv", "bytes": 65_537, "preview": 1024}),
        (NO_HINTS, 1_048_575, {"store": "kv", "bytes": 1_048_575, "preview": 1024}),
        (NO_HINTS, 1_048_576, {"store": "disk", "bytes": 1_048_576, "preview": 1024}),
        (Hints(inline_max_bytes=0), 1, {"store": "kv", "bytes": 1, "preview": 1024}),
        (Hints(inline_max_bytes=10, preview_max_bytes=3), 11, {"store": "kv", "bytes": 11, "preview": 3}),
        (Hints(inline_max_bytes=0, store="disk"), 1, {"store": "disk", "bytes": 1, "preview": 1024}),
    ],
)
def test_a_tier_is_a_matter_of_size_unless_the_hint_names_one(given: Hints, size: int, stored: Any) -> None:
    assert given.stored(size) == stored
