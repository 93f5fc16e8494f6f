"""Values of the state as JSON and back, directed by the annotations of their classes, so that a field that is added to
the state cannot be forgotten here.

A member that has its default is left out.  Keys keep their order: routing may depend on it."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

Convert = Callable[[Any], Any]


@dataclasses.dataclass(slots=True)
class Coder:
    """Both directions of one type; `is_plain` says that nothing has to be done."""

    encode: Convert
    decode: Convert
    is_plain: bool = False


def _same(value: Any) -> Any:
    return value


_PLAIN = Coder(_same, _same, is_plain=True)
_made: dict[Any, Coder] = {}


def coder_of(kind: Any) -> Coder:
    """The coder of an annotation.  One that is not known is a defect that shows when the module is loaded."""
    known = _made.get(kind)
    if known is None:
        known = _made[kind] = Coder(_unready, _unready)
        made = _build(kind)
        # A class may contain itself: whoever met it meanwhile holds this very object.
        known.encode, known.decode, known.is_plain = made.encode, made.decode, made.is_plain
    return known


def _unready(value: Any) -> Any:
    raise AssertionError(f"a coder was used before it was made: {value!r}")


def _build(kind: Any) -> Coder:
    if kind in (int, str, bool, float, object, Any, types.NoneType):
        return _PLAIN
    origin, given = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, Union):
        return _union(given)
    if origin is tuple:
        return _tuple(given)
    if origin is Mapping:
        return _mapping(*given)
    if origin is Sequence:
        assert coder_of(given[0]).is_plain, f"a sequence of {given[0]} has no coder"
        return _PLAIN
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Coder(lambda member: member.value, kind)
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_field_defaults")):
        return _record(kind)
    raise AssertionError(f"the state has a field of type {kind}, which snapshots cannot keep")


def _union(given: tuple[Any, ...]) -> Coder:
    kinds = [kind for kind in given if kind is not types.NoneType]
    coders = [coder_of(kind) for kind in kinds]
    if all(kind in (int, str, bool, float, object) for kind in kinds):
        return _PLAIN
    assert len(kinds) == 1, f"no way to tell the members of {given} apart"
    inner = coders[0]
    return Coder(
        lambda value: None if value is None else inner.encode(value),
        lambda value: None if value is None else inner.decode(value),
    )


def _tuple(given: tuple[Any, ...]) -> Coder:
    if len(given) == 2 and given[1] is Ellipsis:
        inner = coder_of(given[0])
        if inner.is_plain:
            return Coder(list, tuple)
        return Coder(
            lambda value: [inner.encode(one) for one in value], lambda value: tuple(inner.decode(one) for one in value)
        )
    inners = [coder_of(kind) for kind in given]
    return Coder(
        lambda value: [inner.encode(one) for inner, one in zip(inners, value, strict=True)],
        lambda value: tuple(inner.decode(one) for inner, one in zip(inners, value, strict=True)),
    )


def _mapping(key: Any, value: Any) -> Coder:
    inner = coder_of(value)
    if key is int:
        return Coder(
            lambda mapping: {str(name): inner.encode(one) for name, one in mapping.items()},
            lambda mapping: {int(name): inner.decode(one) for name, one in mapping.items()},
        )
    assert key is str, f"keys of type {key} have no form in JSON"
    if value is object or inner.is_plain:
        return Coder(dict, dict)
    return Coder(
        lambda mapping: {name: inner.encode(one) for name, one in mapping.items()},
        lambda mapping: {name: inner.decode(one) for name, one in mapping.items()},
    )


def _record(kind: Any) -> Coder:
    hints = get_type_hints(kind)
    names = list(kind._fields) if hasattr(kind, "_fields") else [field.name for field in dataclasses.fields(kind)]
    coders = {name: coder_of(hints[name]) for name in names}
    defaults = _defaults(kind)
    missing = object()

    def encode(value: Any) -> dict[str, object]:
        document: dict[str, object] = {}
        for name, coder in coders.items():
            member, default = getattr(value, name), defaults.get(name, missing)
            if member is default or (type(member) is type(default) and member == default):
                continue
            document[name] = coder.encode(member)
        return document

    def decode(document: Mapping[str, Any]) -> Any:
        return kind(**{name: coders[name].decode(member) for name, member in document.items()})

    return Coder(encode, decode)


def _defaults(kind: Any) -> dict[str, Any]:
    if hasattr(kind, "_field_defaults"):
        return dict(kind._field_defaults)
    found = {}
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found
