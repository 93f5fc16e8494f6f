"""Compiling and rendering: the typing rule, free names, conditions, nested values, speed."""

from __future__ import annotations

import sys
import timeit
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.errors import NoetlError, TemplateFailed, TemplateInvalid, TemplateRefused
from noetl.core.expression import (
    EventName,
    OutputView,
    Scope,
    Template,
    compile_condition,
    compile_template,
    compile_value,
    free_names,
    parse_count,
    parse_expression,
    render,
    render_value,
    view_of,
)
from noetl.core.expression.analysis import SANDBOX, check, nodes, parse, sole_expression
from noetl.core.expression.evaluation import Evaluation
from noetl.core.expression.template import _program_template, evaluate
from noetl.core.expression.writing import write

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from(["", "x", "{{ a }}", "{% x %}", "é"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "items", "data", "_ref", "0"]), inner, max_size=3),
    ),
    max_leaves=10,
)

# -- the typing rule -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "kind", "value"),
    [
        ("plain", "literal", "plain"),
        ("", "literal", ""),
        ("a } b { c %}", "literal", "a } b { c %}"),
        ("{# note #}text", "literal", "text"),
        ("{% raw %}{{ x }}{% endraw %}", "literal", "{{ x }}"),
        ("{{ n }}", "expression", 100),
        ("  {{ n }}\n", "expression", 100),
        ("{# note #}{{ n }}", "expression", 100),
        ("{{- n -}}", "expression", 100),
        ("{{ execution_id }}", "expression", "123"),
        ("{{ l }}", "expression", [1, {"a": None}]),
        ("{{ flag }}", "expression", True),
        ("{{ nothing }}", "expression", None),
        ("{{ missing }}", "expression", None),
        ("{{ l | tojson }}", "expression", '[1, {"a": null}]'),
        ("{{ missing | default({'a': {'b': 1}}) }}", "expression", {"a": {"b": 1}}),
        ("{{ '}}' }}", "expression", "}}"),
        ("{{ n, 1 }}", "expression", [100, 1]),
        ("{{ True }}", "expression", True),
        ("{{ none }}", "expression", None),
        ("{% print n %}", "expression", 100),
        ("x{{ n }}", "text", "x100"),
        ("{{ n }}{{ n }}", "text", "100100"),
        ("{{ n }} {{ '' }}", "text", "100 "),
        ("{{ l }}.", "text", '[1, {"a": null}].'),
        ("{{ flag }} {{ nothing }}", "text", "True None"),
        ("{% if flag %}{{ n }}{% endif %}", "text", "100"),
        ("{% if flag %}a{% elif n %}b{% else %}c{% endif %}\n", "text", "a\n"),
        ("{% set a = 1 %}{{ a }}", "text", "1"),
        ("{% set a = [1, n] %}{{ a }}", "text", "[1, 100]"),
        ("{% set a, b = 1, 2 %}{{ a }}{{ b }}", "text", "12"),
        ("{% with a = n %}{{ a }}{% endwith %}{{ a }}", "text", "100"),
        ("{% filter upper %}x{{ flag }}{% endfilter %}", "text", "XTRUE"),
        ("{% set a %}<{{ n }}>{% endset %}{{ a | length }}", "text", "5"),
        ("{% set a | upper %}x{% endset %}{{ a }}", "text", "X"),
        ("SELECT 1;\n", "literal", "SELECT 1;\n"),
        ("SELECT {{ n }};\n", "text", "SELECT 100;\n"),
        ("{% if missing %}x{% endif %}", "text", ""),
        ("{{ {'n': n}.n }}", "expression", 100),
        (r"{{ '\d+\q\n\'\\x\x41' }}", "expression", "\\d+\\q\n'\\xA"),
    ],
)
def test_the_typing_rule(source: str, kind: str, value: object) -> None:
    names = {"n": 100, "execution_id": "123", "l": [1, {"a": None}], "flag": True, "nothing": None}
    template = compile_template(source)
    assert template.kind == kind
    result = render(template, names)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{% for r in rows %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}", "1/2,2/2"),
        ("{% for r in rows if r.n > 1 %}{{ r.n }}{% else %}none{% endfor %}", "2"),
        ("{% for r in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% for k, v in m | items %}{{ k }}={{ v }};{% endfor %}", "a=1;b=2;"),
        ("{% for k in m %}{{ k }}{% endfor %}", "ab"),
        ("{% for r in step.rows %}{{ r }}{% endfor %}", "12"),
        ("{% for r in missing %}{{ r }}{% endfor %}", ""),
        ("{% for r in rows %}{{ loop.previtem.n }}{{ loop.nextitem.n }}{{ loop.first }}{% endfor %}", "2True1False"),
        ("{% set q = namespace(t=0) %}{% for r in rows %}{% set q.t = q.t + r.n %}{% endfor %}{{ q.t }}{{ q.z }}", "3"),
        ("{% macro cell(v, w=2) %}<{{ v }}:{{ w }}>{% endmacro %}{{ cell(1) }}{{ cell(v=3, w=4) }}", "<1:2><3:4>"),
        ("{% macro m() %}{{ varargs | length }}{{ varargs[0] }}{{ kwargs.a }}{% endmacro %}{{ m(7, 8, a=9) }}", "279"),
        ("{% macro m() %}[{{ caller('x') }}]{% endmacro %}{% call(p) m() %}{{ p }}!{% endcall %}", "[x!]"),
        ("{% macro m(p) %}{{ p }}{% endmacro %}{{ m() }}", ""),
        ("{% for g in rows | groupby('n') %}{{ g.grouper }}:{{ g.list | length }};{% endfor %}", "1:1;2:1;"),
        ("{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }}{% endfor %}", "37"),
        ("{% for r in rows %}{% for q in rows %}{{ loop.index0 }}{% endfor %}{% endfor %}", "0101"),
        ("{% for r in rows %}{% macro m() %}{{ r.n }}{% endmacro %}{{ m() }}{% endfor %}", "12"),
        ("{% for r in rows %}{{ range(r.n) | length }}{% endfor %}", "12"),
    ],
)  # fmt: skip
def test_loops_and_macros_in_a_child_process(source: str, value: str) -> None:
    names = {"rows": [{"n": 1}, {"n": 2}], "m": {"a": 1, "b": 2}, "step": view_of({"rows": [1, 2]})}
    assert render(compile_template(source), names, allow_loops=True) == value


