"""The one way to look something up (`lookup`): key lookup first, Python attributes never.

A template holds plain JSON data or a frozen view.  A view has no public method or attribute, so nothing of it can be
reached from a template except what `lookup` hands out.  A view may be lazy: then a look at data that is not here
raises Absent, and whoever evaluates fetches the part and evaluates again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from noetl.core.errors import TemplateRefused
from noetl.core.expression.values import Frozen, normalise
from noetl.core.expression.views.absence import AtomError, EventName, Undefined, put

MISSING = object()
Path = tuple[str | int, ...]

COUNTED_MAX = 65_536


class Absent(Exception):
    """Data that a template looked at is not here.  `part` says which; the core knows nothing more about it."""

    def __init__(self, part: object) -> None:
        super().__init__(part)
        self.part = part


class View(Frozen):
    """Base of the views over data: Python's protocols answer for the data behind the view."""

    __slots__ = ()

    def _inner(self) -> Any:
        """The data behind the view as it was given, perhaps lazy."""
        raise NotImplementedError

    def _find(self, key: object) -> object:
        """What `lookup` finds, or MISSING; may raise LookupError or TypeError for a key that does not fit."""
        raise NotImplementedError

    def _place(self, key: object) -> Path | None:
        """Where in the data behind the view the value of a key lies; None when it is no part of the data."""
        del key
        return None

    def _plain(self) -> object:
        inner = self._inner()
        return dict(inner) if isinstance(inner, Mapping) and type(inner) is not dict else bare(inner)

    def _holds_parts(self) -> bool:
        """Whether something of the data is stored as a payload of its own."""
        return _holds_parts(self._inner())

    def _parted(self) -> object:
        """As `_plain`, but what is stored as a payload of its own stays a view of it."""
        inner = self._inner()
        return inner._parted() if isinstance(inner, View) else inner

    def _data(self) -> object:
        """The data behind the view, without what the view adds to it, and without reading it."""
        return self._inner()

    def _sample(self) -> object:
        """Something of the type of the plain value, for questions about the type alone."""
        inner = self._inner()
        return {} if isinstance(inner, Mapping) else sample(inner)

    def _operand(self) -> object:
        """What filters work on: the plain value, or a list that a template could have made."""
        return self._plain()

    def _cut(self, bounds: slice) -> object:
        """Items of a list."""
        items: Any = self._plain()
        return items[bounds]

    def _is_keyed(self) -> bool:
        return True

    def _self(self) -> object:
        """What `data` and `result` are when that is not the whole result; MISSING otherwise."""
        return MISSING

    def _bytes_min(self) -> int:
        """How many bytes the JSON of the data has at least, as far as that is known without reading it."""
        inner = self._data()
        return bytes_min(inner, COUNTED_MAX) if inner is not self else 0

    def _loaded(self) -> object:
        """The same view with nothing lazy in it."""
        return self

    def _unaliased(self) -> object:
        """The view without `data`, `result` and `status` of its own."""
        return self

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


class Lazy(View):
    """A view of data that may not be here.  It adds nothing to the data: `data`, `status` and the like are keys."""

    __slots__ = ()

    def _inner(self) -> Any:
        """The data, or a view of it.  Raises Absent."""
        raise NotImplementedError

    def _find(self, key: object) -> object:
        return find(self._inner(), key)

    def _cut(self, bounds: slice) -> object:
        inner = self._inner()
        return inner._cut(bounds) if isinstance(inner, View) else inner[bounds]

    def _place(self, key: object) -> Path | None:
        return place_of(self._inner(), key)

    def _data(self) -> object:
        return self

    def _is_keyed(self) -> bool:
        return is_keyed(self._inner())

    def _bytes_min(self) -> int:
        return bytes_min(self._inner(), COUNTED_MAX)

    def _loaded(self) -> object:
        inner = self._inner()
        return inner._loaded() if isinstance(inner, View) else inner


class Composed(Lazy):
    """A mapping that is put together from parts: a result with aliases of its own, or the data behind them."""

    __slots__ = ()
    _is_data: bool

    def _with(self, *, aliases: bool, is_data: bool = False) -> View:
        """The same parts with or without the aliases."""
        raise NotImplementedError

    def _data(self) -> object:
        return self._with(aliases=False, is_data=True)

    def _unaliased(self) -> object:
        return self._with(aliases=False, is_data=self._is_data)

    def _sample(self) -> object:
        return {}

    def _is_keyed(self) -> bool:
        return True


class Scope(View):
    """A mapping that holds views, with fallbacks, any of them lazy (`ctx`, `steps`, `results`).

    As a value it is its own part only, made plain.  A view is a name of a template, or stands in a Scope or a
    mapping that is a name; deeper data is never searched for views.
    """

    __slots__ = ("_fallbacks", "_own")
    _own: Mapping[str, object]
    _fallbacks: tuple[Mapping[str, object], ...]

    def __init__(self, own: Mapping[str, object], *fallbacks: Mapping[str, object]) -> None:
        put(self, "_own", own)
        put(self, "_fallbacks", fallbacks)

    def _inner(self) -> Mapping[str, object]:
        return self._own

    def _find(self, key: object) -> object:
        value = get(self._own, key)
        for mapping in self._fallbacks:
            if value is not MISSING:
                break
            value = get(mapping, key)
        return value

    def _place(self, key: object) -> Path | None:
        return (key,) if isinstance(key, str) and key in self._own else None

    def _plain(self) -> object:
        return {key: bare(value) for key, value in self._own.items()}

    def _holds_parts(self) -> bool:
        return any(map(_holds_parts, self._own.values()))

    def _parted(self) -> object:
        return dict(self._own)

    def _loaded(self) -> object:
        return Scope(_loaded_all(self._own), *map(_loaded_all, self._fallbacks))


