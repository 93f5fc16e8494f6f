"""Names on their way to another process: views become tagged data and are views again on the other side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.expression.values import plain
from noetl.core.expression.views import OutputView, ResultView, Rows, Scalar, Scope, View, view_of


def pack(names: Mapping[str, object]) -> dict[str, object]:
    """The names as JSON data."""
    return {name: _pack(value) for name, value in names.items()}


def unpack(parcel: Mapping[str, object]) -> dict[str, object]:
    """The names again."""
    return {name: _unpack(packed) for name, packed in parcel.items()}


def _pack(value: object) -> dict[str, object]:
    if isinstance(value, ResultView):
        return {"view": dict(value._raw), "extras": dict(value._extras), "http": value._http}
    if isinstance(value, Rows):
        return {"view": value._rows, "extras": dict(value._extras)}
    if isinstance(value, Scalar):
        return {"view": value._value, "extras": dict(value._extras)}
    if isinstance(value, OutputView):
        return {"output": dict(value._fields), "http": isinstance(value._data, ResultView)}
    if isinstance(value, Scope):
        return {"scope": pack(value._own), "fallbacks": [pack(fallback) for fallback in value._fallbacks]}
    if isinstance(value, Mapping) and any(isinstance(item, View) for item in value.values()):
        return {"names": pack(value)}
    return {"plain": plain(value)}


def _unpack(packed: Any) -> object:
    if "plain" in packed:
        return packed["plain"]
    if "names" in packed:
        return unpack(packed["names"])
    if "scope" in packed:
        return Scope(unpack(packed["scope"]), *(unpack(fallback) for fallback in packed["fallbacks"]))
    if "output" in packed:
        return OutputView(**packed["output"], http_result=packed["http"])
    return view_of(packed["view"], extras=packed["extras"], http=packed.get("http", False))
