"""Placeholders and bound values."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.tools.postgres.params import ParameterType, array_text, fitted, literal_text
from noetl.tools.sql.params import Bound, ParamsInvalid, bind

# --- placeholders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "params", "expected"),
    [
        ("SELECT $1, $2, $1", [7, 8], Bound("SELECT $1, $2, $1", (7, 8))),
        ("SELECT $1 % 2, '%s'", [7], Bound("SELECT $1 % 2, '%s'", (7,))),
        ("SELECT %s, %s", [7, 8], Bound("SELECT $1, $2", (7, 8))),
        ("SELECT 9 %% %s", [7], Bound("SELECT 9 % $1", (7,))),
        (
            "SELECT '%s', \"%s\", $$%s$$ -- %s\n, /* %s */ %s",
            [7],
            Bound("SELECT '%s', \"%s\", $$%s$$ -- %s\n, /* %s */ $1", (7,)),
        ),
        ("SELECT a$1, $1", [7], Bound("SELECT a$1, $1", (7,))),
        ("SELECT :a, :b, :a", {"b": 8, "a": 7}, Bound("SELECT $1, $2, $1", (7, 8))),
        ("SELECT :a::int, x::text", {"a": 7}, Bound("SELECT $1::int, x::text", (7,))),
        ("SELECT %(a)s, %(b c)s, :a", {"b c": 8, "a": 7}, Bound("SELECT $1, $2, $1", (7, 8))),
        (
            "SELECT ':a', \":a\", E'\\':a', $$:a$$ -- :a\n, :a",
            {"a": 7},
            Bound("SELECT ':a', \":a\", E'\\':a', $$:a$$ -- :a\n, $1", (7,)),
        ),
        ("SELECT xs[1:n], xs[:n]", {"n": 7}, Bound("SELECT xs[1:n], xs[$1]", (7,))),
        ("SELECT f(a := 1), :a", {"a": 7, "unused": 1}, Bound("SELECT f(a := 1), $1", (7,))),
        ("SELECT 9 %% 4, :a", {"a": 7}, Bound("SELECT 9 %% 4, $1", (7,))),
        ("SELECT 1", {"unused": 1}, Bound("SELECT 1", ())),
    ],
)
def test_placeholders_become_numbers(text: str, params: object, expected: Bound) -> None:
    assert bind(text, params) == expected


@pytest.mark.parametrize(
    ("text", "params", "message"),
    [
        ("SELECT $1, $2", [7], "2 placeholders .* 1 values"),
        ("SELECT $1", [7, 8], "1 placeholders .* 2 values"),
        ("SELECT %s", [7, 8], "1 placeholders .* 2 values"),
        ("SELECT 1", [7], "0 placeholders"),
        ("SELECT :gone", {"a": 7}, "no value for :gone"),
        ("SELECT %(gone)s", {"a": 7}, r"no value for %\(gone\)s"),
        ("SELECT %s", {"a": 7}, "mapping"),
        ("SELECT $1", {"a": 7}, "mapping"),
        ("SELECT $1", "text", "list or a mapping, not str"),
        ("SELECT $99999999999999999999", [7], "placeholders"),
    ],
)
def test_params_that_do_not_fit_are_refused_with_the_reason(text: str, params: object, message: str) -> None:
    with pytest.raises(ParamsInvalid, match=message):
        bind(text, params)


@given(st.text(alphabet="ab '\"$:%s()\\-/*;1e\n", max_size=40))
def test_text_without_placeholders_stays_as_it_is(text: str) -> None:
    try:
        bound = bind(text, {"never used": 1})
    except ParamsInvalid:
        return
    assert bound == Bound(text, ()) or "never used" in text


# --- values ----------------------------------------------------------------------------------------------


def kind(name: str, schema: str = "pg_catalog") -> ParameterType:
    return ParameterType(name, schema, name.endswith("[]"))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("int4", 5, 5),
        ("int4", 5.0, 5),
        ("int2", -32768, -32768),
        ("int8", 2**63 - 1, 2**63 - 1),
        ("float8", 1, 1.0),
        ("float8", 1.5, 1.5),
        ("numeric", 1, Decimal(1)),
        ("numeric", 0.1, Decimal("0.1")),
        ("bool", True, True),
        ("text", "a", "a"),
        ("text", 5, "5"),
        ("text", True, "true"),
        ("varchar", {"a": [1, None]}, '{"a": [1, null]}'),
        ("jsonb", {"é": [1.5, None, True]}, '{"é": [1.5, null, true]}'),
        ("json", [1, 2], "[1, 2]"),
        ("jsonb", 5, "5"),
        ("jsonb", '{"ready": "made"}', '{"ready": "made"}'),
        ("bytea", "aGk=", b"hi"),
        ("bytea", b"\x00", b"\x00"),
        ("date", None, None),
        ("int4[]", None, None),
    ],
)
def test_a_value_that_fits_its_type_is_sent_as_it_is(name: str, value: object, expected: object) -> None:
    bound, is_changed = fitted(Bound("SELECT $1", (value,)), [kind(name)])
    assert (bound, is_changed) == (Bound("SELECT $1", (expected,)), False)
    assert type(bound.values[0]) is type(expected)


@pytest.mark.parametrize(
    ("type_", "value", "text", "cast"),
    [
        (kind("int4"), "5", "5", '"pg_catalog"."int4"'),
        (kind("int4"), 2**31, "2147483648", '"pg_catalog"."int4"'),
        (kind("int4"), 5.5, "5.5", '"pg_catalog"."int4"'),
        (kind("int4"), True, "true", '"pg_catalog"."int4"'),
        (kind("bool"), "yes", "yes", '"pg_catalog"."bool"'),
        (kind("bool"), 1, "1", '"pg_catalog"."bool"'),
        (kind("float8"), 2**70, str(2**70), '"pg_catalog"."float8"'),
        (kind("numeric"), "1.10", "1.10", '"pg_catalog"."numeric"'),
        (kind("date"), "2024-02-29", "2024-02-29", '"pg_catalog"."date"'),
        (kind("date"), datetime.date(2024, 2, 29), "2024-02-29", '"pg_catalog"."date"'),
        (kind("uuid"), uuid.UUID(int=1), str(uuid.UUID(int=1)), '"pg_catalog"."uuid"'),
        (kind("bytea"), "\\x6869", "\\x6869", '"pg_catalog"."bytea"'),
        (kind('mo"od', "my schema"), "glad", "glad", '"my schema"."mo""od"'),
        (kind("int4[]"), [1, None, [2]], '{"1",NULL,{"2"}}', '"pg_catalog"."int4"[]'),
        (kind("text[]"), ['a"\\,{}', "", "NULL"], '{"a\\"\\\\,{}","","NULL"}', '"pg_catalog"."text"[]'),
        (kind("bool[]"), [True, False], '{"true","false"}', '"pg_catalog"."bool"[]'),
        (kind("jsonb[]"), [{"a": [1]}, [2]], '{"{\\"a\\": [1]}","[2]"}', '"pg_catalog"."jsonb"[]'),
        (kind("int4[]"), "{1,2}", "{1,2}", '"pg_catalog"."int4"[]'),
    ],
)
def test_any_other_value_is_read_by_the_server(type_: ParameterType, value: object, text: str, cast: str) -> None:
    bound, is_changed = fitted(Bound("SELECT $1, '$1', a$1, $1", (value,)), [type_])
    read = f"($1::pg_catalog.text::{cast})"
    assert is_changed
    assert bound == Bound(f"SELECT {read}, '$1', a$1, {read}", (text,))


def test_only_the_values_that_do_not_fit_are_cast() -> None:
    bound, is_changed = fitted(Bound("SELECT $1, $2, $12", (1, "2", 3)), [kind("int4"), kind("int4"), kind("int8")])
    assert is_changed
    assert bound.text == 'SELECT $1, ($2::pg_catalog.text::"pg_catalog"."int4"), $12'
    assert bound.values == (1, "2", 3)


def test_bytes_that_are_neither_base64_nor_hex_are_refused() -> None:
    with pytest.raises(ParamsInvalid, match="base64"):
        fitted(Bound("SELECT $1", ("not base64!",)), [kind("bytea")])


def test_a_statement_that_wants_values_and_has_none_is_refused() -> None:
    with pytest.raises(ParamsInvalid, match="1 placeholders"):
        fitted(Bound("SELECT $1"), [kind("int4")])


@given(
    st.recursive(st.text(max_size=5) | st.none(), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=6)
)
def test_array_literals_can_be_read_back(value: object) -> None:
    if isinstance(value, list):
        assert read_array(array_text(value)) == value


def read_array(text: str) -> object:
    """As the server reads it: braces, commas, quotes with backslashes, NULL."""
    place = 0

    def item() -> object:
        nonlocal place
        if text[place] == "{":
            place += 1
            found = []
            while text[place] != "}":
                found.append(item())
                place += text[place] == ","
            place += 1
            return found
        if text.startswith("NULL", place):
            place += 4
            return None
        assert text[place] == '"'
        place += 1
        letters = ""
        while text[place] != '"':
            place += text[place] == "\\"
            letters += text[place]
            place += 1
        place += 1
        return letters

    return item()


def test_values_as_the_text_of_a_literal() -> None:
    assert literal_text(False) == "false"
    assert literal_text(1.5) == "1.5"
    assert literal_text(Decimal("1.10")) == "1.1"
    assert literal_text(b"\x01\xff") == "\\x01ff"
    assert literal_text({"a": 1}) == '{"a": 1}'
