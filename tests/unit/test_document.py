"""YAML text becomes plain values with places, within bounds that no document can talk its way around."""

from __future__ import annotations

import textwrap
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.codec import canonical_bytes
from noetl.core.errors import PlaybookInvalid, Problem
from noetl.core.limits import DOCUMENT_ALIASES_MAX, DOCUMENT_BYTES_MAX, DOCUMENT_DEPTH_MAX
from noetl.core.playbook.document import Document, Findings, read_document


def read(text: str) -> Document:
    return read_document(text, file="f.yaml")


def refused(text: str) -> Problem:
    with pytest.raises(PlaybookInvalid) as caught:
        read(text)
    (problem,) = caught.value.problems
    assert problem.file == "f.yaml"
    return problem


# --- values and places -----------------------------------------------------------------------------------


def test_every_value_has_the_line_and_column_where_it_starts() -> None:
    text = textwrap.dedent("""\
        a: 1
        b:
          - x
          - {c: [y, z]}
        """)
    document = read(text)
    assert document.value == {"a": 1, "b": ["x", {"c": ["y", "z"]}]}
    assert document.marks == {
        (): (1, 1),
        ("a",): (1, 4),
        ("b",): (3, 3),
        ("b", 0): (3, 5),
        ("b", 1): (4, 5),
        ("b", 1, "c"): (4, 9),
        ("b", 1, "c", 0): (4, 10),
        ("b", 1, "c", 1): (4, 13),
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# only a comment", None),
        ("5", 5),
        ("a: 2024-05-06", {"a": "2024-05-06"}),
        ("a: 2024-05-06 07:08:09", {"a": "2024-05-06T07:08:09"}),
        ("a: !!binary aGk=", {"a": "hi"}),
        ("a: .nan", {"a": None}),
        ("a: .inf", {"a": None}),
        ("a: 1.5", {"a": 1.5}),
        ("on: 1", {"on": 1}),
        ("1: one\n2024-05-06: day\n~: none", {"1": "one", "2024-05-06": "day", "~": "none"}),
        ("a: '{{ x }}'", {"a": "{{ x }}"}),
    ],
)
def test_a_playbook_knows_only_what_json_knows(text: str, value: object) -> None:
    assert read(text).value == value
    canonical_bytes(read(text).value)


def test_a_key_that_is_given_twice_is_noted_and_the_last_one_counts() -> None:
    document = read("a: 1\nb: {c: 1, c: 2}\na: 3\n")
    assert document.value == {"a": 3, "b": {"c": 2}}
    assert document.duplicate_keys == (("b", "c"), ("a",))


def test_merge_keys_give_what_the_mapping_itself_lacks_and_are_no_duplicates() -> None:
    document = read(
        textwrap.dedent("""\
        one: &one {a: 1, b: 1}
        two: &two {b: 2, c: 2}
        both: {<<: [*one, *two], d: 3}
        own: {a: 9, <<: *one}
        nested: {<<: {<<: *two, e: 5}}
        """)
    )
    assert document.value == {
        "one": {"a": 1, "b": 1},
        "two": {"b": 2, "c": 2},
        "both": {"a": 1, "b": 1, "c": 2, "d": 3},
        "own": {"a": 9, "b": 1},
        "nested": {"b": 2, "c": 2, "e": 5},
    }
    assert document.duplicate_keys == ()


def test_aliases_are_copies_of_what_they_name() -> None:
    assert read("a: &x [1, &y z]\nb: *x\nc: *y").value == {"a": [1, "z"], "b": [1, "z"], "c": "z"}


# --- broken text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a: [1, 2", 2, 1),
        ("a: 1\n b: 2", 2, 3),
        ("a: 1\nb:\n\t- 1", 3, 1),
        ("a: 1\nb: 'open", 2, 9),
        ("a: *nowhere", 1, 4),
        ("a: &x 1\nb: &x 2", 2, 4),
        ("a: 1\nc: !!python/object:os.system x", 2, 4),
        ("a: 1\n---\nb: 2", 2, 1),
        ("ä: 1\nb: \x07", 2, 4),
        ('a: "\\ud800"', 1, 7),
        ("a: 1\nday: 2024-13-45", 2, 6),
        ("a: 0x_", 1, 4),
        ("a: {<<: 1}", 1, 9),
        ("a: {<<: [{}, 1]}", 1, 9),
        ("n: " + "9" * 5_000, 1, 4),
    ],
)
def test_broken_yaml_is_refused_with_its_place(text: str, line: int, column: int) -> None:
    problem = refused(text)
    assert problem.code == "yaml_invalid"
    assert problem.message.startswith("not valid YAML: ")
    assert (problem.line, problem.column) == (line, column)


def test_text_that_is_not_unicode_is_refused() -> None:
    assert refused("a: \ud800").code == "yaml_invalid"


def test_a_key_that_is_no_plain_value_is_refused_with_its_place() -> None:
    problem = refused("a: 1\n? [x, y]\n: 2")
    assert (problem.code, problem.line, problem.column) == ("document_too_complex", 2, 3)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(PlaybookInvalid):
        document = read(text)
        assert () in document.marks or document.value is None


# --- bounds ----------------------------------------------------------------------------------------------