@given(json_values, st.text())
def test_data_is_rendered_once(value: object, text: str) -> None:
    names = {"v": value, "t": text, "s": view_of({"v": value, "t": text})}
    assert render(compile_template("{{ v }}"), names) == value
    assert render(compile_template("{{ s.v }}"), names) == value
    assert render(compile_template("{{ [v] }}"), names) == [value]
    for hostile in (text, "{{ n }}", "{% for %}", "{{ " + text, text + " }}{# #}"):
        names["t"] = hostile
        assert render(compile_template("{{ t }}"), names) == hostile
        assert render(compile_template("<{{ t }}>"), names) == f"<{hostile}>"
        assert render(compile_template("{{ '<' ~ t ~ '>' }}"), names) == f"<{hostile}>"
        compiled = compile_value({"a": ["{{ t }}"]})
        assert render_value(compiled, names) == {"a": [hostile]}


# -- names, paths, mentions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "roots", "mentions"),
    [
        ("text", "", ""),
        ("{{ a }}", "a", "a"),
        ("{{ a.b['c'][0].d }}", "a", "a/b/c/0/d"),
        ("{{ a.b[i].c }}", "a i", "a/b i"),
        ("{{ a.b[c.d].e ~ x }}", "a c x", "a/b c/d x"),
        ("{{ a.b[1:n] }}", "a n", "a/b n"),
        ("{{ (a or b).c }}", "a b", "a b"),
        ("{{ output.status == 'ok' and load.rows | length > 3 }}", "output load", "output/status load/rows"),
        ("{{ now() }}", "", ""),
        ("{{ now }}", "now", "now"),
        ("{{ range(n) }}", "n", "n"),
        ("{{ token('x').y }}", "token", "token"),
        ("{{ keychain.k.v }}", "keychain", "keychain/k/v"),
        ("{% for r in a.rows %}{{ r.x }}{{ loop.index }}{{ c.d }}{% endfor %}", "a c", "a/rows c/d"),
        ("{% set x = a.b %}{{ x.y }}", "a", "a/b"),
        ("{% with x = a.b %}{{ x.y ~ z }}{% endwith %}", "a z", "a/b z"),
        ("{% macro m(p) %}{{ p.q ~ g.h }}{% endmacro %}{{ m(1) }}", "g", "g/h"),
        ("{% if a.b is defined %}{{ a.c }}{% endif %}", "a", "a/b a/c"),
        ("{{ x | default(y.z) }}", "x y", "x y/z"),
    ],
)
def test_free_names_and_mentions(source: str, roots: str, mentions: str) -> None:
    template = compile_template(source)
    assert template.roots == set(roots.split())
    assert template.mentions == {tuple(mention.split("/")) for mention in mentions.split()}
    assert free_names(source) == template.roots


