"""Values of the server as plain JSON data (dsl §8.6).

Times are read as the numbers that the server sends, not as Python objects: `infinity`, 24:00 and years before Christ
have no Python object, and one such row must not fail a query.  Each has a class of its own, so that it is known what
a number inside an array or a row means, and text is made of it only for whoever wants text.
"""

from __future__ import annotations

import datetime
import ipaddress
import struct
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import asyncpg

from noetl.core.expression import normalise
from noetl.core.results.plain import finite, interval_text, json_value, number_of, short_float

_EPOCH_ORDINAL = datetime.date(2000, 1, 1).toordinal()
_ORDINAL_MAX = datetime.date.max.toordinal()
_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400
_DAY = 86_400_000_000
_DATES = {2**31 - 1: "infinity", -(2**31): "-infinity"}
_MOMENTS = {2**63 - 1: "infinity", -(2**63): "-infinity"}


class Days(int):
    """A `date`: days since 2000-01-01."""

    __slots__ = ()


class Moment(int):
    """A `timestamp`: microseconds since 2000-01-01."""

    __slots__ = ()


class ZonedMoment(int):
    """A `timestamptz`: microseconds since 2000-01-01 in UTC."""

    __slots__ = ()


class Clock(int):
    """A `time`: microseconds since midnight, which may be those of 24:00."""

    __slots__ = ()


class Interval(tuple[int, int, int]):
    """An `interval`: months, days, microseconds."""

    __slots__ = ()


class Float4(float):
    __slots__ = ()


class Json(bytes):
    """A `json` or `jsonb` as it was written."""

    __slots__ = ()


# --- times -----------------------------------------------------------------------------------------------


def _date_text(days: int) -> str:
    ordinal = days + _EPOCH_ORDINAL
    if 1 <= ordinal <= _ORDINAL_MAX:
        return datetime.date.fromordinal(ordinal).isoformat()
    # The calendar repeats every 400 years; beyond four digits ISO 8601 writes a sign.
    cycles, rest = divmod(ordinal - 1, _CYCLE_DAYS)
    day = datetime.date.fromordinal(rest + 1)
    year = day.year + cycles * _CYCLE_YEARS
    return f"{'-' if year < 0 else '+' if year > 9999 else ''}{abs(year):04d}-{day:%m-%d}"


