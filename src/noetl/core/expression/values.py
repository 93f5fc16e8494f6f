"""Plain JSON data: how any Python value becomes plain (dsl §8.6), text (§7.2) or a truth value (§5.2).

Knows nothing about templates.  The views of `views.py` take part through `Frozen`.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, MappingView, Set
from datetime import date, time
from decimal import Decimal
from numbers import Integral, Real
from typing import NoReturn
from uuid import UUID

from noetl.core.errors import TemplateFailed

DECIMAL_EXPONENT_MAX = 400
"""A decimal beyond 10**400 is no number JSON readers agree about; it becomes null like Infinity."""

_FALSE_WORDS = frozenset({"", "false", "0", "no", "none", "null", "off"})
_SCALARS = frozenset({str, int, bool, type(None)})


class Frozen:
    """Base of the views: nothing can be set after construction, and the view knows its plain value."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def _plain(self) -> object:
        raise NotImplementedError

    def _printed(self) -> object:
        return self._plain()


def normalise(value: object) -> object:
    """Any value as plain JSON data; values that are plain already are not copied."""
    try:
        return _normal(value)
    except RecursionError as error:
        raise TemplateFailed("the value is nested too deeply, or contains itself") from error


def plain(value: object) -> object:
    """A template's value as plain JSON data: a view becomes the data behind it, Undefined becomes None."""
    if isinstance(value, Frozen):
        return value._plain()
    return normalise(value)


def is_true(value: object) -> bool:
    """The truth of a condition: the native truth, except that words such as "false" and "off" are false."""
    if isinstance(value, Frozen):
        value = value._plain()
    if isinstance(value, str):
        return value.strip().lower() not in _FALSE_WORDS
    return bool(value)


def to_text(value: object) -> str:
    """A value inside text: mappings and lists as JSON, others as Jinja prints them; Undefined is empty."""
    if isinstance(value, Frozen):
        value = value._printed()
    if isinstance(value, str):
        return str.__str__(value)
    value = normalise(value)
    return to_json(value) if isinstance(value, dict | list) else str(value)


def to_json(value: object, indent: int | None = None) -> str:
    """Plain JSON: no HTML escapes, non-ASCII kept, keys in their order."""
    return json.dumps(normalise(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _normal(value: object) -> object:
    kind = type(value)
    if kind in _SCALARS:
        return value
    reader = _READERS.get(kind)
    if reader is not None:
        return reader(value)
    for base, base_reader in _BASES:
        if isinstance(value, base):
            return base_reader(value)
    return str(value)


def _normal_float(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _normal_list(value: list[object]) -> list[object]:
    items = [item if type(item) in _SCALARS else _normal(item) for item in value]
    same = all(new is old for new, old in zip(items, value, strict=True))
    return value if same and type(value) is list else items


def _normal_dict(value: Mapping[object, object]) -> Mapping[str, object]:
    items = {
        (key if type(key) is str else key_text(key)): (item if type(item) in _SCALARS else _normal(item))
        for key, item in value.items()
    }
    same = type(value) is dict and len(items) == len(value)
    same = same and all(key in value and value[key] is item for key, item in items.items())
    return value if same else items  # type: ignore[return-value]


def key_text(key: object) -> str:
    """A key of a mapping as JSON has it: a text."""
    if isinstance(key, str):
        return str.__str__(key)
    key = _normal(key)
    return key if isinstance(key, str) else json.dumps(key)


def _normal_decimal(value: Decimal) -> int | float | None:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or value.adjusted() > DECIMAL_EXPONENT_MAX:
        return None
    return int(value) if exponent >= 0 else _normal_float(float(value))


def _normal_real(value: Real) -> float | None:
    try:
        return _normal_float(float(value))
    except OverflowError:
        return None  # a fraction beyond the floats, which is what Infinity stands for


def _normal_set(value: Iterable[object]) -> list[object]:
    # The order of a set differs between processes; a recorded value must not.
    return sorted((_normal(item) for item in value), key=_place)


def _place(item: object) -> tuple[str, float, str]:
    """Where a member of a set stands: numbers by size, texts by letters, others by kind and JSON."""
    if isinstance(item, int | float):
        return ("", item, "")
    if isinstance(item, str):
        return ("str", 0, item)
    return (type(item).__name__, 0, json.dumps(item))


def _normal_bytes(value: bytes) -> str:
    return b64encode(bytes(value)).decode("ascii")


_READERS: dict[type, Callable[..., object]] = {
    float: _normal_float,
    list: _normal_list,
    dict: _normal_dict,
    Decimal: _normal_decimal,
    UUID: str,
}
_BASES: tuple[tuple[type | tuple[type, ...], Callable[..., object]], ...] = (
    (Frozen, lambda value: _normal(value._plain())),
    (dict, _normal_dict),
    ((list, tuple, range), lambda value: _normal_list(list(value))),
    (str, str.__str__),
    (int, int),
    (float, _normal_float),
    (Decimal, _normal_decimal),
    ((date, time), lambda value: value.isoformat()),
    ((bytes, bytearray, memoryview), _normal_bytes),
    ((set, frozenset), _normal_set),
    (Mapping, _normal_dict),
    (MappingView, lambda value: _normal_list(list(value))),
    (Set, _normal_set),
    # Libraries for arrays and exact arithmetic register their numbers here.
    (Integral, int),
    (Real, _normal_real),
)
