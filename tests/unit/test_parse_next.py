"""`next` in its shapes: arcs and a mode (dsl §3.1, §3.2)."""

from __future__ import annotations

import pytest

from noetl.core.playbook.model import Arc, Mode, Next
from noetl.core.playbook.reading.root import ParsedPlaybook, parse_playbook
from tests.support.playbooks import FILE, INSTALLED, workflow


def parsed(following: str, spec: str = "{}") -> ParsedPlaybook:
    others = "- {step: a, next: end}\n- {step: b, next: end}"
    text = f"- {{step: s, tool: {{kind: noop}}, spec: {spec}, next: {following}}}\n{others}"
    return parse_playbook(workflow(text), file=FILE, kinds=INSTALLED)


def read(following: str, spec: str = "{}") -> Next:
    found = parsed(following, spec).playbook.steps[0].next
    assert found is not None
    return found


def codes(following: str, spec: str = "{}") -> list[str]:
    return [problem.code for problem in parsed(following, spec).warnings if problem.step == "s"]


TWO = (Arc(step="a"), Arc(step="b"))


@pytest.mark.parametrize(
    ("following", "mode", "arcs"),
    [
        ("{spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}", Mode.INCLUSIVE, TWO),
        ("{spec: {mode: all}, arcs: [{step: a}, {step: b}]}", Mode.INCLUSIVE, TWO),
        ("{spec: {mode: exclusive}, arcs: [{step: a}, {step: b}]}", Mode.EXCLUSIVE, TWO),
        ("{spec: {}, arcs: [{step: a}, b]}", Mode.EXCLUSIVE, TWO),
        ("{arcs: [{step: a}, {step: b}]}", Mode.EXCLUSIVE, TWO),
        ("{arcs: []}", Mode.EXCLUSIVE, ()),
        ("a", Mode.EXCLUSIVE, TWO[:1]),
        ("end", Mode.EXCLUSIVE, (Arc(step="end"),)),
        ("[a, b]", Mode.INCLUSIVE, TWO),
        ("[a]", Mode.INCLUSIVE, TWO[:1]),
        ("[]", Mode.EXCLUSIVE, ()),
        ("[{step: a}, {step: b}]", Mode.EXCLUSIVE, TWO),
        ("[a, {step: b}]", Mode.EXCLUSIVE, TWO),
        ("null", Mode.EXCLUSIVE, ()),
    ],
)
def test_every_shape_of_next_gives_arcs_and_a_mode(following: str, mode: Mode, arcs: tuple[Arc, ...]) -> None:
    assert read(following) == Next(mode=mode, arcs=arcs)
    assert codes(following) == []


@pytest.mark.parametrize("following", ["a", "[a, b]", "[{step: a}]", "{step: a}", "{arcs: [a]}", "null"])
def test_a_step_may_say_the_mode_for_every_shape(following: str) -> None:
    assert read(following, "{next_mode: inclusive}").mode is Mode.INCLUSIVE
    assert read(following, "{next_mode: exclusive}").mode is Mode.EXCLUSIVE


def test_the_same_mode_at_both_places_is_fine() -> None:
    assert read("{spec: {mode: all}, arcs: [a]}", "{next_mode: inclusive}").mode is Mode.INCLUSIVE
    assert read("{spec: {on_no_match: quiet}, arcs: [a]}", "{next_mode: inclusive}").mode is Mode.INCLUSIVE


def test_one_arc_without_a_list_is_read_with_a_warning() -> None:
    assert read("{step: a, when: x}") == Next(mode=Mode.EXCLUSIVE, arcs=(Arc(step="a", when="x"),))
    assert codes("{step: a, when: x}") == ["next_shape"]


@pytest.mark.parametrize(
    ("arc", "normal", "warned"),
    [
        ("{step: a, when: '{{ x }}'}", Arc(step="a", when="{{ x }}"), []),
        ("{step: a, when: true}", Arc(step="a", when=True), []),
        ("{step: a, when: null}", Arc(step="a"), []),
        ("{step: a, set: {n: 1}}", Arc(step="a", set={"n": 1}), []),
        ("{step: a, spec: {x: 1}}", Arc(step="a"), []),
        ("{step: a, cond: x}", Arc(step="a", when="x"), ["arc_cond"]),
        ("{step: a, cond: x, when: y}", Arc(step="a", when="y"), ["arc_cond"]),
        (
            "{step: a, args: {n: 1, m: 2}, set: {n: 3}}",
            Arc(step="a", set={"n": 3}, args={"n": 1, "m": 2}),
            ["deprecated_args"],
        ),
        ("{step: a, args: null}", Arc(step="a"), ["deprecated_args"]),
        ("{step: a, wehn: x}", Arc(step="a"), ["unknown_key"]),
    ],
)
def test_the_keys_of_an_arc(arc: str, normal: Arc, warned: list[str]) -> None:
    assert read(f"{{arcs: [{arc}]}}").arcs == (normal,)
    assert codes(f"{{arcs: [{arc}]}}") == warned


def test_a_typing_error_in_an_arc_does_not_pass_in_silence() -> None:
    (warning,) = [problem for problem in parsed("[{step: a, wehn: x}]").warnings if problem.step == "s"]
    assert warning.message == "step 's', arc to 'a': unknown key 'wehn' is ignored (did you mean 'when'?)"


@pytest.mark.parametrize("word", ["complete", "quiet"])
def test_on_no_match_knows_two_words(word: str) -> None:
    assert codes(f"{{spec: {{on_no_match: {word}}}, arcs: [a]}}") == []