def _loaded_all(mapping: Mapping[str, object]) -> dict[str, object]:
    return {name: loaded(value) for name, value in mapping.items()}


class Made(list[object]):
    """A list that a template made; unlike a list of data it may hold views and undefined values."""

    __slots__ = ()


class MadeDict(dict[object, object]):
    """A mapping that a template made."""

    __slots__ = ()


class Group(Made):
    """One group of `groupby`: unpacks as `[grouper, list]` and answers to these two names."""

    __slots__ = ()


SCALAR_TYPES: frozenset[type] = frozenset({str, int, float, bool, type(None)})

SEEN_TYPES: frozenset[type] = (
    SCALAR_TYPES
    | {dict, list, Undefined, AtomError, EventName}
    | {Made, MadeDict, Group}  # exist during an evaluation only
)
"""Every type beside the views that a template may hold; anything else is normalised before a template sees it."""


def is_seen(value: object) -> bool:
    """Whether a template may hold this as it is."""
    return type(value) in SEEN_TYPES or isinstance(value, View)


def bare(value: object) -> object:
    """The data behind a view, not copied; any other value is itself."""
    return value._plain() if isinstance(value, View) else value


def _holds_parts(value: object) -> bool:
    return isinstance(value, View) and value._holds_parts()


def operand(value: object) -> object:
    """What a filter works on."""
    return value._operand() if isinstance(value, View) else value


def part_of(value: object, bounds: slice) -> object:
    """Items of a view of a list, or MISSING when it is no list."""
    return value._cut(bounds) if isinstance(value, View) and type(value._sample()) is list else MISSING


def bytes_min(value: object, enough: int) -> int:
    """How many bytes the JSON of a value has at least; nobody counts further than `enough`."""
    total, stack = 0, [value]
    while stack and total <= enough:
        item = stack.pop()
        if isinstance(item, View):
            total += item._bytes_min()
        elif isinstance(item, str):
            total += len(item) + 2
        elif isinstance(item, dict):
            total += 1 + 5 * len(item)
            stack.extend(islice(item.values(), enough))
        elif isinstance(item, list):
            total += 1 + 2 * len(item)
            stack.extend(islice(item, enough))
    return total


def sample(value: object) -> object:
    """Something of the type of a value: of a container that is not read an empty one."""
    return value._sample() if isinstance(value, View) else value


def loaded(value: object) -> object:
    """A value of a name with nothing lazy in it.  Raises Absent."""
    if isinstance(value, View):
        return value._loaded()
    if type(value) is dict and any(isinstance(item, View) for item in value.values()):
        return _loaded_all(value)
    return value


def data_of(value: object) -> object:
    """The data behind a view as far as it is here: unlike `bare` this reads nothing."""
    return value._data() if isinstance(value, View) else value


def unaliased(value: object) -> object:
    """A view of a result as `output.data` has it: without the names by which a result calls itself."""
    return value._unaliased() if isinstance(value, View) else value


def lookup(subject: object, key: object, path: str) -> object:
    """`subject.key` and `subject[key]`: the one rule of access.  Absent is Undefined, named by `path`."""
    try:
        value = subject[key] if type(subject) is dict else find(subject, key)
    except (LookupError, TypeError):
        value = MISSING
    if type(value) in SEEN_TYPES or isinstance(value, View):
        return value
    if value is MISSING:
        return _undefined(subject, key, path)
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
        return get(subject, key)
    if isinstance(key, int) and isinstance(subject, list | tuple | str):
        return subject[key]
    if isinstance(subject, Group) and key in _GROUP_KEYS:
        return subject[_GROUP_KEYS[key]]
    return MISSING


_GROUP_KEYS = {"grouper": 0, "list": 1}


def place_of(subject: object, key: object) -> Path | None:
    """Where in data, or in the data behind a view, the value of a key lies; None when there is none."""
    if isinstance(subject, View):
        return subject._place(key)
    if isinstance(subject, dict):
        return (key,) if isinstance(key, str) and key in subject else None
    is_index = isinstance(subject, list) and type(key) is int and -len(subject) <= key < len(subject)
    return (key,) if is_index else None  # type: ignore[return-value]


def _undefined(subject: object, key: object, path: str) -> Undefined:
    if isinstance(key, str) and key.startswith("_"):
        hidden = key.startswith("__") and key.endswith("__")
        if hidden or not is_keyed(subject):
            raise TemplateRefused(f"{path!r}: a name that starts with '_' must be a key of a mapping")
    return Undefined(path)


def is_keyed(subject: object) -> bool:
    """Whether something has keys, among which a name that starts with `_` may be missing."""
    return subject._is_keyed() if isinstance(subject, View) else isinstance(subject, dict | Undefined)


def get(mapping: Any, key: object) -> object:
    """What a mapping, or a view of one, has under a key, or MISSING."""
    if isinstance(mapping, View):
        return mapping._find(key)
    try:
        return mapping[key]
    except KeyError:
        return MISSING
