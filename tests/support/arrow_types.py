"""One column of every Arrow type, with a null and with values at the edges."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from decimal import Decimal as D
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_UNITS = (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9))
_DAYS = [datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)]
_MOMENTS = [datetime.datetime(1, 1, 1), None, datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)]


def _integers() -> dict[str, Any]:
    signed = {f"int{b}": pa.array([-(2 ** (b - 1)), None, 2 ** (b - 1) - 1], f"int{b}") for b in (8, 16, 32, 64)}
    return signed | {f"uint{b}": pa.array([0, None, 2**b - 1], f"uint{b}") for b in (8, 16, 32, 64)}


def _moments() -> dict[str, Any]:
    columns = {}
    for unit, factor in _UNITS:
        values = [-1000 * factor, None, 1000 * factor]
        columns[f"timestamp_{unit}"] = pa.array(values, pa.timestamp(unit))
        columns[f"timestamp_{unit}_utc"] = pa.array(values, pa.timestamp(unit, "UTC"))
        columns[f"duration_{unit}"] = pa.array(values, pa.duration(unit))
    return columns


KEPT: Mapping[str, Any] = {
    "null": pa.nulls(3),
    "bool": pa.array([True, None, False]),
    **_integers(),
    "float16": pa.array([1.5, None, -65504.0], pa.float16()),
    "float32": pa.array([1.1, None, float("inf")], pa.float32()),
    "float64": pa.array([1.1, None, -0.0]),
    "decimal32": pa.array([D("1.25"), None, D("-9.99")], pa.decimal32(5, 2)),
    "decimal64": pa.array([D("1.25"), None, D("-9.99")], pa.decimal64(15, 2)),
    "decimal128": pa.array([D("1.25"), None, D("9" * 36 + ".99")], pa.decimal128(38, 2)),
    "decimal256": pa.array([D("1.25"), None, D("-9.99")], pa.decimal256(38, 2)),
    "string": pa.array(["ä", None, ""]),
    "large_string": pa.array(["ä", None, ""], pa.large_string()),
    "string_view": pa.array(["ä" * 20, None, ""], pa.string_view()),
    "binary": pa.array([b"\0\xff", None, b""]),
    "large_binary": pa.array([b"\0\xff", None, b""], pa.large_binary()),
    "binary_view": pa.array([b"\0\xff" * 20, None, b""], pa.binary_view()),
    "fixed_binary": pa.array([b"\0\xff", None, b"ab"], pa.binary(2)),
    "date32": pa.array(_DAYS, pa.date32()),
    "date64": pa.array(_DAYS, pa.date64()),
    "time32_s": pa.array([1, None, 86399], pa.time32("s")),
    "time32_ms": pa.array([1, None, 86399999], pa.time32("ms")),
    "time64_us": pa.array([1, None, 86399999999], pa.time64("us")),
    "time64_ns": pa.array([1000, None, 86399999999000], pa.time64("ns")),
    **_moments(),
    "timestamp_berlin": pa.array([-1, None, 10**15], pa.timestamp("us", "Europe/Berlin")),
    "timestamp_ends": pa.array(_MOMENTS, pa.timestamp("us")),
    "dictionary": pa.array(["a", None, "b"], pa.dictionary(pa.int8(), pa.string())),
    "dictionary_ordered": pa.array(["a", None, "b"], pa.dictionary(pa.int32(), pa.string(), ordered=True)),
    "dictionary_numbers": pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.int16()), pa.array([10, 20])),
    "run_end_encoded": pc.run_end_encode(pa.array([1, 1, None])),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "large_list": pa.array([[1, None], None, []], pa.large_list(pa.int32())),
    "fixed_list": pa.array([[1, None], None, [3, 4]], pa.list_(pa.uint8(), 2)),
    "list_view": pa.array([[1, None], None, []], pa.list_view(pa.int32())),
    "large_list_view": pa.array([["x", None], None, []], pa.large_list_view(pa.string())),
    "struct": pa.array(
        [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}], pa.struct([("a", pa.uint16()), ("b", pa.string())])
    ),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.uint8())),
    "nested": pa.array(
        [[{"a": [1.0], "t": datetime.timedelta(seconds=1)}], None, []],
        pa.list_(pa.struct([("a", pa.list_(pa.float16())), ("t", pa.duration("ms"))])),
    ),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"1" * 16, None, b"2" * 16], pa.binary(16))),
    "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', None, "2"])),
    "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0], pa.int8())),
}
"""Columns that come back from Spark as they went in."""

REFUSED: Mapping[str, Any] = {
    "wide decimal": pa.array([D(1), None, None], pa.decimal256(60, 2)),
    "negative scale": pa.array([D(100), None, None], pa.decimal128(5, -2)),
    "interval": pa.array([(1, 2, 3), None, None], pa.month_day_nano_interval()),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 0, 1], pa.int8()), pa.array([0, 1, 0], pa.int32()), [pa.array([1, 2]), pa.array(["x"])]
    ),
    "sparse union": pa.UnionArray.from_sparse(
        pa.array([0, 0, 1], pa.int8()), [pa.array([1, 2, 3]), pa.array(["x", "y", "z"])]
    ),
    "empty struct": pa.array([{}, None, {}], pa.struct([])),
    "lost nanoseconds": pa.array([1, None, 2], pa.timestamp("ns")),
    "lost nanoseconds of a day": pa.array([1, None, 2], pa.time64("ns")),
    "lost nanoseconds that passed": pa.array([1, None, 2], pa.duration("ns")),
    "too far away": pa.array([2**62, None, 2], pa.timestamp("s")),
}
"""Columns that are refused by their names: Spark has no such type, or would change a value."""