def _time_text(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{text}.{fraction:06d}" if fraction else text


def _zone_text(seconds_west: int) -> str:
    sign = "-" if seconds_west > 0 else "+"
    minutes, seconds = divmod(abs(seconds_west), 60)
    text = f"{sign}{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{text}:{seconds:02d}" if seconds else text


def _date(days: int) -> str:
    return _DATES.get(days) or _date_text(days)


def _timestamp(microseconds: int) -> str:
    if found := _MOMENTS.get(microseconds):
        return found
    days, rest = divmod(microseconds, _DAY)
    return f"{_date_text(days)}T{_time_text(rest)}"


def _timestamptz(microseconds: int) -> str:
    return _MOMENTS.get(microseconds) or f"{_timestamp(microseconds)}+00:00"


def _interval(value: Interval) -> str:
    return interval_text(*value)


# --- codecs ----------------------------------------------------------------------------------------------


def _json(sent: bytes) -> object:
    return json_value(sent.decode())


def _read_only(_value: object) -> Any:
    raise TypeError("values of this type are sent as text")


_unpacked_float = struct.Struct("!f").unpack

# Type, format, decoder, encoder.  A statement never gets a value of the types that are only read.
_CODECS: tuple[tuple[str, str, Callable[[Any], object], Callable[[Any], Any]], ...] = (
    ("date", "tuple", lambda sent: Days(sent[0]), _read_only),
    ("timestamp", "tuple", lambda sent: Moment(sent[0]), _read_only),
    ("timestamptz", "tuple", lambda sent: ZonedMoment(sent[0]), _read_only),
    ("time", "tuple", lambda sent: Clock(sent[0]), _read_only),
    ("timetz", "tuple", lambda sent: _time_text(sent[0]) + _zone_text(sent[1]), _read_only),
    ("interval", "tuple", Interval, _read_only),
    ("float4", "binary", lambda sent: Float4(_unpacked_float(sent)[0]), _read_only),
    ("json", "binary", Json, lambda text: text.encode()),
    # A binary jsonb begins with its version.
    ("jsonb", "binary", lambda sent: Json(sent[1:]), lambda text: b"\x01" + text.encode()),
)


async def install_codecs(connection: Any) -> None:
    """Make a new connection read values in our way, also inside arrays, ranges and rows.  Asks the server nothing."""
    for name, format_, decoder, encoder in _CODECS:
        await connection.set_type_codec(name, schema="pg_catalog", encoder=encoder, decoder=decoder, format=format_)


# --- rows ------------------------------------------------------------------------------------------------

Convert = Callable[[Any], object]

# Plain as the driver gives them, or made plain by a codec.
_PLAIN_TYPES = frozenset(
    ("bool", "int2", "int4", "int8", "oid", "text", "varchar", "bpchar", "name", "xml", "money", "regclass", "timetz")
)


def converter(type_: Any) -> Convert | None:
    """What makes a column's values plain; None when they are plain already."""
    if type_.kind == "multirange":
        return _multirange_text
    if type_.kind != "scalar" or type_.schema != "pg_catalog":
        return plain
    return None if type_.name in _PLAIN_TYPES else _BY_TYPE.get(type_.name, plain)


def plain(value: object) -> object:
    """One value, and everything inside it, as plain JSON data."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    read = _BY_CLASS.get(kind)
    if read is not None:
        return read(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return normalise(value)


def rows_of(
    records: Iterable[Any], names: Sequence[str], converters: Sequence[Convert | None]
) -> list[dict[str, object]]:
    """Records as mappings.  Of columns with the same name the last one stays."""
    busy = [(place, convert) for place, convert in enumerate(converters) if convert is not None]
    if not busy:
        return [dict(zip(names, record, strict=True)) for record in records]
    rows = []
    for record in records:
        values = list(record)
        for place, convert in busy:
            if values[place] is not None:
                values[place] = convert(values[place])
        rows.append(dict(zip(names, values, strict=True)))
    return rows


def _range_text(value: Any) -> str:
    if value.isempty:
        return "empty"
    lower = "" if value.lower is None else plain(value.lower)
    upper = "" if value.upper is None else plain(value.upper)
    return f"{'[' if value.lower_inc else '('}{lower},{upper}{']' if value.upper_inc else ')'}"


def _multirange_text(value: list[Any]) -> str:
    return "{" + ",".join(_range_text(part) for part in value) + "}"


def _points(value: Any) -> object:
    return [list(point) for point in value.points]


_BY_CLASS: Mapping[type, Convert] = {
    float: finite,
    Decimal: number_of,
    bytes: lambda value: b64encode(value).decode("ascii"),
    dict: lambda value: value,
    Days: _date,
    Moment: _timestamp,
    ZonedMoment: _timestamptz,
    Clock: _time_text,
    Interval: _interval,
    Float4: short_float,
    Json: _json,
    asyncpg.Record: lambda value: {key: plain(item) for key, item in value.items()},
    asyncpg.Range: _range_text,
    asyncpg.BitString: lambda value: value.as_string().replace(" ", ""),
    asyncpg.Path: _points,
    asyncpg.Polygon: _points,
    ipaddress.IPv4Address: str,
    ipaddress.IPv6Address: str,
    ipaddress.IPv4Interface: str,
    ipaddress.IPv6Interface: str,
    ipaddress.IPv4Network: str,
    ipaddress.IPv6Network: str,
}
_BY_TYPE: Mapping[str, Convert] = {
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "time": _time_text,
    "interval": _interval,
    "float4": short_float,
    "float8": finite,
    "json": _json,
    "jsonb": _json,
    "numeric": number_of,
    "char": lambda value: value.decode("utf-8", "replace"),
    "pg_lsn": lambda value: f"{value >> 32:X}/{value & 0xFFFFFFFF:X}",
}