class Lazy(Mapping[str, object]):
    """Names that are computed when asked for, and not at all otherwise."""

    def __init__(self, **values: object) -> None:
        self.values_by_name = values
        self.asked: list[str] = []

    def __getitem__(self, name: str) -> object:
        self.asked.append(name)
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("names are not listed")

    def __len__(self) -> int:
        raise AssertionError("names are not counted")


def test_only_the_names_that_are_mentioned_are_looked_up() -> None:
    names = Lazy(a={"b": 1}, c=2, huge=object())
    assert render(compile_template("{{ a.b }}"), names) == 1
    assert render(compile_template("{{ a.b + c }}"), names) == 3
    assert render(compile_template("{{ c }}-{{ zzz }}"), names) == "2-"
    assert sorted(names.asked) == ["a", "a", "c", "c", "zzz"]


def test_a_callers_error_while_looking_up_is_the_callers() -> None:
    class Broken(Lazy):
        def __getitem__(self, name: str) -> object:
            raise NoetlError("payload is gone")

    for source in ("{{ a.b }}", "{{ a.b + 1 }}"):
        with pytest.raises(NoetlError, match="payload is gone"):
            render(compile_template(source), Broken())


def test_key_lookup_comes_first() -> None:
    names = {"r": {"items": 1, "keys": 2, "update": 3, "count": 4}}
    for key, value in names["r"].items():
        assert render(compile_template("{{ r." + key + " }}"), names) == value
        assert render(compile_template("{{ r['" + key + "'] }}"), names) == value
        assert render(compile_template("{{ r." + key + " + 0 }}"), names) == value
    assert render(compile_template("{{ r.values }}"), names) is None


# -- the fast way and Jinja's way ------------------------------------------------------------------------------

keys = st.one_of(st.sampled_from(["a", "b", "items", "data", "result", "status", "_ref", "0"]), st.integers(-2, 2))
subjects = st.one_of(
    json_values,
    json_values.map(view_of),
    json_values.map(lambda value: OutputView(status="ok", data=value)),
    json_values.map(lambda value: Scope({"a": view_of(value)})),
    json_values.map(lambda value: {"a": view_of(value)}),
    st.just(EventName("step.done")),
)


def by_jinja(source: str) -> Template:
    """The template compiled without the short way for plain paths."""
    tree = parse(source)
    return _program_template(source, check(tree), sole_expression(tree), tree)


@given(subjects, st.lists(keys, max_size=4))
def test_a_plain_path_gives_what_jinja_gives(subject: object, path: list[str | int]) -> None:
    source = "{{ root" + "".join(f"[{key!r}]" for key in path) + " }}"
    template, slow = compile_template(source), by_jinja(source)
    assert template.path == ("root", *path)
    assert slow.path is None
    assert (template.roots, template.mentions) == (slow.roots, slow.mentions)
    for names in ({"root": subject}, {}):
        outcomes = []
        for candidate in (template, slow):
            try:
                outcomes.append(repr(evaluate(candidate, names)).replace("[", ".").replace("]", "").replace("'", ""))
            except TemplateRefused:
                outcomes.append("refused")
        if "Undefined" not in outcomes[0]:
            assert outcomes[0] == outcomes[1]
        else:
            assert outcomes[1].startswith("Undefined")


