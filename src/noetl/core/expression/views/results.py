"""The result of one tool as templates see it (dsl §8.2): the data, with aliases and a few names beside it.

A raw result may be lazy: nothing here reads more of it than the template looks at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.expression.views.absence import put
from noetl.core.expression.views.base import MISSING, Path, View, bare, find, get, place_of, sample

HTTP_KEYS = frozenset({"status_code", "headers", "url", "elapsed", "data", "body"})
_FAILED_HTTP_KEYS = HTTP_KEYS | {"status", "error"}
SELF = ("data", "result")
"""Names by which a result without such keys calls itself."""


def is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) or isinstance(sample(value), dict)


class ResultView(View):
    """A mapping result with its aliases: own keys, extras, http body, then `data`, `result` and `status`.

    `http` says that it is the result of an http task, whatever keys it has."""

    __slots__ = ("_aliases", "_extras", "_http", "_raw")
    _raw: Any
    _extras: Mapping[str, object]
    _http: bool
    _aliases: bool

    def __init__(
        self, raw: Any, *, extras: Mapping[str, object] | None = None, http: bool = False, aliases: bool = True
    ) -> None:
        put(self, "_raw", raw)
        put(self, "_extras", extras or {})
        put(self, "_http", http)
        put(self, "_aliases", aliases)

    def _inner(self) -> Any:
        return self._raw

    def _find(self, key: object) -> object:
        value = get(self._raw, key)
        if value is MISSING and self._extras:
            value = get(self._extras, key)
        if value is MISSING and self._has_body():
            value = get(get(self._raw, "body"), key)
        if value is MISSING and self._aliases:
            if key in SELF:
                return self._data() if isinstance(self._raw, View) else self._plain()
            if key == "status":
                return "ok"
        return value

    def _place(self, key: object) -> Path | None:
        if not isinstance(key, str):
            return None
        if get(self._raw, key) is not MISSING:
            return (key,)
        if key in self._extras:
            return None
        if self._has_body() and get(get(self._raw, "body"), key) is not MISSING:
            return ("body", key)
        return () if self._aliases and key in SELF else None

    def _has_body(self) -> bool:
        """Whether a name that is no key is looked for in the body (dsl §9.3)."""
        return (self._http or is_http(self._raw)) and is_mapping(get(self._raw, "body"))

    def _unaliased(self) -> object:
        return ResultView(self._raw, extras=self._extras, http=self._http, aliases=False)

    def _loaded(self) -> object:
        return ResultView(bare(self._raw), extras=plain_of(self._extras), http=self._http, aliases=self._aliases)


def is_http(result: Any) -> bool:
    """Does a raw result have exactly the keys of an http result, or of one that failed?  Nothing else about it is
    recorded."""
    if len(result) == len(HTTP_KEYS):
        return set(result) == HTTP_KEYS
    return len(result) == len(_FAILED_HTTP_KEYS) and set(result) == _FAILED_HTTP_KEYS


def plain_of(names: Mapping[str, object]) -> dict[str, object]:
    return {name: bare(value) for name, value in names.items()}


class Rows(View):
    """A list result: behaves as the list, and `data` and `result` are the list."""

    __slots__ = ("_extras", "_rows")
    _rows: Any
    _extras: Mapping[str, object]

    def __init__(self, rows: Any, *, extras: Mapping[str, object] | None = None) -> None:
        put(self, "_rows", rows)
        put(self, "_extras", extras or {})

    def _inner(self) -> Any:
        return self._rows

    def _find(self, key: object) -> object:
        if isinstance(key, int):
            return find(self._rows, key)
        return self._rows if key in SELF else get(self._extras, key)

    def _cut(self, bounds: slice) -> object:
        return self._rows._cut(bounds) if isinstance(self._rows, View) else self._rows[bounds]

    def _place(self, key: object) -> Path | None:
        return () if key in SELF else place_of(self._rows, key)

    def _unaliased(self) -> object:
        return self._rows

    def _loaded(self) -> object:
        return Rows(bare(self._rows), extras=plain_of(self._extras))


class Scalar(View):
    """A scalar result: behaves as the value, and `data` and `result` are the value."""

    __slots__ = ("_extras", "_value")
    _value: object
    _extras: Mapping[str, object]

    def __init__(self, value: object, *, extras: Mapping[str, object] | None = None) -> None:
        put(self, "_value", value)
        put(self, "_extras", extras or {})

    def _inner(self) -> Any:
        return self._value

    def _find(self, key: object) -> object:
        if isinstance(key, int) and isinstance(self._value, str):
            return self._value[key]
        return self._value if key in SELF else get(self._extras, key)

    def _place(self, key: object) -> Path | None:
        return () if key in SELF else None

    def _unaliased(self) -> object:
        return self._value

    def _loaded(self) -> object:
        return Scalar(self._value, extras=plain_of(self._extras))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self._value)


def view_of(result: object, *, extras: Mapping[str, object] | None = None, http: bool = False) -> object:
    """The view of a raw result: mapping, list or scalar."""
    if is_mapping(result):
        return ResultView(result, extras=extras, http=http)
    if isinstance(result, list) or isinstance(sample(result), list):
        return Rows(result, extras=extras)
    return Scalar(result, extras=extras)
