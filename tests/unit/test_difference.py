"""What changed between two editions of a playbook."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.limits import DIFF_LINES_MAX
from noetl.core.playbook.difference import Difference, Edition, difference
from tests.support.yaml import HEAD, playbook

BASE = playbook("""
workload: {city: Bern, limit: 5}
workflow:
  - step: start
    tool: {kind: python, code: "result = 1", input: {n: 1}}
    next: {arcs: [{step: load, when: "{{ start.n > 1 }}"}, {step: end}]}
  - step: load
    tool:
      - {name: pull, kind: http, url: "http://x"}
      - {name: keep, kind: postgres, auth: pg, command: "SELECT 1"}
  - step: end
    tool: {kind: noop}
""")


def compare(old: str, new: str) -> Difference:
    return difference(Edition(label="v1", text=old), Edition(label="v2", text=new))


def changes(old: str, new: str) -> list[str]:
    return [str(change) for change in compare(old, new).changes]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("city: Bern", "city: Zug", ['~ workload city: "Bern" → "Zug"']),
        (", limit: 5", "", ["- workload limit"]),
        ("limit: 5", "limit: 5, day: 1", ["+ workload day"]),
        ("result = 1", "result = 2", ["~ tool start: code"]),
        ("{n: 1}", "{n: 2, m: 1}", ["~ tool start: input.n, input.m"]),
        ("kind: noop", "kind: python", ["~ tool end: kind noop → python"]),
        ("start.n > 1", "start.n > 2", ['~ arc start → load: when "{{ start.n > 1 }}" → "{{ start.n > 2 }}"']),
        (", {step: end}]", "]", ["- arc start → end"]),
        ("{step: end}]", "{step: end, when: 'x'}]", ['~ arc start → end: when null → "x"']),
        ("next: {arcs", "next: {spec: {mode: inclusive}, arcs", ["~ step start: next mode exclusive → inclusive"]),
        ("url: ", "method: POST, url: ", ["~ tool load/pull: method"]),
        ("name: keep", "name: store", ["+ tool load/store: postgres", "- tool load/keep: postgres"]),
        ("- step: end", "- step: end\n    set: {a: 1}", ["~ step end: set"]),
        ("metadata: {name: test}", "metadata: {name: test, path: lib/x}", ["+ document metadata.path"]),
        ("workload: {", "executor: {profile: local}\nworkload: {", ["+ document executor"]),
    ],
)
def test_each_change_is_told_in_the_words_of_the_language(before: str, after: str, said: list[str]) -> None:
    assert before in BASE
    assert changes(BASE, BASE.replace(before, after)) == said


def test_steps_that_come_and_go_are_told_with_what_they_do() -> None:
    shorter = BASE[: BASE.index("  - step: end")].replace(", {step: end}", "")
    assert "- step end: noop" in changes(BASE, shorter)
    assert "+ step end: noop" in changes(shorter, BASE)
    more = BASE.replace("  - step: load", "  - {step: mid, tool: {kind: http, url: x}}\n  - step: load")
    assert changes(BASE, more) == ["+ step mid: http"]


def test_the_order_of_steps_tasks_and_arcs_is_a_change() -> None:
    start = BASE.index("  - step: start")
    load, end = BASE.index("  - step: load"), BASE.index("  - step: end")
    swapped = BASE[:start] + BASE[load:end] + BASE[start:load] + BASE[end:]
    assert changes(BASE, swapped) == ["~ document workflow: the order of its steps"]
    lines = BASE.splitlines()
    at = next(number for number, line in enumerate(lines) if "name: pull" in line)
    lines[at], lines[at + 1] = lines[at + 1], lines[at]
    assert changes(BASE, "\n".join(lines)) == ["~ step load: the order of its tasks"]
    arcs = '[{step: end}, {step: load, when: "{{ start.n > 1 }}"}]'
    text = BASE.replace('[{step: load, when: "{{ start.n > 1 }}"}, {step: end}]', arcs)
    assert changes(BASE, text) == ["~ step start: the order of its arcs"]


def test_another_way_to_write_the_same_is_a_difference_of_lines_only() -> None:
    found = compare(BASE, BASE.replace("tool: {kind: noop}", "tool:\n      kind: noop") + "# a remark\n")
    assert found.changes == ()
    assert "+# a remark" in found.text
    found = compare(BASE, BASE.replace("\n", "\r\n"))
    assert "line ends only" in found.text


def test_the_same_is_no_difference() -> None:
    assert compare(BASE, BASE) == Difference(changes=(), text="")


def test_scripts_are_part_of_an_edition() -> None:
    old = Edition(label="v1", text=BASE, scripts={"a.py": "x = 1\n", "gone.py": "y\n"})
    new = Edition(label="v2", text=BASE, scripts={"a.py": "x = 2\n", "new.py": "z\n"})
    found = difference(old, new)
    assert [str(one) for one in found.changes] == [
        "~ script a.py: its text",
        "+ script new.py",
        "- script gone.py",
    ]
    assert "--- v1, script a.py\n+++ v2, script a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2" in found.text


@pytest.mark.parametrize("broken", ["", "{", "[1, 2]", "just text", HEAD + "workflow: 5", HEAD + "workflow: [1, {}]"])
def test_what_is_no_playbook_still_has_its_lines(broken: str) -> None:
    found = compare(BASE, broken)
    assert found.text.startswith("--- v1\n+++ v2\n")


def test_a_long_value_is_cut() -> None:
    [change] = changes(BASE, BASE.replace("city: Bern", f"city: {'x' * 500}"))
    assert len(change) < 200


def test_texts_of_any_size_take_a_bounded_time() -> None:
    old, new = "a\nb\n" * DIFF_LINES_MAX, "b\na\nc\n" * DIFF_LINES_MAX
    started = time.process_time()
    found = compare(old, new)
    assert time.process_time() - started < 10
    assert "are not compared" in found.text


@given(st.lists(st.sampled_from(["city: Bern", "kind: noop", "result = 1", "limit: 5", "- step: load"]), max_size=3))
def test_a_difference_is_never_silent(parts: list[str]) -> None:
    text = BASE
    for part in parts:
        text = text.replace(part, part + "x", 1)
    found = compare(BASE, text)
    assert bool(found.text) == (text != BASE)
    assert bool(found.changes) == bool(parts)
