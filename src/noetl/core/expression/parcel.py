"""Names on their way to another process: views become tagged data and are views again on the other side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.expression.values import plain
from noetl.core.expression.views import (
    EventName,
    FailedView,
    Lazy,
    LoopView,
    OutputView,
    PipelineView,
    ResultRows,
    ResultView,
    Rows,
    Scalar,
    Scope,
    View,
    bare,
    view_of,
)


def pack(names: Mapping[str, object]) -> dict[str, object]:
    """The names as JSON data.  Raises Absent when a view is lazy and its data is not here."""
    return {name: _pack(value) for name, value in names.items()}


def unpack(parcel: Mapping[str, object]) -> dict[str, object]:
    """The names again."""
    return {name: _unpack(packed) for name, packed in parcel.items()}


def _pack(value: object) -> dict[str, object]:
    if isinstance(value, View):
        return _pack_view(value)
    if isinstance(value, EventName):
        return {"event": str.__str__(value)}
    if isinstance(value, Mapping) and any(isinstance(item, View | EventName) for item in value.values()):
        return {"names": pack(value)}
    return {"plain": plain(value)}


def _pack_view(value: View) -> dict[str, object]:
    if isinstance(value, ResultView):
        packed = {"view": bare(value), "extras": _plain_of(value._extras), "http": value._http}
        return packed if value._aliases else {**packed, "unaliased": True}
    if isinstance(value, Rows | Scalar):
        return {"view": bare(value), "extras": _plain_of(value._extras)}
    if isinstance(value, OutputView):
        is_raw = not isinstance(value._fields["data"], View)
        fields = {name: plain(item) for name, item in value._fields.items() if name != "data"}
        packed_data = _pack(value._fields["data"])
        return {"output": fields, "data": packed_data, "http": is_raw and isinstance(value._data_view, ResultView)}
    if isinstance(value, Scope):
        return {"scope": pack(value._own), "fallbacks": [pack(fallback) for fallback in value._fallbacks]}
    return _pack_composed(value)


def _pack_composed(value: View) -> dict[str, object]:
    if isinstance(value, PipelineView):
        tasks = {label: _plain_of(extras) for label, extras in value._tasks.items()}
        results, extras = _plain_of(value._results), _plain_of(value._extras)
        members = {"order": list(value._order), "results": results, "extras": extras, "tasks": tasks}
        return {"pipeline": members, **_mode(value)}
    if isinstance(value, FailedView):
        return {"failed": {"error": value._error, "view": _pack(value._view)}, **_mode(value)}
    if isinstance(value, LoopView):
        extras = _plain_of(value._extras)
        return {"loop": {"summary": value._summary, "rows": _pack(value._rows), "extras": extras}, **_mode(value)}
    if isinstance(value, ResultRows):
        return {"rows": bare(value._records), "is_data": value._is_data}
    loaded = value._loaded() if isinstance(value, Lazy) else plain(value)
    return _pack(loaded)


def _mode(view: PipelineView | FailedView | LoopView) -> dict[str, object]:
    return {"mode": {"aliases": view._aliases, "is_data": view._is_data}}


def _plain_of(extras: Mapping[str, object]) -> dict[str, object]:
    return {name: bare(value) for name, value in extras.items()}


def _unpack(packed: Any) -> object:
    if "plain" in packed:
        return packed["plain"]
    if "event" in packed:
        return EventName(packed["event"])
    if "names" in packed:
        return unpack(packed["names"])
    if "scope" in packed:
        return Scope(unpack(packed["scope"]), *(unpack(fallback) for fallback in packed["fallbacks"]))
    if "output" in packed:
        return OutputView(**packed["output"], data=_unpack(packed["data"]), http_result=packed["http"])
    if "view" in packed:
        view = view_of(packed["view"], extras=packed["extras"], http=packed.get("http", False))
        return view._unaliased() if packed.get("unaliased") and isinstance(view, View) else view
    return _unpack_composed(packed)


def _unpack_composed(packed: Any) -> object:
    if "rows" in packed:
        return ResultRows(packed["rows"], is_data=packed["is_data"])
    mode = packed["mode"]
    if "pipeline" in packed:
        return PipelineView(**packed["pipeline"], **mode)
    if "failed" in packed:
        return FailedView(packed["failed"]["error"], _unpack(packed["failed"]["view"]), **mode)
    loop = packed["loop"]
    rows: Any = _unpack(loop["rows"])
    return LoopView(loop["summary"], rows, extras=loop["extras"], **mode)
