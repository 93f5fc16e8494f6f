"""Columns of plain rows: one type for each, or exactly what is in the way."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.adapters.arrow.files.inferred import batch_of, schema_of
from noetl.adapters.arrow.rows import rows_of
from noetl.core.codec import ordered_bytes
from noetl.core.errors import ResultNotTabular
from noetl.core.limits import RESULT_COLUMNS_MAX, RESULT_TYPE_DEPTH_MAX
from noetl.core.results.columns import Columns


def schema(rows: list[Any], chosen: list[str] | None = None) -> Any:
    columns = Columns(chosen)
    columns.add(rows)
    return schema_of(columns.types())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None, None], pa.null()),
        ([None, True, False], pa.bool_()),
        ([1, None, -(2**63)], pa.int64()),
        ([1, 2**63 - 1], pa.int64()),
        ([0, 2**64 - 1], pa.uint64()),
        ([1, 0.5], pa.float64()),
        ([0.5, 2**53], pa.float64()),
        (["", None], pa.string()),
        ([[1], [], None, [None, 2]], pa.list_(pa.int64())),
        ([[], None], pa.list_(pa.null())),
        ([{"a": 1}, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        (
            [[{"a": [1]}], [{"a": None, "b": 0.5}]],
            pa.list_(pa.struct([("a", pa.list_(pa.int64())), ("b", pa.float64())])),
        ),
    ],
)
def test_a_column_has_the_one_type_that_holds_its_values(values: list[object], kind: Any) -> None:
    assert schema([{"x": value} for value in values]) == pa.schema([("x", kind)])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"x": 1}, {"x": "a"}], "column 'x' is text in row 1 and a whole number in a row before it"),
        ([{"x": True}, {"x": None}, {"x": 1}], "column 'x' is a whole number in row 2 and a boolean"),
        ([{"x": [1]}, {"x": {"a": 1}}], "column 'x' is a mapping in row 1 and a list"),
        ([{"x": [1, "a"]}], r"column 'x'\[\] is text in row 0 and a whole number"),
        ([{"x": {"a": 1}}, {"x": {"a": "b"}}], "column 'x'.a is text in row 1"),
        ([{"x": 2**64}], "column 'x' has whole numbers that no column of 64 bits holds"),
        ([{"x": -1}, {"x": 2**63}], "no column of 64 bits"),
        ([{"x": -(2**63) - 1}], "no column of 64 bits"),
        ([{"x": 0.5}, {"x": 2**53 + 1}], "column 'x' has fractions beside whole numbers above 2"),
        ([{"x": 1}, 5], "row 1 is a whole number, and those before it are mappings"),
        ([5, {"x": 1}], "row 1 is a mapping, and those before it are not"),
        ([{f"c{n}": 1 for n in range(RESULT_COLUMNS_MAX + 1)}], "more than 10,000 columns"),
        ([{"x": {f"c{n}": 1 for n in range(RESULT_COLUMNS_MAX + 1)}}], "column 'x' has more than 10,000 members"),
    ],
)
def test_what_has_no_type_is_told_with_its_place_and_what_to_do(rows: list[Any], message: str) -> None:
    with pytest.raises(ResultNotTabular, match=message) as refused:
        schema(rows)
    assert "ask for json or ndjson" in str(refused.value)


def test_rows_that_are_no_mappings_are_one_column() -> None:
    assert schema([1, None, 2]) == pa.schema([("value", pa.int64())])
    assert schema([None, [1], [2]]) == pa.schema([("value", pa.list_(pa.int64()))])


def test_columns_come_in_the_order_in_which_they_appear_or_are_chosen() -> None:
    rows = [{"b": 1}, None, {"a": 2, "b": 3}]
    assert schema(rows).names == ["b", "a"]
    assert schema(rows, ["a", "z"]) == pa.schema([("a", pa.int64()), ("z", pa.null())])
    # What is not chosen may be anything.
    assert schema([{"a": 1, "b": 1}, {"a": 2, "b": "x"}], ["a"]).names == ["a"]


@pytest.mark.parametrize("values", [[1, "a"], [True, {"a": 1}], [[1, "a"], 7], [2**64], ["x", None, 0.5]])
def test_a_column_of_texts_may_have_anything(values: list[object]) -> None:
    columns = Columns(are_texts=True)
    rows = [{"x": value} for value in values]
    columns.add(rows)
    made = schema_of(columns.types())
    assert made == pa.schema([("x", pa.string())])
    assert [row["x"] for row in rows_of(batch_of(rows, made))] == [
        value if value is None or isinstance(value, str) else ordered_bytes(value).decode() for value in values
    ]


def test_nesting_has_a_limit() -> None:
    deep: object = 1
    for _ in range(RESULT_TYPE_DEPTH_MAX + 1):
        deep = [deep]
    with pytest.raises(ResultNotTabular, match="nested more than 20 levels deep"):
        schema([{"x": deep}])


CELLS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8"))
TYPED = st.sampled_from(
    [
        st.none() | st.booleans(),
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
        st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
        st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3),
        st.none() | st.fixed_dictionaries({"a": st.none() | st.text("xy", max_size=2)}),
    ]
)


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, object]]:
    columns = draw(st.dictionaries(st.text("abc", min_size=1, max_size=2), TYPED, min_size=1, max_size=4))
    return draw(st.lists(st.fixed_dictionaries(columns), max_size=8))


@given(tables())
def test_rows_come_back_from_their_columns(rows: list[dict[str, object]]) -> None:
    made = schema(rows)
    assert rows_of(batch_of(rows, made)) == rows


@given(
    st.lists(st.dictionaries(st.text("ab", max_size=1), CELLS | st.lists(CELLS, max_size=2), max_size=2), max_size=6)
)
def test_any_rows_have_columns_or_a_reason(rows: list[dict[str, object]]) -> None:
    with contextlib.suppress(ResultNotTabular):
        found = rows_of(batch_of(rows, schema(rows)))
        pairs = zip(found, rows, strict=True)
        assert [{key: value for key, value in row.items() if key in own} for row, own in pairs] == rows
