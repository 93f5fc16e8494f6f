"""What a template sees: plain JSON data, or one of the frozen views of this module.

Owns the one way to look something up (`lookup`): key lookup first, Python attributes never.  A view has no
public method or attribute, so nothing of it can be reached from a template except what `lookup` hands out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from noetl.core.errors import TemplateFailed, TemplateRefused
from noetl.core.expression.values import Frozen, normalise

MISSING = object()

_SUCCESS = frozenset({"call.done", "step.done", "step.exit", "command.completed"})
_FAILURE = frozenset({"call.error", "step.failed", "command.failed"})
_LOOP = _SUCCESS | {"loop.done"}
_SYNONYMS: dict[str, frozenset[str]] = (
    dict.fromkeys(_SUCCESS, _SUCCESS) | dict.fromkeys(_FAILURE, _FAILURE) | {"loop.done": _LOOP}
)
_HTTP_KEYS = frozenset({"status_code", "headers", "url", "elapsed", "data", "body"})
_put = object.__setattr__


class Undefined(Frozen):
    """A value that is not there: false, equal to nothing, chainable; ordering and arithmetic fail."""

    __slots__ = ("_path",)
    _path: str

    def __init__(self, path: str = "value") -> None:
        _put(self, "_path", path)

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return ""

    def _plain(self) -> None:
        return None

    def _printed(self) -> str:
        return ""

    def __repr__(self) -> str:
        return f"Undefined({self._path!r})"

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(Undefined)

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __contains__(self, item: object) -> bool:
        return False

    def _fail(self, *_: object) -> NoReturn:
        raise TemplateFailed(f"{self._path!r} is undefined")

    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __pos__ = __abs__ = _fail
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _fail
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _fail
    __pow__ = __rpow__ = __int__ = __float__ = __index__ = __call__ = _fail


class AtomError(Frozen):
    """Stands for an atom whose evaluation failed: an expression that uses it fails with the same message."""

    __slots__ = ("_message",)
    _message: str

    def __init__(self, message: str) -> None:
        _put(self, "_message", message)

    def _plain(self) -> NoReturn:
        self._fail()

    def __repr__(self) -> str:
        return f"AtomError({self._message!r})"

    def _fail(self, *_: object) -> NoReturn:
        raise TemplateFailed(self._message)

    __bool__ = __str__ = __len__ = __iter__ = __contains__ = _fail
    __lt__ = __le__ = __gt__ = __ge__ = _fail

    def __eq__(self, other: object) -> bool:
        self._fail()

    __hash__ = None  # type: ignore[assignment]


class EventName(str):
    """The name of an event, equal to every synonym of its situation (success, loop finished, failure)."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        own = str.__str__(self)
        return str.__str__(other) in _SYNONYMS.get(own, (own,))

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        return str.__hash__(self)


