"""The quick reader makes the very tree that Jinja's parser makes, or leaves the text to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import nodes

from noetl.core.expression import compile_template, parse_count
from noetl.core.expression.analysis import SANDBOX
from noetl.core.expression.reader import NESTED_QUICK_MAX, TOKENS_QUICK_MAX, read_quickly


def by_jinja(source: str) -> nodes.Template:
    return SANDBOX._parse(source, None, None)


# --- what is read quickly --------------------------------------------------------------------------------

QUICK = [
    "{{ a }}",
    "{{a.b.c}}",
    "{{ a['b c'][0].d }}",
    "{{ rows[i].name }}",
    "{{ output.status == 'error' and output.http.status in [429, 503] }}",
    "{{ not a or b and not c.d }}",
    "{{ a not in b }}",
    "{{ 1 < a <= 3 != b }}",
    "{{ a + b - 1 ~ 'x' ~ c * 2 // 3 % 4 / 5 }}",
    "{{ a.x if a else b.x }}",
    "{{ 1 if a }}",
    "{{ a if b else c if d else e }}",
    "{{ a | default([]) | length > 3 }}",
    "{{ a | join(', ', attribute='n') }}",
    "{{ a is defined and b is not none }}",
    "{{ range(1, n) }}-{{ now() }}",
    "{{ (a or 0) + 1 }}",
    "{{ [1, 'two', [a.b,],] }}",
    "{{ true }} {{ None }} {{ False }}",
    "pre {{ a }} mid é {{ b | d('ü') }} post",
    "{{ a.true.none }}",
    "{{ f(x=1, y=a.b) }}",
    "{{ '{{' ~ \"}}\" }}",
    "text }} and } alone {{ a }}",
]


@pytest.mark.parametrize("source", QUICK)
def test_plain_expressions_become_the_tree_of_jinja(source: str) -> None:
    tree = read_quickly(source)
    assert tree is not None
    assert tree == by_jinja(source)


# --- what is left to Jinja -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "{{ a }}\n",
        "{% if a %}b{% endif %}",
        "{# note #}{{ a }}",
        "{{- a }}",
        "{{ a -}}",
        "{{ 'a\\n' }}",
        "{{ -1 }}",
        "{{ 1.5 }}",
        "{{ 1_000 }}",
        "{{ 007 }}",
        "{{ 99999999999999999999 }}",
        "{{ a.0 }}",
        "{{ a[1:2] }}",
        "{{ {'a': 1} }}",
        "{{ (a, b) }}",
        "{{ a, b }}",
        "{{ a ** b }}",
        "{{ 'a' 'b' }}",
        "{{ a is divisibleby 3 }}",
        "{{ a is divisibleby(3) }}",
        "{{ f(*a) }}",
        "{{ a.if }}",
        "{{ ä }}",
        "{{ a",
        "{{ }}",
        "{{ a b }}",
        "{{ a | }}",
        "{{ (a }}",
        "{{ f(a=1, b) }}",
        "{{ a == not b }}",
        "{{ a is defined if b }}",
        "{{ " + " + ".join(["a"] * (TOKENS_QUICK_MAX // 2 + 1)) + " }}",
        "{{ " + "not " * (NESTED_QUICK_MAX + 1) + "a }}",
        "{{ " + "a if b else " * (NESTED_QUICK_MAX + 1) + "c }}",
        "{{ " + "(" * (NESTED_QUICK_MAX + 1) + "a" + ")" * (NESTED_QUICK_MAX + 1) + " }}",
    ],
)
def test_everything_else_is_left_to_jinja(source: str) -> None:
    assert read_quickly(source) is None


def test_a_quick_reading_counts_as_a_parse() -> None:
    before = parse_count()
    compile_template("{{ a_name_of_this_test_only.b }}")
    assert parse_count() == before + 1


# --- the property ----------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "output", "x1", "_prev", "true", "none", "not_a", "iffy", "in_"])
LEAVES = st.one_of(NAMES, st.sampled_from(["0", "1", "42", "'s'", '"t"', "''", "[]", "true", "None"]))
BINARY = st.sampled_from(
    [" or ", " and ", "==", " != ", "<", " >= ", " in ", " not in ", "+", "-", " ~ ", "*", "/", "//", "%"]
)


def made_of(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, BINARY, inner).map("".join),
        inner.map("({})".format),
        inner.map("not {}".format),
        st.tuples(inner, NAMES).map(lambda pair: f"({pair[0]}).{pair[1]}"),
        st.tuples(NAMES, inner).map(lambda pair: f"{pair[0]}[{pair[1]}]"),
        st.tuples(inner, st.sampled_from(["length", "default(0)", "d('x', true)", "join(',', attribute=a)"])).map(
            lambda pair: f"{pair[0]} | {pair[1]}"
        ),
        st.tuples(inner, st.sampled_from(["is defined", "is not none"])).map(" ".join),
        st.tuples(inner, inner, inner).map(lambda three: f"{three[0]} if {three[1]} else {three[2]}"),
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
    )


EXPRESSIONS = st.recursive(LEAVES, made_of, max_leaves=8)


def agree(source: str) -> None:
    quick = read_quickly(source)
    if quick is not None:
        assert quick == by_jinja(source)


@given(EXPRESSIONS)
def test_what_the_grammar_allows_is_read_alike(expression: str) -> None:
    agree("{{ " + expression + " }}")


TOKENS = st.sampled_from(
    [
        *("a", "output", "true", "none", "and", "or", "not", "in", "is", "if", "else", "defined", "self", "__a__"),
        *(".", "[", "]", "(", ")", "|", ",", "==", "!=", "<", "<=", "+", "-", "*", "/", "//", "**", "%", "~", "=", ":"),
        *("'s'", '"t"', "''", "0", "42", "007", "1.5", "1_0", "0x1f", "{{", "}}", "{", "}", "é", "'é'", " ", "\t", ";"),
        *("1.a", "a.1", "\\", "'\\n'", "\x0b", "-}}", "{{-", "}}{{", "a(b=1)", "a b", "x|f(", "x|f.g", "is not"),
    ]
)


@given(st.lists(TOKENS, max_size=12), st.sampled_from(["{{ %s }}", "{{%s}}", "t {{ %s }} t", "{{ a }}{{ %s }}", "%s"]))
def test_any_row_of_tokens_is_read_alike_or_not_at_all(tokens: list[str], form: str) -> None:
    agree(form.replace("%s", "".join(tokens)))