@given(
    json_values,
    st.sampled_from(["{{ v | tojson }}", "{{ v }}-", "{{ [v, v] }}", "{{ v == v }}", "{{ v | list }}"]),
)
def test_rendering_is_deterministic(value: object, source: str) -> None:
    def once() -> object:
        try:
            return render(compile_template(source), {"v": value})
        except TemplateFailed as error:
            return str(error)

    assert once() == once()


# -- canonical source ------------------------------------------------------------------------------------------

WRITTEN = """
a|a.b|a['b c']|a[0]|a[-1]|a[b]|a[1:2]|a[:2]|a[1:]|a[::2]|a[1:2:3]|1|1.5|1e+20|true|none|'x'|'it\\'s'|'a\\\\b'|'a\\nb\\t'|'é'
[]|[1, 2]|()|(1,)|(1, 2)|{}|{'a': 1, b: c}|a + b + c|a - (b - c)|(a + b) * c|a * b + c|a ** b ** c|a ** (b ** c)|-a|- -a
-(a + b)|(-a) ** b|a ** -b|+a|not a|not not a|(not a) == b|not a == b|a and b or c|a and (b or c)|a or b or c|a ~ b ~ c
a ~ (b ~ c)|(a ~ b) + c|a ~ b + c|a == b|a < b < c|(a < b) < c|a in b|a not in b|(a in b) in c|a if b else c|a if b
(a if b else c) if d else e|a if b else c if d else e|(a if b) ~ c|a|f1|a.b|f2|(a|f1).b|(a|f1)[0]|(-a)|f1|-(a|f1)|(a + b)|f1
a|default(1)|a|default(b, true)|a|default(default_value=b)|a|format(*b)|a|format(**b)|a|format(1, *b, **c)|a is defined
a is not defined|a is divisibleby 3|a is divisibleby(b)|(a is defined) and b|a is defined and b|(a is none) == b|(a|f1) is none
now()|range(1, b)|(1).x|('a').b|'a'[0]|1.5|{'a': 1}.a|[1][0]|(a, b)[0]|a.b.c.d|a['if']|a['1']|a[1.5]|a[true]|a[none]
"""  # noqa: E501


def test_written_source_means_the_same_and_writing_is_stable() -> None:
    text = WRITTEN.replace("|f1", "¦length").replace("|f2", "¦length").replace("|default", "¦default")
    sources = [part.replace("¦", "|") for part in text.replace("|format", "¦format").replace("\n", "|").split("|")]
    sources = [source for source in sources if source]
    assert len(sources) > 90
    for source in sources:
        tree = parse_expression(source)
        written = write(tree)
        assert strip(parse_expression(written)) == strip(tree), (source, written)
        assert write(parse_expression(written)) == written, (source, written)


def strip(node: Any) -> Any:
    """A tree without line numbers, with `a['b']` and `a.b` alike."""
    if isinstance(node, nodes.Getattr):
        return ("Getattr", strip(node.node), node.attr)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        key = node.arg.value
        if isinstance(key, str) and key.isidentifier():
            return ("Getattr", strip(node.node), key)
    if isinstance(node, nodes.Node):
        return (type(node).__name__, *(strip(value) for _, value in node.iter_fields()))
    return [strip(item) for item in node] if isinstance(node, list) else node


# -- conditions, nested values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (True, True),
        (False, False),
        ("n > 3", True),
        ("{{ n > 3 }}", True),
        (" n > 9 ", False),
        ("true", True),
        ("n", 5),
        ("{% if n %}true{% endif %}", "true"),
        ("'}' ~ n", "}5"),
    ],
)
def test_conditions(source: str | bool, value: object) -> None:
    template = compile_condition(source)
    assert render(template, {"n": 5}) == value
    assert (compile_template(template.source) == template) is not isinstance(source, bool)


@pytest.mark.parametrize("source", ["", "   ", "a >", "a }} {{ b", "a }}", "1 2"])
def test_a_condition_is_one_expression(source: str) -> None:
    with pytest.raises(TemplateInvalid, match="line 1"):
        compile_condition(source)


