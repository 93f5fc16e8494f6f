"""Filters and tests: those of Jinja agree with Jinja, ours do what the language says."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import jinja2
import jinja2.filters
import jinja2.tests
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.errors import TemplateFailed, TemplateInvalid, TemplateRefused
from noetl.core.expression import compile_template, render, view_of
from noetl.core.expression.data_filters import FILTERS, TESTS

DATA: dict[str, Any] = {
    "n": 42,
    "f": 3.14159,
    "s": "the Quick  brown-fox",
    "html": "<p>a & 'b' \"c\"</p> <!-- x --> d",
    "l": [3, 1, 2, 3],
    "words": ["b", "A", "c", "a"],
    "rows": [
        {"n": 2, "k": "x", "d": {"v": 1}},
        {"n": 1, "k": "Y", "d": {"v": 3}},
        {"n": 3, "k": "x", "d": {"v": 2}},
        {"n": 4, "k": "y", "d": {}},
    ],
    "m": {"b": 1, "A": 3, "c": 2},
    "e": [],
    "text": "one\ntwo\n\nthree",
    "long": "word " * 40,
}


def ask(expression: str, **names: object) -> Any:
    return render(compile_template("{{ " + expression + " }}"), {**DATA, **names})


def listed(value: Any) -> Any:
    """What stock Jinja gives, as plain data."""
    if isinstance(value, jinja2.Undefined):
        return None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict):
        return {key: listed(item) for key, item in value.items()}
    if isinstance(value, tuple | list | Iterator | range):
        return [listed(item) for item in value]
    return value


STOCK = """
-n | abs; f | abs; l | batch(3); l | batch(3, 0); l | batch(10, 'x'); s | capitalize; 'a' | center(9)
l | count; missing | d('x'); n | default('x'); '' | default('x', true); m | dictsort
m | dictsort(true); m | dictsort(false, 'value'); m | dictsort(by='value', reverse=true); html | e
html | escape; html | forceescape; 1 | filesizeformat; 10 | filesizeformat; 12345 | filesizeformat
12345678 | filesizeformat(true); 999 | filesizeformat; 1e26 | filesizeformat; 1e30 | filesizeformat
'2048' | filesizeformat(true); l | first; e | first; 'ab' | first; m | first; '1.5' | float; 'x' | float
'x' | float(2.5); none | float; '%s and %05d' | format('a', 3); '%(a)s %(b).2f' | format(a=1, b=2)
'%x %o %e %g %c %%' | format(255, 8, 1.5, 2.5, 'z'); text | indent; text | indent(2, true)
text | indent(2, false, true); text | indent('> ', first=true); 'a' | indent; '' | indent; '42' | int; '0x1F' | int(0, 16)
'x' | int; 'x' | int(7); '42.9' | int; 3.9 | int; none | int; true | int; [] | int(5); l | join; l | join('|')
rows | join(',', 'k'); rows | join(',', attribute='d.v'); 'abc' | join('-'); l | last; 'ab' | last; e | last
l | length; s | length; m | length; 'ab' | list; m | list; s | lower; rows | map(attribute='k'); rows | map(attribute='d.v')
rows | map(attribute='d.v', default=0); words | map('upper'); l | map('string'); words | map('replace', 'a', 'z')
l | min; l | max; words | min; words | max; words | max(true); e | min; rows | max(attribute='n')
rows | min(attribute='d.v') if false else 1; l | reject('odd'); l | reject; rows | rejectattr('n', 'gt', 2)
rows | rejectattr('d.v'); s | replace('o', '0'); s | replace('o', '0', 1); 'aaa' | replace('', '-'); 12 | replace('1', 'x')
l | reverse; 'abc' | reverse; m | reverse if false else 1; f | round; f | round(2); f | round(2, 'ceil'); f | round(2, 'floor')
n | round; -2.5 | round; 1234 | round(-2); html | safe; l | select('odd'); l | select; l | select('divisibleby', 3)
rows | selectattr('n', '>', 2); rows | selectattr('d.v'); rows | selectattr('k', 'eq', 'x'); rows | selectattr('k', 'in', ['x'])
l | slice(2); l | slice(3, 'f'); l | slice(7); l | sort; l | sort(true); words | sort; words | sort(case_sensitive=true)
rows | sort(attribute='n'); rows | sort(attribute='k,n'); rows | sort(true, attribute='k'); 5 | string; s | string
l | sum; rows | sum('n'); rows | sum(attribute='n', start=10); s | title; "o'neil (x) [y]-z" | title
'  a  ' | trim; 'xxaxx' | trim('x'); long | truncate(20); long | truncate(20, true); long | truncate(20, false, '!', 0)
'short' | truncate(20); l | unique; words | unique; words | unique(true); rows | unique(attribute='k'); s | upper
'a b/c?d=é&' | urlencode; {'a': 1, 'b c': 'd&e'} | urlencode; [['a', 1]] | urlencode; 5 | urlencode; s | wordcount; long | wordwrap(20)
'abcdefghij' | wordwrap(4); 'abcdefghij' | wordwrap(4, false); long | wordwrap(20, true, '|'); 'a-b-c-d' | wordwrap(3)
{'a': 1, 'b': none, 'c': 'x"y'} | xmlattr; {'a': 1} | xmlattr(false); {} | xmlattr; {'a': [1, 'x']} | pprint
rows | groupby('k') | map(attribute='grouper'); rows | groupby('k') | map('last') | map('length')
rows | groupby('k', case_sensitive=true) | map(attribute=0); rows | groupby('d.v', default=0) | map(attribute='list') | map('length')
m | items; 3 is odd; 4 is even; 9 is divisibleby 3; n is defined; missing is undefined; 'upper' is filter; 'zzz' is filter
'odd' is test; none is none; true is boolean; 1 is boolean; false is false; 0 is false; true is true; 1 is integer; true is integer
1.5 is float; 'a' is lower; 'A' is upper; 'a' is string; m is mapping; l is mapping; 1 is number; 'a' is number; l is sequence
1 is sequence; l is iterable; 1 is iterable; none is sameas none; 1 is in l; 9 is in l; 1 is eq 1; 1 is ne 1; 2 is gt 1; 2 is ge 2
1 is lt 2; 1 is le 0; 1 is equalto 1; 2 is greaterthan 1; 1 is lessthan 2; n is callable; html is escaped; 3 is not odd
1 + 2 * 3 - 4 / 2; 7 // 2; 7 % 3; 2 ** 10; -n; +n; 2 ** -1; 1.5 * 2; 'a' * 3; [1] * 2; 3 * 'b'; 'a' + 'b'; [1] + [2]; true + 1
'%s-%s' % (1, 'x'); '%d' % 3; '%(k)s' % {'k': 'v'}; '%s' % 'a'; 'a' ~ 1 ~ none ~ true; 1 < 2 < 3; 1 < 2 > 5; 1 == 1.0
'a' in 'abc'; 'b' in m; 1 not in l; 1 if n > 3 else 2; n if false; not n; n and 's'; 0 or 'x'; l[0]; l[-1]; l[1:]; l[::-1]
'abc'[1]; 'abc'[:2]; m.b; m['A']; rows[0].d.v; rows[-1]['k']; (1, 2)[1]; {'a': 1}.a; [1, [2, [3]]]; {'a': {'b': n}}; 1_000
range(3) | list; range(1, 10, 3) | list; 'a\\tb\\u00e9'; "it's"; 1.5e3; l == [3, 1, 2, 3]; 'x' != 'y'; (1, 2) | list
"""  # noqa: E501


@pytest.mark.parametrize("expression", [part.strip() for part in STOCK.replace("\n", ";").split(";") if part.strip()])
def test_what_jinja_has_gives_what_jinja_gives(expression: str) -> None:
    stock = jinja2.Environment(undefined=jinja2.ChainableUndefined)
    expected = listed(stock.compile_expression(expression)(**DATA))
    actual = ask(expression)
    assert actual == expected
    assert type(actual) is type(expected)


def test_every_stock_filter_and_test_is_there_except_the_ones_left_out() -> None:
    assert set(jinja2.filters.FILTERS) - set(FILTERS) == {"urlize"}
    assert set(jinja2.tests.TESTS) - set(TESTS) == set()
    ours = {"b64encode", "b64decode", "fromjson", "keys", "values", "get", "split", "truth"}
    assert set(FILTERS) - set(jinja2.filters.FILTERS) == ours


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'é' | b64encode", "w6k="),
        ("'w6k=' | b64decode", "é"),
        ("'[1, {\"a\": null}]' | fromjson", [1, {"a": None}]),
        ("'[NaN, 1e999, -Infinity, 1.5]' | fromjson", [None, None, None, 1.5]),
        ("l | fromjson", [3, 1, 2, 3]),
        ("m | keys", ["b", "A", "c"]),
        ("m | values", [1, 3, 2]),
        ("m | items", [["b", 1], ["A", 3], ["c", 2]]),
        ("m | get('b')", 1),
        ("m | get('z')", None),
        ("m | get('z', 9)", 9),
        ("missing | get('z', 9)", 9),
        ("l | get(0)", 3),
        ("m | attr('b')", 1),
        ("m | attr('z') is defined", False),
        ("'a,b,,c' | split(',')", ["a", "b", "", "c"]),
        ("' a  b ' | split", ["a", "b"]),
        ("'a,b,c' | split(',', 1)", ["a", "b,c"]),
        ("'false' | truth", False),
        ("l | truth", True),
        ("m | tojson", '{"b": 1, "A": 3, "c": 2}'),
        ("'<é & \\'>' | tojson", '"<é & \'>"'),
        ("[1, [2]] | tojson(2)", "[\n  1,\n  [\n    2\n  ]\n]"),
        ("(1, 2) | tojson", "[1, 2]"),
        ("{'a': missing} | tojson", '{"a": null}'),
        ("{1: 'a', none: 'b'} | tojson", '{"1": "a", "null": "b"}'),
        ("m | string", '{"b": 1, "A": 3, "c": 2}'),
        ("[m] | join", '{"b": 1, "A": 3, "c": 2}'),
        ("m ~ ''", '{"b": 1, "A": 3, "c": 2}'),
        ("'%s' % m", '{"b": 1, "A": 3, "c": 2}'),
        ("'%s' % [1, 2]", "[1, 2]"),
        ("'%s' | format(missing)", ""),
        ("'inf' | float", 0.0),
        ("'nan' | float(1)", 1),
        ("1e308 | int | string | length", 309),
        ("rows | groupby('k') | first", ["x", [DATA["rows"][0], DATA["rows"][2]]]),
        ("(rows | groupby('k') | first).grouper", "x"),
        ("(rows | groupby('k') | first).list | length", 2),
        ("(rows | groupby('k') | first)[0]", "x"),
        ("(rows | groupby('k') | first).zzz", None),
        ("1 is sameas 1.0", False),
        ("1 is sameas true", False),
        ("missing | tojson", "null"),
        ("[3, 1] | sort | first", 1),
        ("e | last | default('none')", "none"),
        ("(1, 2) == [1, 2]", True),
        ("{'b': 1} | dictsort", [["b", 1]]),
        ("range(0) | first is defined", False),
        ("m | last", "c"),
        ("l | map('default', 5) | list", [3, 1, 2, 3]),
        ("'<!-- a <b> --> x <i>y</i> <' | striptags", "x y <"),
        ("[[1], [2]] | sum(start=[])", [1, 2]),
        ("[1] | batch(2, fill_with='x')", [[1, "x"]]),
        ("'a' | safe", "a"),
        ("html | e | e", ask("html | e").replace("&", "&amp;")),
    ],
)
def test_ours(expression: str, expected: object) -> None:
    actual = ask(expression)
    assert actual == expected
    assert type(actual) is type(expected)


@pytest.mark.parametrize("name", ["e", "escape", "forceescape", "safe", "string", "tojson", "urlencode", "striptags"])
def test_no_filter_returns_markup(name: str) -> None:
    assert type(ask(f"html | {name}")) is str
    assert ask(f"('<' | {name}) ~ '<'") == ask(f"'<' | {name}") + "<"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("'x' | abs", "a number is needed, not a text"),
        ("none | list", "a list is needed, not none"),
        ("5 | length", "a number has no length"),
        ("l | items", "a mapping is needed, not a list"),
        ("5 | xmlattr", "xmlattr needs a mapping"),
        ("{'a b': 1} | xmlattr", "is no attribute name"),
        ("'x' | filesizeformat", "a number is needed"),
        ("l | batch(0)", "at least one item"),
        ("l | slice(0)", "1 to 100,000 slices"),
        ("m | dictsort(by='x')", "by key or by value"),
        ("f | round(1, 'up')", "common, ceil or floor"),
        ("'x' | truncate(1)", "at least 3"),
        ("'%s' | format(1, a=2)", "not both"),
        ("'%s %s' | format(1)", "not enough arguments"),
        ("'%z' | format(1)", "unsupported format character"),
        ("l | map", "map needs"),
        ("l | map(attribute='x', z=1)", "map needs"),
        ("l | map('zzz')", "no filter named 'zzz'"),
        ("l | select('zzz')", "no test named 'zzz'"),
        ("rows | sort(attribute=1.5)", "an attribute must be"),
        ("[1, 'a'] | sort", "not supported"),
        ("'{' | fromjson", "not JSON"),
        ("('[' * 5000) | fromjson", "not JSON"),
        ("'!!' | b64decode", "not base64"),
        ("'/w==' | b64decode", "not base64"),
        ("'a' | split('')", "empty separator"),
        ("1 + 'a'", "cannot compute a number [+] a text; use '~'"),
        ("'a' - 1", "cannot compute a text - a number"),
        ("{} + {}", "cannot compute a mapping [+] a mapping"),
        ("[1] * 1.5", "cannot compute a list [*] a number"),
        ("'a' * {}", "cannot compute"),
        ("-'a'", "cannot compute -a text"),
        ("1 < 'a'", "cannot compare a number with a text"),
        ("{} < {}", "cannot compare a mapping with a mapping"),
        ("1 in 5", "nothing can be in a number"),
        ("1 in 'abc'", "only a text can be in a text"),
        ("{[1]: 2}", "a key must be a text or a number, not a list"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0 ** -1", "not a finite number"),
        ("(-8) ** 0.5", "not a finite number"),
        ("1e308 * 10", "not a finite number"),
        ("m[1:2]", "cannot take a part of a mapping"),
        ("l[::0]", "slice step cannot be zero"),
        ("l[1:'a']", "slice indices must be"),
        ("s | center(zzz=1)", "center[(][)] got an unexpected keyword argument"),
        ("s | upper(1)", "upper[(][)] takes 2 positional arguments"),
        ("range('a')", "cannot be interpreted as an integer"),
        ("range(1, 2, 0)", "must not be zero"),
        ("now()", "no time here"),
        ("[1] in {}", "unhashable"),
    ],
)
def test_a_failure_says_what_is_wrong(expression: str, message: str) -> None:
    with pytest.raises(TemplateFailed, match=message):
        ask(expression)


def test_an_unknown_filter_or_test_does_not_compile() -> None:
    with pytest.raises(TemplateInvalid, match="line 2: no filter named 'urlize'"):
        compile_template("a\n{{ s | urlize }}")
    with pytest.raises(TemplateInvalid, match="line 1: no test named 'zzz'"):
        compile_template("{{ 1 if s is zzz else 2 }}")


def test_random_needs_the_capability() -> None:
    template = compile_template("{{ l | random }}")
    assert template.uses_random
    with pytest.raises(TemplateRefused, match="fields of a task only"):
        render(template, DATA)
    assert render(template, DATA, random=lambda count: count - 2) == 2
    assert render(compile_template("{{ e | random }}"), DATA, random=lambda _: 0) is None
    for hidden in ("l | map('random')", "l | map(name)", "l | map(*names)", "l | map('ran' ~ 'dom')"):
        assert compile_template("{{ " + hidden + " }}").uses_random, hidden
    for harmless in ("l | map('upper')", "l | map(attribute='x')", "l | first", "s | format(*l)"):
        assert not compile_template("{{ " + harmless + " }}").uses_random, harmless


def test_tokens_come_from_the_caller() -> None:
    template = compile_template("{{ token('api', audience) }}")
    assert template.roots == {"token", "audience"}
    asked: list[object] = []

    def token(*args: object, **kwargs: object) -> str:
        asked.append((*args, *kwargs.values()))
        return "t0k"

    assert render(template, {"token": token, "audience": view_of("aud")}) == "t0k"
    assert asked == [("api", "aud")]
    assert render(compile_template("{{ token('api', audience='a') }}"), {"token": token}) == "t0k"
    assert asked[1] == ("api", "a")
    with pytest.raises(TemplateRefused, match="fields of a task only"):
        render(template, {"audience": 1})
    assert render(compile_template("{{ token }}"), {"token": "data"}) == "data"
    assert render(compile_template("{{ [token, token('a')] }}"), {"token": token}) == [None, "t0k"]


def test_now_is_given() -> None:
    template = compile_template("{{ now() ~ '!' }}")
    assert template.uses_now
    assert template.roots == frozenset()
    assert render(template, {}, now="2024-01-01T00:00:00Z") == "2024-01-01T00:00:00Z!"
    assert render(compile_template("{{ now }}"), {"now": 5}) == 5


@given(st.text())
def test_tojson_and_replace_make_a_valid_sql_literal(text: str) -> None:
    literal = render(compile_template("""'{{ v | tojson | replace("'", "''") }}'"""), {"v": {"t": text}})
    assert isinstance(literal, str)
    inner = literal[1:-1]
    assert "'" not in inner.replace("''", "")
    assert json.loads(inner.replace("''", "'")) == {"t": text}


@given(st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.booleans()))
def test_int_and_float_never_fail_on_data(value: object) -> None:
    for filter_name in ("int", "float"):
        try:
            result = render(compile_template("{{ v | " + filter_name + "(-1) }}"), {"v": value})
        except TemplateRefused:
            assert isinstance(value, int)
            continue
        assert isinstance(result, int | float)
        assert math.isfinite(result)
