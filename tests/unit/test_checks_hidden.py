"""Names of a playbook that a name of the language hides are told when somebody reads them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.playbooks import compiled, graph, step

NOOP = {"kind": "noop"}


def hidden(*steps: Any, **root: Any) -> list[str]:
    found = [warning for warning in compiled(graph(*steps, **root)).warnings if warning.code == "hidden_name"]
    assert all(warning.line is not None and warning.line > 1 for warning in found)
    return [warning.message for warning in found]


def reading(expression: str, **keys: Any) -> Any:
    return step("s", tool={"kind": "noop", "result": expression}, **keys)


def test_a_key_of_the_workload_that_is_read_by_a_reserved_name_is_told() -> None:
    for one in (reading("{{ env }}"), step("s", set={"x": "{{ env.x }}"}), step("s", {"step": "end", "when": "env"})):
        (message,) = hidden(one, workload={"env": "dev", "city": "Bern"})
        assert message == "workload key 'env' is hidden by the name 'env' of the language: read it as workload.env"


def test_who_reads_it_by_its_full_name_or_not_at_all_is_left_alone() -> None:
    assert (
        hidden(reading("{{ workload.env }}{{ ctx.path }}{{ city }}"), workload={"env": 1, "path": 2, "city": 3}) == []
    )


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (
            {**reading("{{ path }}"), "loop": {"in": [1], "iterator": "path"}},
            "step 's': the iterator 'path' is hidden by the name 'path' of the language: read it as iter.path",
        ),
        (
            {"step": "s", "tool": [{"name": "input", **NOOP}, {"name": "b", **NOOP, "result": "{{ input.x }}"}]},
            "step 's': the label 'input' is hidden by the name 'input' of the language: read it as results.input",
        ),
        (
            {"step": "version", "tool": NOOP, "set": {"x": "{{ version.n }}"}},
            "step 'version': its own name 'version' is hidden by the name 'version' of the language: "
            "read its result as steps['version']",
        ),
    ],
)
def test_iterators_labels_and_steps_are_told(one: Any, says: str) -> None:
    assert hidden(one) == [says]


def test_names_that_are_reserved_elsewhere_only_are_left_alone() -> None:
    tasks = [{"name": "frame", **NOOP}, {"name": "b", **NOOP, "result": "{{ frame.x }}"}]
    assert hidden({"step": "s", "tool": tasks}, workload={"input": 1, "spec": 2}) == []
    assert hidden({**reading("{{ row }}"), "loop": {"in": [1], "iterator": "row"}}) == []