@pytest.mark.parametrize("source", ["a.b", "{{ a.b }}"])
def test_an_expression_can_be_parsed_for_analysis(source: str) -> None:
    assert isinstance(parse_expression(source), nodes.Getattr)


@pytest.mark.parametrize(
    "source", ["{{ a }}{{ b }}", "x {{ a }}", "{% if a %}{% endif %}", "{{ a", "a }} {{ b", "a.b()"]
)
def test_what_is_not_one_expression_cannot(source: str) -> None:
    with pytest.raises((TemplateInvalid, TemplateRefused)):
        parse_expression(source)


def test_nested_values_keep_their_shape_and_types() -> None:
    source = {
        "n": "{{ n }}",
        "text": "n={{ n }}",
        "{{ key }}": "literal",
        "list": [1, "{{ l }}", {"deep": "{{ missing }}"}, ("{{ n }}",)],
        "none": None,
        5: True,
    }
    compiled = compile_value(source)
    assert compiled.source is source
    assert compiled.roots == {"n", "l", "missing"}
    assert compiled.mentions == {("n",), ("l",), ("missing",)}
    assert (compiled.needs_child, compiled.uses_random, compiled.uses_now) == (False, False, False)
    assert compiled == compile_value(source)
    result = render_value(compiled, {"n": 3, "l": [7]})
    assert result == {
        "n": 3,
        "text": "n=3",
        "{{ key }}": "literal",
        "list": [1, [7], {"deep": None}, [3]],
        "none": None,
        5: True,
    }
    assert compile_value("x").roots == frozenset()
    assert render_value(compile_value(None), {}) is None


def test_nested_values_know_what_they_need() -> None:
    compiled = compile_value({"a": ["{% for i in l %}{% endfor %}"], "b": "{{ l | random }}", "c": "{{ now() }}"})
    assert (compiled.needs_child, compiled.uses_random, compiled.uses_now) == (True, True, True)
    with pytest.raises(TemplateRefused, match="child process only"):
        render_value(compiled, {"l": []})
    result = render_value(compiled, {"l": [1]}, allow_loops=True, now="N", random=lambda _: 0)
    assert result == {"a": [""], "b": 1, "c": "N"}


def test_a_bad_template_in_a_nested_value_is_located() -> None:
    with pytest.raises(TemplateInvalid, match=r"^input.sql\[1\]: line 2: "):
        compile_value({"input": {"sql": ["ok", "a\n{{ b"]}})
    with pytest.raises(TemplateRefused, match=r"^a: line 1: methods"):
        compile_value({"a": "{{ b.c() }}"})
    with pytest.raises(TemplateInvalid, match=r"^line 1: "):
        compile_value("{{ b")


def test_rendered_containers_are_fresh() -> None:
    compiled = compile_value({"a": [1, {"b": "{{ n }}"}]})
    first: Any = render_value(compiled, {"n": 1})
    first["a"].append("changed")
    assert render_value(compiled, {"n": 1}) == {"a": [1, {"b": 1}]}


# -- errors and warnings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ a", "line 1: unexpected end of template"),
        ("x\n\n{{ a b }}", "line 3: expected token 'end of print statement', got 'b'"),
        ("{% if a %}", "line 1: Unexpected end of template"),
        ("{% unknown %}", "line 1: Encountered unknown tag 'unknown'"),
        ("{{ }}", "line 1: Expected an expression"),
        ("{{ a | }}", "line 1: expected token 'name'"),
        ("{{ 'a }}", "line 1: unexpected char"),
        ("{{ f(a=1, a=2) | default(a=1, a=2) }}", "."),
        ("{{ x | default(a=1, a=2) }}", "too complicated to compile"),
        ("{% for a in b %}" * 25 + "{% endfor %}" * 25, "too complicated to compile"),
        ("{% macro m(caller) %}{{ caller() }}{% endmacro %}", "line 1: When defining macros"),
    ],
)
def test_what_does_not_compile_says_where(source: str, message: str) -> None:
    with pytest.raises((TemplateInvalid, TemplateRefused), match=message):
        compile_template(source)


