"""The outcome envelope `output` (dsl §8.4)."""

from __future__ import annotations

from noetl.core.expression.values import plain
from noetl.core.expression.views.absence import put
from noetl.core.expression.views.base import MISSING, Path, View, bare, find, get, loaded, place_of
from noetl.core.expression.views.results import ResultView, is_http, is_mapping

_FIELDS = ("status", "data", "ref", "error", "http", "pg", "py", "meta")
_DATA = ("data", "result", "response")


class OutputView(View):
    """`data` is a raw result, or the view of one without its aliases; a name that is no field falls through to it."""

    __slots__ = ("_data_view", "_fields")
    _fields: dict[str, object]
    _data_view: object

    def __init__(self, *, status: str, data: object = None, http_result: bool = False, **fields: object) -> None:
        unknown = fields.keys() - set(_FIELDS)
        if unknown:
            raise TypeError(f"OutputView has no field {min(unknown)!r}")
        fields |= {"status": status, "data": data}
        put(self, "_fields", {name: fields.get(name) for name in _FIELDS})
        is_raw = not isinstance(data, View) and is_mapping(data)
        has_body = is_raw and (http_result or is_http(data))
        put(self, "_data_view", ResultView(data, http=True, aliases=False) if has_body else data)

    def _inner(self) -> dict[str, object]:
        return dict(self._fields)

    def _plain(self) -> object:
        return {name: bare(value) if name == "data" else plain(value) for name, value in self._fields.items()}

    def _find(self, key: object) -> object:
        if key in _DATA:
            return self._data_view
        value = get(self._fields, key)
        return find(self._data_view, key) if value is MISSING else value

    def _place(self, key: object) -> Path | None:
        if key in _DATA:
            return ()
        return None if key in self._fields else place_of(self._data_view, key)

    def _loaded(self) -> object:
        fields = {name: loaded(value) for name, value in self._fields.items() if name not in ("status", "data")}
        has_body = isinstance(self._data_view, ResultView) and not isinstance(self._fields["data"], View)
        status = str(self._fields["status"])
        return OutputView(status=status, data=loaded(self._fields["data"]), http_result=has_body, **fields)
