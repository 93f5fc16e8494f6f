"""Nobody leaves the sandbox, nothing is changed from inside it, and nothing in it takes long."""

from __future__ import annotations

import copy
import itertools
import random
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.core.errors import TemplateFailed, TemplateInvalid, TemplateRefused
from noetl.core.expression import (
    OutputView,
    compile_condition,
    compile_template,
    compile_value,
    render,
    view_of,
)
from noetl.core.expression.analysis import SANDBOX
from noetl.core.expression.evaluation import Evaluation
from noetl.core.limits import TEMPLATE_CHARS_MAX

REFUSALS = (TemplateInvalid, TemplateFailed)
SECONDS_MAX = 1.0 if sys.gettrace() is None else 5.0  # unbounded they would take many times as long


def names() -> dict[str, Any]:
    return {
        "x": {"a": 1},
        "l": [{"id": 1}, {"id": 2}],
        "s": "text",
        "n": 5,
        "v": view_of({"a": 1}),
        "o": OutputView(status="ok", data={"a": 1}),
        "token": lambda *_: "t0k",
    }


def attempt(source: str) -> object:
    return render(
        compile_template(source), names(), now="2024-01-01", allow_loops=True, random=lambda _: 0, warnings=[]
    )


# -- escapes -------------------------------------------------------------------------------------------------