def test_messages_are_short_whatever_the_template_is() -> None:
    name = "a" * 10_000
    with pytest.raises(TemplateInvalid) as invalid:
        compile_template("{{ 1 " + name + " }}")
    with pytest.raises(TemplateFailed) as failed:
        render(compile_template("{{ b." + name + " + 1 }}"), {})
    assert max(len(str(invalid.value)), len(str(failed.value))) < 400


def test_undefined_in_text_is_empty_and_warned_about() -> None:
    warnings: list[str] = []
    source = "{{ a.b }}|{{ m.c[0].d }}|{{ 'x' ~ m.e }}|{{ [m.f] | join }}|{{ m.g | upper }}|{{ m.h | tojson }}"
    assert render(compile_template(source), {"a": {"b": 1}}, warnings=warnings) == "1||x|||null"
    paths = ["m.c[0].d", "m.e", "m.f", "m.g", "m.h"]
    assert warnings == [f"undefined_in_template: {path}" for path in paths]
    many = compile_template("{{ m }}" * 50)
    render(many, {}, warnings=warnings)
    assert len(warnings) == 20
    assert render(many, {}) == ""


def test_undefined_in_text_is_an_error_when_strict() -> None:
    template = compile_template("x={{ m.x }}")
    with pytest.raises(TemplateFailed, match=r"'m\.x' is undefined"):
        render(template, {}, strict=True)
    for harmless in ("{{ m.x }}", "{{ m.x | default('d') }}!", "{% if m %}x{% endif %}"):
        render(compile_template(harmless), {}, strict=True)


def test_every_failure_is_ours() -> None:
    class Strange(dict[str, object]):
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def __getitem__(self, key: str) -> object:
            raise self.error

    for error in (RuntimeError("odd"), AssertionError("odd"), AttributeError("odd"), StopIteration("odd")):
        with pytest.raises(TemplateFailed, match="odd"):
            render(compile_template("{{ v.x + 1 }}"), {"v": view_of(Strange(error))})
    with pytest.raises(TemplateFailed, match="RuntimeError"):
        render(compile_template("{{ v.x + 1 }}"), {"v": view_of(Strange(RuntimeError()))})
    deep: list[object] = []
    for _ in range(20_000):
        deep = [deep]
    with pytest.raises(TemplateFailed, match="nested too deeply"):
        render(compile_template("{{ v == w }}"), {"v": deep, "w": [deep]})
    with pytest.raises(TemplateFailed, match="nested too deeply"):
        render(compile_template("{{ v }}!"), {"v": deep})


def test_templates_are_parsed_once() -> None:
    source = "{{ unique_name_of_this_test + 1 }}"
    before = parse_count()
    first = compile_template(source)
    assert parse_count() == before + 1
    assert compile_template(source) is first
    render(first, {"unique_name_of_this_test": 1})
    compile_template("no template syntax at all")
    assert parse_count() == before + 1
    long = "{{ x }}" + " " * 10_000
    assert compile_template(long) == compile_template(long)
    assert parse_count() == before + 3
    assert len({first, compile_template(source)}) == 1


def test_stock_filters_of_jinja_are_not_reachable() -> None:
    evaluation = Evaluation(resolve=lambda _: None)
    assert SANDBOX.filters["upper"](evaluation, "x") == "X"  # type: ignore[operator]
    assert SANDBOX.tests["odd"](evaluation, 3) is True  # type: ignore[operator]
    assert SANDBOX.loader is None


# -- speed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "microseconds_max"),
    [
        ("{{ prev.n }}", 10),
        ("{{ output.status == 'ok' and a.count > 3 }}", 15),
        ("{{ a.count | default(3) | int + 1 }}", 20),
        ("n={{ a.count }}, m={{ prev.n }}", 20),
    ],
)
def test_evaluating_is_fast(source: str, microseconds_max: float) -> None:
    names = {"prev": view_of({"n": 1}), "output": OutputView(status="ok"), "a": {"count": 5}}
    template = compile_template(source)
    best = min(timeit.repeat(lambda: render(template, names), number=1_000, repeat=5))
    assert best * 1_000 < microseconds_max * (1 if sys.gettrace() is None else 100)