def test_a_document_may_have_a_million_bytes() -> None:
    room = DOCUMENT_BYTES_MAX - len("a: ")
    assert read("a: " + "x" * room).value == {"a": "x" * room}
    problem = refused("a: " + "é" * (room // 2 + 1))
    assert problem.code == "document_too_large"
    assert "1,000,001 bytes, the limit is 1,000,000" in problem.message


def quickly(text: str) -> Problem:
    """Far more than it takes on a busy machine, and far less than a text takes that is read to its end."""
    started = time.process_time()
    problem = refused(text)
    assert time.process_time() - started < 10
    return problem


def test_fifty_megabytes_are_refused_at_once() -> None:
    assert quickly("a: " + "x" * 50_000_000).code == "document_too_large"


def lines(line: str) -> str:
    """A chain of anchors, each made of nine uses of the one before: nine to the ninth in a few hundred bytes."""
    made = [line.replace("NAME", "l0").replace("USES", "x, x, x")]
    for level in range(1, 10):
        uses = ", ".join([f"*l{level - 1}"] * 9)
        made.append(line.replace("NAME", f"l{level}").replace("USES", uses))
    return "\n".join(made)


BOMBS = {
    "lists": lines("NAME: &NAME [USES]"),
    "mappings": lines("NAME: &NAME {a: [USES]}"),
    "merges": "b: &b {a: 1}\n" + lines("NAME: &NAME {<<: [USES]}").replace("x, x, x", "*b, *b"),
    "one long text": "t: &t " + "x" * 400_000 + "\nl: [" + ", ".join(["*t"] * 5_000) + "]",
    "one long key": "t: &t " + "x" * 400_000 + "\nl: [" + ", ".join(["{*t : 1}"] * 5_000) + "]",
    "itself": "a: &a [*a]",
    "itself merged": "a: &a {<<: *a}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_text_never_becomes_a_large_value(name: str) -> None:
    problem = quickly(BOMBS[name])
    assert problem.code in ("document_too_complex", "yaml_invalid")
    assert problem.line is not None


def test_aliases_are_counted() -> None:
    uses = ", ".join(["*a"] * DOCUMENT_ALIASES_MAX)
    assert read(f"a: &a [1]\nb: [{uses}]").value == {"a": [1], "b": [[1]] * DOCUMENT_ALIASES_MAX}
    assert "more than 100 aliases" in refused(f"a: &a [1]\nb: [{uses}, *a]").message


def test_what_counts_is_the_size_with_all_aliases_written_out() -> None:
    text = "x" * 10_000
    assert len(str(read(f"a: &a {text}\nb: [{', '.join(['*a'] * 98)}]").value)) > 980_000
    assert "written out" in refused(f"a: &a {text}\nb: [{', '.join(['*a'] * 100)}]").message


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[{a: "])
def test_deep_nesting_is_refused_before_it_can_exhaust_the_stack(opening: str) -> None:
    problem = quickly(opening * (900_000 // len(opening)))
    assert (problem.code, problem.line) == ("document_too_complex", 1)
    assert f"deeper than {DOCUMENT_DEPTH_MAX} levels" in problem.message


def test_nesting_is_counted_in_levels() -> None:
    deep = "[" * DOCUMENT_DEPTH_MAX + "1" + "]" * DOCUMENT_DEPTH_MAX
    read(deep)
    assert refused(f"[{deep}]").code == "document_too_complex"


def test_nesting_through_aliases_counts_too() -> None:
    half = "[" * 20 + "1" + "]" * 20
    text = f"a: &a {half}\nb: {'[' * 20}*a{']' * 20}"
    assert "nested deeper" in refused(text).message


def test_the_number_of_values_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl.core.playbook.document.DOCUMENT_NODES_MAX", 50)
    assert read(f"[{', '.join('x' * 49)}]").value == ["x"] * 49
    assert "more than 50 values" in refused(f"[{', '.join('x' * 50)}]").message
    # Aliases are values too, although the text has only a few.
    assert "more than 50 values" in refused("a: &a [1, 2, 3, 4]\nb: [*a, *a, *a, *a, *a, *a, *a, *a, *a]").message
    # Far too many are refused while they are being counted, before anything is built.
    assert "more than 50 values" in refused(f"[{', '.join('x' * 500)}]").message


# --- findings --------------------------------------------------------------------------------------------


def test_a_finding_about_something_that_is_not_there_points_to_what_should_hold_it() -> None:
    findings = Findings(read("a:\n  b: {}\n"))
    findings.error("missing", "c is missing", ("a", "b", "c"), step="s")
    findings.warn("odd", "nothing of this is there", ("x", "y"))
    findings.error("root", "the root", ())
    (error, root), (warning,) = findings.errors, findings.warnings
    assert (error.line, error.column, error.step, error.field) == (2, 6, "s", "c")
    assert (warning.line, warning.column, warning.field) == (1, 1, "y")
    assert (root.line, root.field) == (1, None)
    assert Findings(read(""))._problem("x", "y", (), None).line == 1


def test_a_near_word_is_suggested_while_there_are_few_findings() -> None:
    findings = Findings(read("{}"))
    assert findings.suggestion("pyhton", ["noop", "python"]) == " (did you mean 'python'?)"
    assert findings.suggestion("zzz", ["noop", "python"]) == ""
    for _ in range(20):
        findings.warn("x", "x", ())
    assert findings.suggestion("pyhton", ["noop", "python"]) == ""