class View(Frozen):
    """Base of the views over data: Python's protocols answer for the data behind the view."""

    __slots__ = ()

    def _inner(self) -> Any:
        """The data behind the view as it was given, perhaps lazy."""
        raise NotImplementedError

    def _find(self, key: object) -> object:
        """What `lookup` finds, or MISSING; may raise LookupError or TypeError for a key that does not fit."""
        raise NotImplementedError

    def _plain(self) -> object:
        inner = self._inner()
        return dict(inner) if isinstance(inner, Mapping) and type(inner) is not dict else inner

    def __bool__(self) -> bool:
        return bool(self._inner())

    def __len__(self) -> int:
        return len(self._inner())

    def __iter__(self) -> Iterator[object]:
        return iter(self._inner())

    def __contains__(self, item: object) -> bool:
        return item in self._inner()

    def __getitem__(self, key: object) -> object:
        found = lookup(self, key, str(key))
        if type(found) is Undefined:
            raise KeyError(key)
        return found

    def __eq__(self, other: object) -> bool:
        return bool(self._plain() == bare(other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class ResultView(View):
    """A mapping result with its aliases: own keys, extras, http body, then `data`, `result` and `status`."""

    __slots__ = ("_aliases", "_extras", "_http", "_raw")
    _raw: Mapping[str, object]
    _extras: Mapping[str, object]
    _http: bool
    _aliases: bool

    def __init__(
        self,
        raw: Mapping[str, object],
        *,
        extras: Mapping[str, object] | None = None,
        http: bool = False,
        aliases: bool = True,
    ) -> None:
        _put(self, "_raw", raw)
        _put(self, "_extras", extras or {})
        _put(self, "_http", http)
        _put(self, "_aliases", aliases)

    def _inner(self) -> Mapping[str, object]:
        return self._raw

    def _find(self, key: object) -> object:
        value = _get(self._raw, key)
        if value is MISSING and self._extras:
            value = _get(self._extras, key)
        if value is MISSING and self._http:
            body = _get(self._raw, "body")
            value = _get(body, key) if isinstance(body, Mapping) else MISSING
        if value is MISSING and self._aliases:
            if key in ("data", "result"):
                return self._plain()
            if key == "status":
                return "ok"
        return value


class Rows(View):
    """A list result: behaves as the list, and `data` and `result` are the list."""

    __slots__ = ("_extras", "_rows")
    _rows: list[object]
    _extras: Mapping[str, object]

    def __init__(self, rows: list[object], *, extras: Mapping[str, object] | None = None) -> None:
        _put(self, "_rows", rows)
        _put(self, "_extras", extras or {})

    def _inner(self) -> list[object]:
        return self._rows

    def _find(self, key: object) -> object:
        if isinstance(key, int):
            return self._rows[key]
        return self._rows if key in ("data", "result") else _get(self._extras, key)


class Scalar(View):
    """A scalar result: behaves as the value, and `data` and `result` are the value."""

    __slots__ = ("_extras", "_value")
    _value: object
    _extras: Mapping[str, object]

    def __init__(self, value: object, *, extras: Mapping[str, object] | None = None) -> None:
        _put(self, "_value", value)
        _put(self, "_extras", extras or {})

    def _inner(self) -> Any:
        return self._value

    def _find(self, key: object) -> object:
        if isinstance(key, int) and isinstance(self._value, str):
            return self._value[key]
        return self._value if key in ("data", "result") else _get(self._extras, key)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self._value)


_OUTPUT_FIELDS = ("status", "data", "ref", "error", "http", "pg", "py", "meta")


class OutputView(View):
    """The outcome envelope `output`; a name that is not one of its fields falls through to `data`."""

    __slots__ = ("_data", "_fields")
    _fields: dict[str, object]
    _data: object

    def __init__(self, *, status: str, data: object = None, http_result: bool = False, **fields: object) -> None:
        unknown = fields.keys() - set(_OUTPUT_FIELDS)
        if unknown:
            raise TypeError(f"OutputView has no field {min(unknown)!r}")
        fields |= {"status": status, "data": data}
        _put(self, "_fields", {name: fields.get(name) for name in _OUTPUT_FIELDS})
        has_body = isinstance(data, Mapping) and (http_result or _is_http(data))
        _put(self, "_data", ResultView(data, http=True, aliases=False) if has_body else data)  # type: ignore[arg-type]

    def _inner(self) -> dict[str, object]:
        return dict(self._fields)

    def _find(self, key: object) -> object:
        if key in ("data", "result", "response"):
            return self._data
        value = _get(self._fields, key)
        return find(self._data, key) if value is MISSING else value


class Scope(View):
    """A mapping that holds views, with fallbacks, any of them lazy (`ctx`, `steps`, `results`).

    As a value it is its own part only, made plain.  A view is a name of a template, or stands in a Scope or a
    mapping that is a name; deeper data is never searched for views.
    """

    __slots__ = ("_fallbacks", "_own")
    _own: Mapping[str, object]
    _fallbacks: tuple[Mapping[str, object], ...]

    def __init__(self, own: Mapping[str, object], *fallbacks: Mapping[str, object]) -> None:
        _put(self, "_own", own)
        _put(self, "_fallbacks", fallbacks)

    def _inner(self) -> Mapping[str, object]:
        return self._own

    def _find(self, key: object) -> object:
        value = _get(self._own, key)
        for mapping in self._fallbacks:
            if value is not MISSING:
                break
            value = _get(mapping, key)
        return value

    def _plain(self) -> object:
        return {key: value._plain() if isinstance(value, View) else value for key, value in self._own.items()}


class Made(list[object]):
    """A list that a template made; unlike a list of data it may hold views and undefined values."""

    __slots__ = ()


class MadeDict(dict[object, object]):
    """A mapping that a template made."""

    __slots__ = ()


class Group(Made):
    """One group of `groupby`: unpacks as `[grouper, list]` and answers to these two names."""

    __slots__ = ()


VIEW_TYPES: frozenset[type] = frozenset({ResultView, Rows, Scalar, OutputView, Scope})
"""Types that wrap data; `bare` unwraps them."""

SCALAR_TYPES: frozenset[type] = frozenset({str, int, float, bool, type(None)})

SEEN_TYPES: frozenset[type] = (
    SCALAR_TYPES
    | VIEW_TYPES
    | {dict, list, Undefined, AtomError, EventName}
    | {Made, MadeDict, Group}  # exist during an evaluation only
)
"""Every type a template may hold in its hands; anything else is normalised before a template sees it."""

_KEYED = VIEW_TYPES | {dict, MadeDict, Undefined}


def view_of(result: object, *, extras: Mapping[str, object] | None = None, http: bool = False) -> object:
    """The view of a raw result: mapping, list or scalar."""
    if isinstance(result, Mapping):
        return ResultView(result, extras=extras, http=http or _is_http(result))
    if isinstance(result, list):
        return Rows(result, extras=extras)
    return Scalar(result, extras=extras)


def _is_http(result: Mapping[str, object]) -> bool:
    """Does a raw result have exactly the keys of an http result?  Nothing else about it is recorded."""
    return len(result) == len(_HTTP_KEYS) and result.keys() == _HTTP_KEYS


def bare(value: object) -> object:
    """The data behind a view, not copied; any other value is itself."""
    return value._plain() if isinstance(value, View) else value


def lookup(subject: object, key: object, path: str) -> object:
    """`subject.key` and `subject[key]`: the one rule of access.  Absent is Undefined, named by `path`."""
    try:
        value = subject[key] if type(subject) is dict else find(subject, key)
    except (LookupError, TypeError):
        value = MISSING
    if type(value) in SEEN_TYPES:
        return value
    if value is MISSING:
        return _absent(type(subject), key, path)
    # The context is plain by contract; this keeps a stray date or object of the host out of reach of
    # templates instead of trusting every caller.
    return normalise(value)


def find(subject: object, key: object) -> object:
    """What `subject` has under `key`, or MISSING; LookupError and TypeError mean the same."""
    if isinstance(subject, View):
        return subject._find(key)
    if isinstance(subject, AtomError):
        subject._fail()
    if isinstance(subject, dict):
        return _get(subject, key)
    if isinstance(key, int) and isinstance(subject, list | tuple | str):
        return subject[key]
    if isinstance(subject, Group) and key in _GROUP_KEYS:
        return subject[_GROUP_KEYS[key]]
    return MISSING


_GROUP_KEYS = {"grouper": 0, "list": 1}


def _absent(kind: type, key: object, path: str) -> Undefined:
    if isinstance(key, str) and key.startswith("_"):
        hidden = key.startswith("__") and key.endswith("__")
        if hidden or kind not in _KEYED:
            raise TemplateRefused(f"{path!r}: a name that starts with '_' must be a key of a mapping")
    return Undefined(path)


def _get(mapping: Mapping[str, object], key: object) -> object:
    try:
        return mapping[key]  # type: ignore[index]
    except KeyError:
        return MISSING
