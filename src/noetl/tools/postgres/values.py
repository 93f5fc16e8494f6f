"""Values of the server as plain JSON data (dsl §8.6).

Times are read as the numbers that the server sends, not as Python objects: `infinity`, 24:00 and years before Christ
have no Python object, and one such row must not fail a query.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import math
import re
import struct
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import asyncpg

from noetl.core.expression import normalise

_EPOCH_ORDINAL = datetime.date(2000, 1, 1).toordinal()
_ORDINAL_MAX = datetime.date.max.toordinal()
_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400
_DAY = 86_400_000_000
_INFINITIES = {
    "date": {(2**31 - 1,): "infinity", (-(2**31),): "-infinity"},
    "timestamp": {(2**63 - 1,): "infinity", (-(2**63),): "-infinity"},
}
_NUMBER_DIGITS_MAX = 400
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

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


def _date(sent: tuple[int]) -> str:
    return _INFINITIES["date"].get(sent) or _date_text(sent[0])


def _timestamp(sent: tuple[int]) -> str:
    if found := _INFINITIES["timestamp"].get(sent):
        return found
    days, microseconds = divmod(sent[0], _DAY)
    return f"{_date_text(days)}T{_time_text(microseconds)}"


def _timestamptz(sent: tuple[int]) -> str:
    return _INFINITIES["timestamp"].get(sent) or f"{_timestamp(sent)}+00:00"


def _interval(sent: tuple[int, int, int]) -> str:
    """ISO 8601, which keeps months, days and seconds apart; the server reads it back."""
    months, days, microseconds = sent
    sign = -1 if microseconds < 0 else 1
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    date = [
        (_sign(months) * (abs(months) // 12), "Y"),
        (_sign(months) * (abs(months) % 12), "M"),
        (days, "D"),
    ]
    time = [(sign * (seconds // 3600), "H"), (sign * (seconds // 60 % 60), "M")]
    text = "P" + "".join(f"{amount}{unit}" for amount, unit in date if amount)
    clock = "".join(f"{amount}{unit}" for amount, unit in time if amount)
    if seconds % 60 or fraction:
        decimals = f".{fraction:06d}".rstrip("0") if fraction else ""
        clock += f"{'-' if sign < 0 else ''}{seconds % 60}{decimals}S"
    return text + (f"T{clock}" if clock else "") if clock or len(text) > 1 else "PT0S"


def _sign(amount: int) -> int:
    return -1 if amount < 0 else 1


# --- numbers and JSON ------------------------------------------------------------------------------------


def _float4(sent: bytes) -> float | None:
    """The shortest number that is this one: 1.1, not 1.100000023841858."""
    (value,) = struct.unpack("!f", sent)
    if not math.isfinite(value):
        return None
    for digits in (6, 7, 8, 9):
        short = float(f"{value:.{digits}g}")
        if _packs_to(short, sent):
            return short
    return float(value)


def _packs_to(value: float, sent: bytes) -> bool:
    try:
        return struct.pack("!f", value) == sent
    except OverflowError:
        return False


def _number(value: Decimal) -> object:
    text = str(value)
    if len(text) <= _NUMBER_DIGITS_MAX:
        if text.lstrip("-").isdigit():
            return int(text)
        if "E" not in text:
            return _finite(float(text))
    return normalise(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _json(sent: bytes) -> object:
    text = sent.decode()
    try:
        value = _DECODER.decode(text)
    except ValueError:
        # A number with thousands of digits, which Python refuses to read.
        value = _PATIENT_DECODER.decode(text)
    # Only the type json can hold half a character; jsonb refuses it.
    return _whole_characters(value) if "\\u" in text and _SURROGATE.search(text) else value


def _parsed_float(text: str) -> float | None:
    return _finite(float(text))


def _parsed_int(text: str) -> int | None:
    return int(text) if len(text) <= _NUMBER_DIGITS_MAX else None


_DECODER = json.JSONDecoder(parse_float=_parsed_float)
_PATIENT_DECODER = json.JSONDecoder(parse_float=_parsed_float, parse_int=_parsed_int)


def _whole_characters(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {_whole_characters(key): _whole_characters(item) for key, item in value.items()}
    return value


def _read_only(_value: object) -> Any:
    raise TypeError("values of this type are sent as text")


# Type, format, decoder, encoder.  A statement never gets a value of the types that are only read.
_CODECS: tuple[tuple[str, str, Callable[[Any], object], Callable[[Any], Any]], ...] = (
    ("date", "tuple", _date, _read_only),
    ("timestamp", "tuple", _timestamp, _read_only),
    ("timestamptz", "tuple", _timestamptz, _read_only),
    ("time", "tuple", lambda sent: _time_text(sent[0]), _read_only),
    ("timetz", "tuple", lambda sent: _time_text(sent[0]) + _zone_text(sent[1]), _read_only),
    ("interval", "tuple", _interval, _read_only),
    ("float4", "binary", _float4, _read_only),
    ("json", "binary", _json, lambda text: text.encode()),
    # A binary jsonb begins with its version.
    ("jsonb", "binary", lambda sent: _json(sent[1:]), lambda text: b"\x01" + text.encode()),
)


async def install_codecs(connection: Any) -> None:
    """Make a new connection read values in our way, also inside arrays, ranges and rows.  Asks the server nothing."""
    for name, format_, decoder, encoder in _CODECS:
        await connection.set_type_codec(name, schema="pg_catalog", encoder=encoder, decoder=decoder, format=format_)


# --- rows ------------------------------------------------------------------------------------------------

Convert = Callable[[Any], object]

# Plain as the driver gives them, or made plain by a codec.
_PLAIN_TYPES = frozenset(
    (
        *("bool", "int2", "int4", "int8", "oid", "text", "varchar", "bpchar", "name", "xml", "money", "regclass"),
        *(name for name, *_ in _CODECS),
    )
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
    float: _finite,
    Decimal: _number,
    bytes: lambda value: b64encode(value).decode("ascii"),
    dict: lambda value: value,
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
    "float8": _finite,
    "numeric": _number,
    "char": lambda value: value.decode("utf-8", "replace"),
    "pg_lsn": lambda value: f"{value >> 32:X}/{value & 0xFFFFFFFF:X}",
}
