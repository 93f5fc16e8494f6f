"""Rows as plain data by dsl §8.6: what templates and user code see of a table.

Column by column, because a loop over values would cost ten times as much.  Whatever has no shorter way here goes
through `normalise`, which is the rule; the other ways only must give the same.

Maps become mappings.  Of several columns or members with one name the last one is seen.  What Python's dates cannot
hold (years beyond 9999, nanoseconds) keeps its digits as text."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from noetl.core.expression.values import key_text, normalise
from noetl.core.results.plain import NUMBERS, PLAIN_KEY, WHOLE, finite, interval_text, json_value, number_of

Values = list[Any]


def rows_of(batch: Any) -> list[dict[str, object]]:
    """The rows of a batch."""
    names = batch.schema.names
    if not names:
        return [{} for _ in range(batch.num_rows)]
    columns = [field_values(column, field) for column, field in zip(batch.columns, batch.schema, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def field_values(array: Any, field: Any) -> Values:
    """A column as plain data, in the way that its field names."""
    way = (field.metadata or {}).get(PLAIN_KEY.encode())
    convert = _WAYS.get(way) if way is not None else None
    return values_of(array) if convert is None else [None if text is None else convert(text) for text in _texts(array)]


def values_of(array: Any) -> Values:
    """A column as plain data."""
    for is_kind, convert in _KINDS:
        if is_kind(array.type):
            return convert(array)
    return _rest(array)


def _same(array: Any) -> Values:
    found: Values = array.to_pylist()
    return found


def _rest(array: Any) -> Values:
    return [normalise(value) for value in array.to_pylist(maps_as_pydicts="lossy")]


def _texts(array: Any) -> Values:
    return _same(array.cast(pa.string()))


def _whole(text: str) -> object:
    value = Decimal(text)
    return int(value) if value == value.to_integral_value() else finite(float(text))


_WAYS: dict[bytes, Callable[[str], object]] = {
    NUMBERS.encode(): lambda text: number_of(Decimal(text)),
    WHOLE.encode(): _whole,
}


def _short_floats(array: Any) -> Values:
    """The shortest numbers that are these: 1.1, not 1.100000023841858."""
    return [None if text is None else finite(float(text)) for text in _texts(array)]


def _floats(array: Any) -> Values:
    values = _same(array)
    if pc.all(pc.is_finite(array)).as_py() is not False:
        return values
    return [value if value is None or math.isfinite(value) else None for value in values]


def _half_floats(array: Any) -> Values:
    return _floats(array.cast(pa.float32()))


def _intervals(array: Any) -> Values:
    """ISO 8601; what is beyond microseconds is cut off."""
    return [
        None if value is None else interval_text(value[0], value[1], _thousandth(value[2])) for value in _same(array)
    ]


def _thousandth(nanoseconds: int) -> int:
    return nanoseconds // 1_000 if nanoseconds >= 0 else -(-nanoseconds // 1_000)


def _decimals(array: Any) -> Values:
    scale = array.type.scale
    if not 0 <= scale <= _SCALE_MAX:
        return [None if text is None else _scaled(text) for text in _texts(array)]
    # Through text: Arrow's own way to a float may differ from Python's in the last bit.
    convert: Callable[[str], Any] = float if scale else int
    return [None if text is None else convert(text) for text in array.cast(pa.string()).to_pylist()]


_SCALE_MAX = 76


def _scaled(text: str) -> object:
    try:
        return number_of(Decimal(text))
    except InvalidOperation:
        return None  # beyond every number


def _bytes(array: Any) -> Values:
    return [None if value is None else b64encode(value).decode("ascii") for value in array.to_pylist()]


def _dates(array: Any) -> Values:
    if types.is_date64(array.type):
        array = array.cast(pa.date32(), safe=False)
    texts = _texts(array)
    if _is_beyond(texts):
        return [None if days is None else _calendar(days) for days in array.cast(pa.int32()).to_pylist()]
    return texts


def _is_beyond(texts: Values) -> bool:
    """Whether there are years that Arrow does not write: it leaves a remark in angle brackets instead."""
    return any(text is not None and text.startswith("<") for text in texts)


def _calendar(days: int) -> str:
    """The date so many days after 1970-01-01, in a calendar that goes on for ever."""
    turns, rest = divmod(days + date(1970, 1, 1).toordinal() - 1, _DAYS_OF_400_YEARS)
    day = date.fromordinal(rest + 1)
    year = day.year + 400 * turns
    return f"{'-' if year < 0 else ''}{abs(year):04}-{day.month:02}-{day.day:02}"


_DAYS_OF_400_YEARS = 146_097


def _moment(count: int, per_second: int) -> str:
    seconds, part = divmod(count, per_second)
    days, seconds = divmod(seconds, 86_400)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if part:
        clock = f"{clock}.{part:0{len(str(per_second)) - 1}}"
    return f"{_calendar(days)}T{_fraction(clock)}"


def _times(array: Any) -> Values:
    return [_fraction(text) for text in array.cast(pa.string()).to_pylist()]


def _timestamps(array: Any) -> Values:
    zone = array.type.tz
    try:
        texts = array.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:  # a zone that nobody knows: the same moments in UTC
        texts = array.cast(pa.timestamp(array.type.unit, "+00:00")).cast(pa.string()).to_pylist()
    if _is_beyond(texts):
        per_second, end = _PER_SECOND[array.type.unit], "" if zone is None else "+00:00"
        counts = array.cast(pa.int64()).to_pylist()
        return [None if count is None else _moment(count, per_second) + end for count in counts]
    if zone is None:
        return [text and _fraction(text.replace(" ", "T", 1)) for text in texts]
    return [text and _zoned(text.replace(" ", "T", 1)) for text in texts]


def _zoned(text: str) -> str:
    """Arrow writes `Z` or `+0100`, Python `+00:00` or `+01:00`."""
    if text.endswith("Z"):
        return f"{_fraction(text[:-1])}+00:00"
    return f"{_fraction(text[:-5])}{text[-5:-2]}:{text[-2:]}"


def _fraction(text: str | None) -> str | None:
    """The fraction of a second as Python writes it: none, or six digits, or nine where six are not enough."""
    if text is None:
        return None
    whole, point, digits = text.partition(".")
    if not point or not digits.strip("0"):
        return whole
    if len(digits) > 6 and digits.endswith("000"):
        digits = digits[:-3]
    return f"{whole}.{digits:0<6}"


_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _durations(array: Any) -> Values:
    """As `str` writes a timedelta."""
    per_second = _PER_SECOND[array.type.unit]
    return [None if count is None else _duration(count, per_second) for count in array.cast(pa.int64()).to_pylist()]


def _duration(count: int, per_second: int) -> str:
    seconds, part = divmod(count, per_second)
    days, seconds = divmod(seconds, 86_400)
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if part:
        clock = f"{clock}.{part:0{len(str(per_second)) - 1}}"
    name = "day" if abs(days) == 1 else "days"
    return f"{days} {name}, {_fraction(clock)}" if days else str(_fraction(clock))


def _dictionary(array: Any) -> Values:
    words = values_of(array.dictionary)
    return [None if index is None else words[index] for index in array.indices.to_pylist()]


def _lists(array: Any) -> Values:
    bounds, first, count = _bounds(array)
    values = field_values(array.values.slice(first, count), array.type.value_field)
    return [None if bound is None else values[bound] for bound in bounds]


def _bounds(array: Any) -> tuple[list[slice | None], int, int]:
    """Which of the inner values each list has, counted from the first one that any of them has; that one's place,
    and how many there are.  A slice of a column still has all values of the column behind it."""
    if not len(array):
        return [], 0, 0  # such a column need not have any offsets
    offsets = array.offsets.to_pylist()
    first = offsets[0]
    valid = array.is_valid().to_pylist()
    bounds = [
        slice(start - first, end - first) if is_valid else None
        for start, end, is_valid in zip(offsets[:-1], offsets[1:], valid, strict=True)
    ]
    return bounds, first, offsets[-1] - first


def _fixed_lists(array: Any) -> Values:
    size = array.type.list_size
    # `flatten` leaves out what stands below a null; with the values in place each list has its own slice.
    values = values_of(array.values.slice(array.offset * size, len(array) * size))
    valid = array.is_valid().to_pylist()
    return [values[place * size : (place + 1) * size] if is_valid else None for place, is_valid in enumerate(valid)]


def _structs(array: Any) -> Values:
    names = [field.name for field in array.type]
    valid = array.is_valid().to_pylist()
    if not names:
        return [{} if is_valid else None for is_valid in valid]
    columns = [values_of(column) for column in array.flatten()]
    return [
        dict(zip(names, row, strict=True)) if is_valid else None
        for row, is_valid in zip(zip(*columns, strict=True), valid, strict=True)
    ]


def _maps(array: Any) -> Values:
    bounds, first, count = _bounds(array)
    keys = [key_text(key) for key in values_of(array.keys.slice(first, count))]
    items = values_of(array.items.slice(first, count))
    return [None if bound is None else dict(zip(keys[bound], items[bound], strict=True)) for bound in bounds]


def _extensions(array: Any) -> Values:
    if array.type.extension_name == "arrow.json":
        return [None if text is None else _parsed(text) for text in array.storage.to_pylist()]
    if array.type.extension_name == "arrow.uuid":
        return [None if value is None else str(value) for value in array.to_pylist()]
    return values_of(array.storage)


def _parsed(text: str) -> object:
    try:
        return json_value(text)
    except (ValueError, RecursionError):
        return text


def _run_ends(array: Any) -> Values:
    return values_of(pc.run_end_decode(array))


def _is_plain(kind: Any) -> bool:
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_null(kind)
    )


def _is_bytes(kind: Any) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


_KINDS: Sequence[tuple[Callable[[Any], bool], Callable[[Any], Values]]] = (
    (lambda kind: isinstance(kind, pa.BaseExtensionType), _extensions),
    (_is_plain, _same),
    (lambda kind: bool(types.is_float16(kind)), _half_floats),
    (types.is_float32, _short_floats),
    (types.is_floating, _floats),
    (types.is_interval, _intervals),
    (types.is_decimal, _decimals),
    (_is_bytes, _bytes),
    (types.is_date, _dates),
    (types.is_time, _times),
    (types.is_timestamp, _timestamps),
    (types.is_duration, _durations),
    (types.is_dictionary, _dictionary),
    (lambda kind: bool(types.is_list(kind) or types.is_large_list(kind)), _lists),
    (types.is_fixed_size_list, _fixed_lists),
    (types.is_struct, _structs),
    (types.is_map, _maps),
    (types.is_run_end_encoded, _run_ends),
)
