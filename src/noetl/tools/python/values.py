"""The value normalisation of the playbook language (dsl 8.6): what a Python value is as JSON.  Pure.

Numbers of other libraries count as numbers, other mappings as mappings; any remaining object is its `str()`.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import numbers
from collections.abc import Iterable, Mapping, MappingView, Set
from typing import cast

# Parsers of JSON guard their stack; deeper values could not be read back everywhere.
DEPTH_MAX = 200

# A decimal beyond this is an integer of absurd length; it becomes null like Infinity.
_DECIMAL_EXPONENT_MAX = 400


class ValueInvalid(ValueError):
    """A value has no JSON form: it contains itself, is too deep, or holds text that is not Unicode."""


def json_bytes(value: object) -> bytes:
    """JSON of any Python value, normalised.  Raises ValueInvalid, or what the `str()` of an object raises."""
    try:
        text = _encode_strict(value)
    except (TypeError, ValueError, RecursionError):
        # NaN, odd keys or a cycle: rare, so only then is the value rebuilt piece by piece.
        text = _encode_strict(normalise(value))
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueInvalid("the value holds text that is not valid Unicode (a lone surrogate)") from error


def plain(value: object) -> object:
    """One step towards JSON for an object that JSON does not know; its parts may need further steps."""
    if isinstance(value, decimal.Decimal):
        return _from_decimal(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Set):
        return _from_set(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, MappingView | range):
        return list(cast("Iterable[object]", value))
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return str(value)


def normalise(value: object) -> object:
    """The value rebuilt of dict, list, str, int, float, bool and None only."""
    return _normalise(value, 0, set())


def _normalise(value: object, depth: int, inside: set[int]) -> object:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= DEPTH_MAX:
        raise ValueInvalid(f"the value is nested deeper than {DEPTH_MAX} levels")
    if id(value) in inside:
        raise ValueInvalid("the value contains itself")
    inside.add(id(value))
    result: object
    if isinstance(value, Mapping):
        result = {_key(key): _normalise(item, depth + 1, inside) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        result = [_normalise(item, depth + 1, inside) for item in value]
    else:
        result = _normalise(plain(value), depth + 1, inside)
    inside.discard(id(value))
    return result


def _key(key: object) -> str:
    """Keys as `json` writes them; an object that is no JSON scalar is normalised and then text."""
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool | int | float):
        return json.dumps(key)
    step = plain(key)
    return step if isinstance(step, str) else str(step)


def _from_decimal(value: decimal.Decimal) -> int | float | None:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or value.adjusted() > _DECIMAL_EXPONENT_MAX:
        return None
    return int(value) if exponent >= 0 else float(value)


def _from_set(value: Set[object]) -> list[object]:
    """Sorted where that is possible, so that equal sets give equal results."""
    try:
        return sorted(value)  # type: ignore[type-var]
    except TypeError:
        return list(value)


_encode_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain).encode
