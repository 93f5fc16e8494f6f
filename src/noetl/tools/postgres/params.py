"""Bound values: a value becomes what the server wants for its type.  Pure.

The server says which type each `$n` has.  A value that is of that type already is sent as it is.  Any other is sent as
text and read by the server, exactly as a quoted literal in the statement would be: `"2024-02-29"` for a date,
`"[1,5)"` for a range, `"3 days"` for an interval.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from noetl.core.expression import to_text
from noetl.tools.sql.params import Bound, ParamsInvalid, check_count
from noetl.tools.sql.split import PLAIN, tokens


@dataclass(frozen=True, slots=True)
class ParameterType:
    """What the server says about one `$n`."""

    name: str
    schema: str
    is_array: bool


_FLOAT_BITS = 53
_TEXTS = frozenset(("text", "varchar", "bpchar", "name", "unknown", "citext"))
_JSONS = frozenset(("json", "jsonb"))


def fitted(bound: Bound, types: Sequence[ParameterType]) -> tuple[Bound, bool]:
    """The statement with values of the types that the server named; and whether its text had to change for it."""
    check_count(len(types), len(bound.values), "$n")
    values: list[object] = []
    casts: dict[int, str] = {}
    for number, (value, type_) in enumerate(zip(bound.values, types, strict=True), 1):
        is_sent_as_text, fitting = _fitting(value, type_, number)
        values.append(fitting)
        if is_sent_as_text:
            casts[number] = _type_name(type_)
    if not casts:
        return Bound(bound.text, tuple(values)), False
    return Bound("".join(_cast(bound.text, casts)), tuple(values)), True


def _fitting(value: object, type_: ParameterType, number: int) -> tuple[bool, object]:
    """Whether the server must read it as text, and the value to send."""
    if value is None:
        return False, None
    if type_.is_array:
        return True, array_text(value, is_json=type_.name.removesuffix("[]") in _JSONS)
    if type_.name in _TEXTS:
        return False, literal_text(value)
    if type_.name in _JSONS:
        return False, value if isinstance(value, str) else _json(value)
    if type_.name == "bytea":
        return _fitting_bytes(value, number)
    native = _NATIVE.get(type_.name)
    fitting = native(value) if native else None
    return (True, literal_text(value)) if fitting is None else (False, fitting)


def _integer(value: object, bits: int) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and -(2**bits) <= value < 2**bits else None


def _float(value: object) -> float | None:
    if isinstance(value, float):
        return value
    whole = _integer(value, _FLOAT_BITS)
    return None if whole is None else float(whole)


def _numeric(value: object) -> Decimal | None:
    return Decimal(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None


# What a type takes as it is, and None for what the server shall read.
_NATIVE: Mapping[str, Callable[[object], object]] = {
    "bool": lambda value: value if isinstance(value, bool) else None,
    "int2": lambda value: _integer(value, 15),
    "int4": lambda value: _integer(value, 31),
    "int8": lambda value: _integer(value, 63),
    "float8": _float,
    "numeric": _numeric,
}


def _fitting_bytes(value: object, number: int) -> tuple[bool, object]:
    """Bytes are base64 in results, and so they are as values; `\\x…` is read by the server."""
    if isinstance(value, bytes | bytearray | memoryview):
        return False, bytes(value)
    text = literal_text(value)
    if text.startswith("\\x"):
        return True, text
    try:
        return False, base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ParamsInvalid(f"the value of ${number} goes into a bytea: give it as base64 or as \\x and hex") from None


def literal_text(value: object) -> str:
    """A value as it would stand between the quotes of a literal."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | bytearray | memoryview):
        return "\\x" + bytes(value).hex()
    return to_text(value)


def array_text(value: object, *, is_json: bool = False) -> str:
    """A list as an array literal.  A text is taken as such a literal already."""
    if not isinstance(value, list | tuple):
        return literal_text(value)
    return "{" + ",".join(_element(item, is_json) for item in value) + "}"


def _element(item: object, is_json: bool) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, list | tuple) and not is_json:
        return array_text(item)
    text = _json(item) if is_json and not isinstance(item, str) else literal_text(item)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=to_text)


def _type_name(type_: ParameterType) -> str:
    name = type_.name.removesuffix("[]") if type_.is_array else type_.name
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (type_.schema, name))
    return quoted + "[]" if type_.is_array else quoted


def _cast(text: str, casts: Mapping[int, str]) -> Iterator[str]:
    """The pieces of the text, with these parameters read from text."""
    seen = 0
    for kind, start, end in tokens(text, PLAIN):
        number = int(text[start + 1 : end]) if kind == "parameter" else 0
        if number in casts:
            yield text[seen:start]
            yield f"(${number}::pg_catalog.text::{casts[number]})"
            seen = end
    yield text[seen:]