CORPUS = [
    line
    for line in Path(__file__).with_name("escapes.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("# ")
]
SUBJECTS = [
    "''",
    "[1]",
    "{'a': 1}",
    "(1,)",
    "7",
    "2.5",
    "true",
    "none",
    "x",
    "l",
    "s",
    "v",
    "o",
    "v.data",
    "missing",
]
SUBJECTS += ["range(2)", "now()", "(s|safe)", "(l|groupby('id')|first)", "(x|items)", "token('a')"]
NAMES = [
    "__class__",
    "__init__",
    "__globals__",
    "__dict__",
    "__getattribute__",
    "__subclasses__",
    "__reduce__",
]
WAYS = ["{0}.{1}", "{0}['{1}']", "{0}|attr('{1}')", "[{0}]|map(attribute='{1}')|list", "{0}['{1}'|lower]"]
PRODUCT = ["{{ " + way.format(subject, name) + " }}" for subject, name, way in itertools.product(SUBJECTS, NAMES, WAYS)]


def test_the_corpus_is_large() -> None:
    assert len(set(CORPUS)) >= 250
    assert len(PRODUCT) >= 700


def refused(source: str) -> bool:
    try:
        attempt(source)
    except REFUSALS:
        return True
    return False


def test_every_escape_is_refused() -> None:
    assert [source for source in CORPUS if not refused(source)] == []


def test_every_way_to_every_hidden_name_of_everything_is_refused() -> None:
    assert [source for source in PRODUCT if not refused(source)] == []


MACHINERY = """
lipsum cycler joiner dict namespace range now environment context token missing v._raw v._plain o._fields
missing._path x.items x.keys s.upper l.append v.items caller loop __builtins__ resolve undefined ours
"""


@pytest.mark.parametrize("expression", MACHINERY.split())
def test_names_of_the_machinery_are_not_there(expression: str) -> None:
    assert attempt("{{ " + expression + " }}") is None


def test_a_method_call_suggests_the_filter() -> None:
    with pytest.raises(TemplateRefused, match=r"line 1: methods such as '.upper\(\)' .* '\| upper'"):
        compile_template("{{ 'x'.upper() }}")
    with pytest.raises(TemplateRefused, match=r"methods such as '.append\(\)' are not available$"):
        compile_template("{{ l.append(1) }}")
    with pytest.raises(TemplateRefused, match="'lipsum' cannot be called; use a filter"):
        compile_template("{{ lipsum() }}")


def test_keys_that_look_hidden_are_readable_where_they_are_data() -> None:
    data = {"d": {"_ref": 1, "__typename": "T", "__class__": "C"}, "v": view_of({"_x": 2})}
    for source, expected in [
        ("{{ d._ref }}", 1),
        ("{{ d.__typename }}", "T"),
        ("{{ d['__class__'] }}", "C"),
        ("{{ v._x }}", 2),
        ("{{ d._zzz is defined }}", False),
        ("{{ d.__zzz is defined }}", False),
    ]:
        assert render(compile_template(source), data) == expected, source


def test_an_attribute_of_python_is_refused_when_the_template_is_compiled() -> None:
    with pytest.raises(TemplateRefused, match="__class__"):
        compile_template("{{ d.__class__ }}")


def test_no_template_changes_our_data() -> None:
    given_names = names()
    before = copy.deepcopy({key: given_names[key] for key in ("x", "l", "s", "n")})
    for source in [*CORPUS, *PRODUCT[::7]]:
        with suppress(*REFUSALS):
            render(compile_template(source), given_names, now="2024-01-01", allow_loops=True)
        assert {key: given_names[key] for key in before} == before, source
        assert given_names["v"] == {"a": 1}, source


def test_filters_do_not_change_what_they_are_given() -> None:
    data = {"l": [3, 1, 2], "m": {"b": 1}, "r": [{"k": 1}, {"k": 0}]}
    before = copy.deepcopy(data)
    for source in (
        "{{ l | sort }}{{ l | reverse }}{{ l + [4] }}{{ l | batch(2, 0) }}{{ l | slice(2, 0) }}{{ l * 2 }}",
        "{{ r | sort(attribute='k') }}{{ r | groupby('k') }}{{ m | dictsort }}{{ l | unique }}",
        "{{ [l] | sum(start=[]) }}",
        "{% set a = l %}{% set b = a + [1] %}{{ b }}{{ a }}",
    ):
        render(compile_template(source), data)
    assert data == before


def test_the_stock_entry_points_of_the_environment_are_closed_too() -> None:
    evaluation = Evaluation(resolve=lambda _: None)
    assert SANDBOX.globals == {}
    assert SANDBOX.getattr({"items": 1}, "items") == 1
    assert SANDBOX.getitem([1], 0) == 1
    assert not SANDBOX.getattr("x", "upper")
    assert SANDBOX.call_binop(evaluation, "+", 1, 2) == 3
    assert SANDBOX.call_unop(evaluation, "-", 1) == -1
    for subject in ("x", {}, view_of({})):
        with pytest.raises(TemplateRefused):
            SANDBOX.getattr(subject, "__class__")
        with pytest.raises(TemplateRefused):
            SANDBOX.getitem(subject, "__class__")
    for callee in (len, print, str.upper, "x", type):
        with pytest.raises(TemplateRefused):
            SANDBOX.call(evaluation, callee, "x")


# -- bounds --------------------------------------------------------------------------------------------------

BIG: dict[str, Any] = {
    "s": "a" * 1_000_000,
    "dash": "-" * 900_000,
    "space": "a " * 400_000,
    "less": "<" * 1_000_000,
    "comment": "<!--" * 250_000,
    "l": list(range(100_000)),
    "rows": [{"n": i, "k": str(i % 7)} for i in range(50_000)],
    "d": {str(i): i for i in range(50_000)},
    "x": 5,
}


def doubled(first: str, again: str, last: str, times: int = 60) -> str:
    return "{% set a = " + first + " %}" + again * times + last


HOSTILE = [
    "{{ 'a' * 1000000000 }}",
    "{{ 1000000000 * 'a' }}",
    "{{ [0] * 1000000000 }}",
    "{{ [[[1] * 1000] * 1000] * 1000 }}",
    "{{ ([[[1] * 1000] * 1000] * 1000) | string }}",
    "{{ ([[[1] * 1000] * 1000] * 1000) | tojson }}",
    "{{ ([[[1] * 1000] * 1000] * 1000) ~ '' }}",
    "{{ '%s' % ([[[1] * 1000] * 1000] * 1000) }}",
    "{{ ([[[1] * 1000] * 1000] * 1000) | join }}",
    "{{ [[[1] * 1000] * 1000] * 1000 == [[[1] * 1000] * 1000] * 1000 }}",
    "{{ [[[1] * 1000] * 1000] * 1000 < [[[1] * 1000] * 1000] * 1000 }}",
    "{{ [[[[1] * 1000] * 1000] * 1000, [[[1] * 1000] * 1000] * 1000] | sort }}",
    "{{ [[[[1] * 1000] * 1000] * 1000, [[[1] * 1000] * 1000] * 1000] | max }}",
    "{{ [[[1] * 1000] * 1000] * 1000 in [[[[1] * 1000] * 1000] * 1000] }}",
    "{{ 99 ** 99 ** 99 ** 99 }}",
    "{{ 2 ** 100000000 }}",
    "{{ (2 ** 4000) * (2 ** 4000) }}",
    "{{ 10 ** 4096 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '%(a)1000000000s' % {'a': 1} }}",
    "{{ '%((a))1000000000s' % {'(a)': 1} }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000s' | format('a') }}",
    "{{ ('%(a)s' * 100000) | format(a=s) }}",
    "{{ ('%s' * 100000) | format(*l) }}",
    "{{ ('%9999d' * 200) | format(*l[:200]) }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ 'a' | center(-1) }}",
    "{{ s | indent(10000000) }}",
    "{{ ('\\n' * 100000) | indent(10000) }}",
    "{{ ('\\n' * 100000) | indent('x' * 10000) }}",
    "{{ s | replace('a', 'b' * 1000) }}",
    "{{ s | replace('', 'bbbb') }}",
    "{{ less | e }}",
    "{{ s | urlencode }}",
    "{{ s | wordwrap(1) }}",
    "{{ dash | wordwrap(5) }}",
    "{{ space | wordwrap(5) }}",
    "{{ space | title }}",
    "{{ [1] | batch(1000000000, 0) }}",
    "{{ [1] | slice(1000000000) }}",
    "{{ range(1000000000) }}",
    "{{ range(10 ** 1000) }}",
    "{{ l | join(s) }}",
    "{{ ([s] * 1000) | join }}",
    "{{ ([s] * 1000) | sort }}",
    "{{ ([s] * 1000) | unique }}",
    "{{ ([s] * 1000) | map('upper') }}",
    "{{ [s, s] | tojson }}",
    "{{ s ~ s }}",
    "{{ s + s }}",
    "{{ s | b64encode | b64encode }}",
    "{{ 1 | round(-1000000000) }}",
    "{{ 1.5 | round(1000000000) }}",
    "{{ ('9' * 5000) | int }}",
    "{{ ('f' * 4000) | int(0, 16) }}",
    "{{ ('[' * 500000) | fromjson }}",
    "{{ ('1' * 4000) | fromjson }}",
    "{{ [1] | tojson(100000) }}",
    "{{ ([l] * 1000) | sum(start=[]) }}",
    "{{ rows | tojson }}",
    "{{ rows | pprint }}",
    "{{ rows | groupby('k') }}",
    "{{ rows | sort(attribute='k') }}",
    "{{ rows | map('items') }}",
    "{{ d | xmlattr }}",
    "{{ d | urlencode }}",
    "{{ l | map('default', l, true) | tojson }}",
    "{{ range(1000) | map(attribute='x', default=l) | tojson }}",
    "{{ l + l + l + l + l + l + l + l + l + l + l + l }}",
    doubled("'aaaaaaaaaa'", "{% set a = a + a %}", "{{ a | length }}"),
    doubled("[1, 2, 3]", "{% set a = a + a %}", "{{ a | length }}"),
    doubled("[1]", "{% set a = [a, a] %}", "{{ a }}"),
    doubled("[1]", "{% set a = [a, a] %}", "{{ [a] == [[a, 1]] }}{{ a | tojson }}"),
    doubled("{'x': 1}", "{% set a = {'x': a, 'y': a} %}", "{{ a | tojson }}"),
    doubled("'x'", "{% set a %}{{ a }}{{ a }}{% endset %}", "{{ a | length }}"),
    doubled("'x'", "{% set a = a ~ a %}", "{{ a | length }}"),
    doubled("'x'", "{% set a = a | replace('x', 'xx') %}", "{{ a | length }}"),
    doubled("'%s%s'", "{% set a = a % (a, a) %}", "{{ a | length }}"),
    doubled("'x'", "{% set a = [a, a] | join %}", "{{ a | length }}"),
    doubled("2", "{% set a = a * a %}", "{{ a }}"),
    doubled("2", "{% set a = a ** 2 %}", "{{ a }}"),
    doubled("[]", "{% set a = [[[[[[[[a]]]]]]]] %}", "{{ a | tojson }}" * 3),
    "{{ s }}" * 3,
    "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
    "{{ " + "[" * 500 + "1" + "]" * 500 + " }}",
    "{{ " + "{'a': " * 40 + "1" + "}" * 40 + " }}",
    "{{ " + "not " * 3000 + "1 }}",
    "{{ " + "-" * 3000 + "1 }}",
    "{{ 1" + " + 1" * 2400 + " }}",
    "{{ 1" + " + 1" * 120 + " }}",
    "{{ " + "1 and " * 2400 + "1 }}",
    "{{ a" + ".a" * 3000 + " }}",
    "{{ a" + "[0]" * 60 + " }}",
    "{{ a" + " | abs" * 3000 + " }}",
    "{{ 1" + " if 1 else 1" * 2000 + " }}",
    "{% if 1 %}" * 500 + "{% endif %}" * 500,
    "{% if 1 %}" * 60 + "{% endif %}" * 60,
    "{{ " * 100_000,
    "{% " * 100_000,
    "{# " * 80_000,
    "{{ '" + "a" * 250_000,
    "{{ x }}" * 30_000,
    "{% raw %}" * 20_000,
    "{{ [" + "1," * 20_000 + "] }}",
    "{{ {" + "1:1," * 1_800 + "} }}",
    "{{ ('\\x01' * 300000) | tojson }}",
    "{{ 0x" + "f" * 250_000 + " }}",
    "{{ " + "9" * 5_000 + " }}",
    "{{ 1e999 }}",
    "a" * (TEMPLATE_CHARS_MAX + 1) + "{{ x }}",
    "{{ " + " ~ ".join(["(s | lower | length)"] * 90) + " ~ (l | sort | length)" * 40 + " }}",
    "{{ " + " + ".join(["(l | sort | length)"] * 60) + " }}",
    "{{ " + " + ".join(["((s ~ '') | length)"] * 80) + " ~ (l == l) " * 80 + " }}",
    "{{ " + " ~ ".join(["(l == l)"] * 90) + " }}",
    "{% for i in l %}{{ s }}{% endfor %}",
    "{% for i in l %}x{% endfor %}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
]


def measured(source: str) -> tuple[bool, float]:
    """Whether a template is refused, and the processor seconds of compiling and rendering it.

    The best of a few tries counts: other programs run here as well.
    """
    best, was_refused = 100.0, False
    for _ in range(4):
        started = time.thread_time()
        try:
            render(compile_template(source), BIG)
        except REFUSALS:
            was_refused = True
        best = min(best, time.thread_time() - started)
        if best < SECONDS_MAX:
            break
    return was_refused, best


@pytest.mark.parametrize("source", HOSTILE, ids=lambda source: source[:50].replace("\\", "/"))
def test_a_hostile_template_is_refused_at_once(source: str) -> None:
    was_refused, seconds = measured(source)
    assert was_refused
    assert seconds < SECONDS_MAX


COSTLY = [
    "{{ s | upper | lower | length }}",
    "{{ s[::-1] | length }}",
    "{{ 'b' in s }}",
    "{{ l in [l, l] }}",
    "{{ l == l }}",
    "{{ rows == rows }}",
    "{{ s | split('a') | length }}",
    "{{ less | striptags | length }}",
    "{{ comment | striptags | length }}",
    "{{ s | b64encode | b64decode | length }}",
    "{{ l[:40000] | sort | length }}",
    "{{ l[:20000] | map('string') | join(',') | length }}",
    "{{ rows[:30000] | map(attribute='n') | max }}",
    "{{ rows[:40000] | selectattr('n', 'gt', 39990) | list | length }}",
    "{{ rows | max(attribute='n') }}",
    "{{ space | wordcount }}",
    "{{ rows[:2000] | tojson | fromjson | length }}",
    "{{ l | slice(100000) | length }}",
    "{{ {'rows': rows} }}",
    "{{ rows if rows else [] }}",
    "{{ d | length }}",
    "{% filter upper %}{{ s }}{% endfilter %}",
    "{{ " + " ~ ".join(["x"] * 1000) + " }}",
    "{{ " + "1 < " * 500 + "x }}",
]


@pytest.mark.parametrize("source", COSTLY, ids=lambda source: source[:50])
def test_what_is_allowed_is_quick_enough_for_an_event_loop(source: str) -> None:
    was_refused, seconds = measured(source)
    assert not was_refused
    assert seconds < SECONDS_MAX


def test_a_child_process_may_work_longer_but_within_the_same_sizes() -> None:
    template = compile_template("{{ rows | sort(attribute='k') | length }}")
    with pytest.raises(TemplateRefused, match="too much work"):
        render(template, BIG)
    assert render(template, BIG, allow_loops=True) == 50_000
    for source in (
        "{{ s ~ s }}",
        "{{ 'a' * 10**9 }}",
        "{{ range(10**9) }}",
        "{% for i in l %}{{ s }}{% endfor %}",
    ):
        with pytest.raises(TemplateRefused):
            render(compile_template(source), BIG, allow_loops=True)
    captured = "{% macro m() %}{% for i in l %}0123456789{% endfor %}{% endmacro %}{{ m() | length }}"
    assert render(compile_template(captured), {"l": range(90_000)}, allow_loops=True) == "900000"
    with pytest.raises(TemplateRefused, match="characters"):
        render(compile_template(captured), {"l": list(range(100_001))}, allow_loops=True)


def test_templates_with_loops_need_a_child_process() -> None:
    for source in (
        "{% for i in l %}{{ i }}{% endfor %}",
        "{% macro m() %}x{% endmacro %}{{ m() }}",
        "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall %}",
    ):
        template = compile_template(source)
        assert template.needs_child
        with pytest.raises(TemplateRefused, match="child process only"):
            render(template, BIG)
    assert not compile_template("{% if x %}{% set y = 1 %}{{ y }}{% endif %}").needs_child


def test_memory_that_runs_out_is_a_refusal() -> None:
    class Greedy(dict[str, object]):
        def __getitem__(self, key: str) -> object:
            raise MemoryError

    with pytest.raises(TemplateRefused, match="too much memory"):
        render(compile_template("{{ v.x + 1 }}"), {"v": view_of(Greedy())})


PIECES = """
{{ }} {% %} {# #} ( ) [ ] { } . , : | ~ + - * / // ** % == < > = ' " \\ a s l x 1 2.5 if else for in
endif endfor set not and or is defined none loop range now __class__ attr map upper macro endmacro
"""


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES.split()), max_size=25))
def test_no_text_makes_anything_but_our_errors(pieces: list[str]) -> None:
    for source in (" ".join(pieces), "{{ " + " ".join(pieces) + " }}"):
        with suppress(*REFUSALS):
            render(compile_template(source), names(), allow_loops=True)
        with suppress(TemplateInvalid, TemplateRefused):
            compile_condition(source)
        with suppress(TemplateInvalid, TemplateRefused):
            compile_value({"a": [source]})


FORMS = """
({0} * {1}); ({0} + {1}); ({0} ~ {1}); ({0} ** {1}); ({0} % {1}); ({0} | join({1})); [{0}, {1}]; ({0} | unique);
({0} | replace({1}, {1})); ({0} == {1}); ({0} in {1}); ({0} | sort); ({0} | tojson); ({0} | batch({1}, {1}));
({0} | center({1})); ({0} | list); ({0} | map('string')); ({0} | sum(start={1}))
"""


def test_random_hostile_expressions_stay_quick() -> None:
    dice = random.Random(7)
    forms = [form.strip() for form in FORMS.split(";")]
    operands = ["s", "l", "rows", "d", "x", "'ab'", "[1, 2]", "99999999", "2.5", "{'a': l}"]

    def expression(depth: int) -> str:
        if depth == 0:
            return dice.choice(operands)
        return dice.choice(forms).format(expression(depth - 1), expression(dice.randrange(depth)))

    for _ in range(60):
        source = "{{ " + expression(dice.randrange(1, 5)) + " }}"
        assert measured(source)[1] < 2 * SECONDS_MAX, source
