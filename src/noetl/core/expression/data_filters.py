"""Filters over lists and mappings, and the tests (`is …`).  Filters return lists, never iterators.

`apply_filter` and `apply_test` are the only ways to run one, for generated code and for `map` and `select`
alike, so a name that is not in these tables does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noetl.core.errors import TemplateFailed, TemplateRefused
from noetl.core.expression.evaluation import Evaluation, check_length
from noetl.core.expression.operators import binary, compare, contains, kind_of
from noetl.core.expression.text_filters import TEXT_FILTERS
from noetl.core.expression.values import is_true
from noetl.core.expression.views import (
    SCALAR_TYPES,
    Group,
    Made,
    Undefined,
    View,
    bare,
    lookup,
    operand,
    sample,
)
from noetl.core.limits import TEMPLATE_RANGE_MAX

WORK_PER_ITEM = 10
"""Work of one turn of a loop that runs Python code for each item."""

_KEEP_VIEW = frozenset({"attr", "d", "default", "get"})
_HAND_ON = _KEEP_VIEW | {"first", "fromjson", "last", "max", "min", "random", "sum"}
"""Filters whose result is something they were given; any other list is one that the template made."""

_WITHOUT_READING: dict[str, Callable[[View], object]] = {
    "count": len,
    "length": len,
    "first": lambda view: lookup(view, 0, "first of an empty list"),
    "last": lambda view: lookup(view, -1, "last of an empty list"),
}
"""Filters that a list answers without its items being read; a mapping has a length too."""
_OF_PRESENCE = frozenset({"defined", "undefined"})
_OF_TYPE = frozenset(
    {"boolean", "float", "integer", "iterable", "mapping", "none", "number", "sequence", "string", "true", "false"}
)

Key = Callable[[object], Any]


def apply_filter(evaluation: Evaluation, name: str, value: object, args: Any, kwargs: dict[str, Any]) -> object:
    """Run a filter by name."""
    function = FILTERS.get(name)
    if function is None:
        raise TemplateFailed(f"no filter named {name!r}")
    if name in _KEEP_VIEW:
        return function(evaluation, value, *args, **kwargs)
    if name in _WITHOUT_READING and isinstance(value, View) and not args and not kwargs:
        kind = type(sample(value))
        if kind is list or (kind is dict and name in ("count", "length")):
            return _WITHOUT_READING[name](value)
    result = function(evaluation, operand(value), *map(bare, args), **_bare_values(kwargs))
    return Made(result) if type(result) is list and name not in _HAND_ON else result


def apply_test(evaluation: Evaluation, name: str, value: object, args: Any, kwargs: dict[str, Any]) -> bool:
    """Run a test by name."""
    function = TESTS.get(name)
    if function is None:
        raise TemplateFailed(f"no test named {name!r}")
    if name not in _OF_PRESENCE:
        value = sample(value) if name in _OF_TYPE else bare(value)
    return bool(function(evaluation, value, *map(bare, args), **_bare_values(kwargs)))


def _bare_values(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: bare(value) for name, value in kwargs.items()} if kwargs else kwargs


def items_of(evaluation: Evaluation, value: object, work: int = 1) -> list[object]:
    """The items of a value to go through, with the work of doing so paid."""
    value = bare(value)
    if isinstance(value, list | tuple | range | dict | str):
        evaluation.charge(len(value) * work + 1)
        return value if isinstance(value, list) else list(value)
    if isinstance(value, Undefined):
        return []
    raise TemplateFailed(f"a list is needed, not {kind_of(value)}")


def _mapping(value: object) -> dict[str, object]:
    if isinstance(value, Undefined):
        return {}
    if not isinstance(value, dict):
        raise TemplateFailed(f"a mapping is needed, not {kind_of(value)}")
    return value


def _parts(attribute: object) -> list[str | int]:
    if isinstance(attribute, str):
        return [int(part) if part.isdecimal() and len(part) < 10 else part for part in attribute.split(".")]
    if type(attribute) is int:
        return [attribute]
    raise TemplateFailed("an attribute must be a text or a whole number")


def _getter(attribute: object, *, fold_for: Evaluation | None = None, default: object = None) -> Key:
    """A function that reads an attribute of an item, in lower case if an evaluation pays for it."""
    parts = [] if attribute is None else _parts(attribute)
    path = str(attribute)

    def get(item: object) -> object:
        for part in parts:
            item = lookup(item, part, path)
            if default is not None and isinstance(item, Undefined):
                item = default
        return item if fold_for is None else _folded(fold_for, bare(item))

    return get


def _folded(evaluation: Evaluation, value: object) -> object:
    if not isinstance(value, str):
        return value
    evaluation.charge_chars(len(value))
    return value.lower()


def _attr(_: Evaluation, value: object, name: object) -> object:
    return lookup(value, bare(name), str(bare(name)))


def _batch(evaluation: Evaluation, value: object, linecount: int, fill_with: object = None) -> list[object]:
    items = items_of(evaluation, value)
    check_length(linecount)
    if linecount < 1:
        raise TemplateFailed("batch needs at least one item per line")
    lines: list[Any] = [Made(items[start : start + linecount]) for start in range(0, len(items), linecount)]
    if lines and fill_with is not None:
        evaluation.charge(linecount // 8)
        lines[-1] += [fill_with] * (linecount - len(lines[-1]))
    return lines


def _default(_: Evaluation, value: object, default_value: object = "", boolean: bool = False) -> object:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


def _dictsort(
    evaluation: Evaluation,
    value: object,
    case_sensitive: bool = False,
    by: str = "key",
    reverse: bool = False,
) -> list[object]:
    if by not in ("key", "value"):
        raise TemplateFailed("dictsort sorts by key or by value")
    pairs = _items(evaluation, value)
    return _sort(evaluation, pairs, reverse, case_sensitive, 0 if by == "key" else 1)


def _first(evaluation: Evaluation, value: object) -> object:
    if isinstance(value, list | str | range):
        return value[0] if len(value) else Undefined("first of an empty list")
    items = items_of(evaluation, value)
    return items[0] if items else Undefined("first of an empty list")


def _get(_: Evaluation, value: object, key: object, default: object = None) -> object:
    found = lookup(value, bare(key), str(bare(key)))
    return default if isinstance(found, Undefined) else found


def _groupby(
    evaluation: Evaluation,
    value: object,
    attribute: object,
    default: object = None,
    case_sensitive: bool = False,
) -> list[object]:
    get = _getter(attribute, default=default)
    groups: list[Group] = []
    latest: object = None
    for item in _sorted(
        evaluation,
        value,
        _getter(attribute, fold_for=None if case_sensitive else evaluation, default=default),
    ):
        key = get(item)
        folded = bare(key) if case_sensitive else _folded(evaluation, bare(key))
        if not groups or latest != folded:
            groups.append(Group([key, Made()]))
            latest = folded
        members: Any = groups[-1][1]
        members.append(item)
    return [*groups]


def _items(evaluation: Evaluation, value: object) -> list[object]:
    mapping = _mapping(value)
    evaluation.charge(len(mapping) * 2)
    return [Made((key, item)) for key, item in mapping.items()]


def _join(evaluation: Evaluation, value: object, d: object = "", attribute: object = None) -> str:
    get = _getter(attribute)
    items = items_of(evaluation, value, WORK_PER_ITEM)
    return evaluation.join((evaluation.text(get(item)) for item in items), evaluation.text(d))


def _keys(evaluation: Evaluation, value: object) -> list[object]:
    return items_of(evaluation, _mapping(value))


def _last(evaluation: Evaluation, value: object) -> object:
    items = value if isinstance(value, list | str | range) else items_of(evaluation, value)
    return items[-1] if len(items) else Undefined("last of an empty list")


def _length(_: Evaluation, value: object) -> int:
    if isinstance(value, dict | list | tuple | str | range | Undefined):
        return len(value)
    raise TemplateFailed(f"{kind_of(value)} has no length")


def _list(evaluation: Evaluation, value: object) -> list[object]:
    return list(items_of(evaluation, value))


def _map(evaluation: Evaluation, value: object, *args: Any, **kwargs: Any) -> list[object]:
    items = items_of(evaluation, value, WORK_PER_ITEM)
    if args:
        name, *rest = args
        evaluation.charge(len(items) * WORK_PER_ITEM)
        return [apply_filter(evaluation, name, item, rest, kwargs) for item in items]
    if not kwargs.keys() <= {"attribute", "default"} or "attribute" not in kwargs:
        raise TemplateFailed("map needs the name of a filter, or attribute= and perhaps default=")
    get = _getter(kwargs["attribute"], default=kwargs.get("default"))
    return [get(item) for item in items]


def _min(evaluation: Evaluation, value: object, case_sensitive: bool = False, attribute: object = None) -> object:
    return _extreme(evaluation, value, min, _getter(attribute, fold_for=None if case_sensitive else evaluation))


def _max(evaluation: Evaluation, value: object, case_sensitive: bool = False, attribute: object = None) -> object:
    return _extreme(evaluation, value, max, _getter(attribute, fold_for=None if case_sensitive else evaluation))


def _extreme(evaluation: Evaluation, value: object, choose: Callable[..., int], key: Key) -> object:
    items = items_of(evaluation, value, WORK_PER_ITEM)
    keys = [key(item) for item in items]
    _pay_for_comparing(evaluation, keys, 2)
    chosen = choose(range(len(items)), key=keys.__getitem__) if items else None
    return Undefined("aggregate of an empty list") if chosen is None else items[chosen]


def _pay_for_comparing(evaluation: Evaluation, keys: list[Any], passes: int) -> None:
    for key in keys:
        if isinstance(key, str):
            evaluation.charge(len(key) // 64)
        elif type(key) not in SCALAR_TYPES:
            for _ in range(passes):
                evaluation.visit(key)


def _random(evaluation: Evaluation, value: object) -> object:
    if evaluation.random is None:
        raise TemplateRefused("the filter 'random' is available in the fields of a task only")
    items = items_of(evaluation, value)
    return items[evaluation.random(len(items))] if items else Undefined("random of an empty list")


def _reject(evaluation: Evaluation, value: object, *args: Any, **kwargs: Any) -> list[object]:
    return _selected(evaluation, value, _getter(None), args, kwargs, keep=False)


def _rejectattr(evaluation: Evaluation, value: object, attribute: object, *args: Any, **kwargs: Any) -> list[object]:
    return _selected(evaluation, value, _getter(attribute), args, kwargs, keep=False)


def _select(evaluation: Evaluation, value: object, *args: Any, **kwargs: Any) -> list[object]:
    return _selected(evaluation, value, _getter(None), args, kwargs, keep=True)


def _selectattr(evaluation: Evaluation, value: object, attribute: object, *args: Any, **kwargs: Any) -> list[object]:
    return _selected(evaluation, value, _getter(attribute), args, kwargs, keep=True)


def _selected(
    evaluation: Evaluation, value: object, get: Key, args: Any, kwargs: dict[str, Any], *, keep: bool
) -> list[object]:
    items = items_of(evaluation, value, 2 * WORK_PER_ITEM)
    if not args:
        return [item for item in items if bool(get(item)) is keep]
    name, *rest = args
    return [item for item in items if apply_test(evaluation, name, get(item), rest, kwargs) is keep]


def _reverse(evaluation: Evaluation, value: object) -> object:
    if isinstance(value, str):
        evaluation.charge_chars(len(value))
        return value[::-1]
    return items_of(evaluation, value)[::-1]


def _slice(evaluation: Evaluation, value: object, slices: int, fill_with: object = None) -> list[object]:
    items = items_of(evaluation, value)
    if not 1 <= slices <= TEMPLATE_RANGE_MAX:
        raise TemplateFailed(f"slice needs 1 to {TEMPLATE_RANGE_MAX:,} slices")
    evaluation.charge(slices * 2)
    size, longer = divmod(len(items), slices)
    columns, start = [], 0
    for index in range(slices):
        end = start + size + (1 if index < longer else 0)
        column = Made(items[start:end])
        if fill_with is not None and index >= longer:
            column.append(fill_with)
        columns.append(column)
        start = end
    return [*columns]


def _sort(
    evaluation: Evaluation,
    value: object,
    reverse: bool = False,
    case_sensitive: bool = False,
    attribute: object = None,
) -> list[object]:
    names = attribute.split(",") if isinstance(attribute, str) else [attribute]
    getters = [_getter(name, fold_for=None if case_sensitive else evaluation) for name in names]
    key = getters[0] if len(getters) == 1 else lambda item: [get(item) for get in getters]
    return _sorted(evaluation, value, key, reverse=bool(reverse))


def _sorted(evaluation: Evaluation, value: object, key: Key, *, reverse: bool = False) -> list[object]:
    items = items_of(evaluation, value, 2 * WORK_PER_ITEM)
    keys = [key(item) for item in items]
    _pay_for_comparing(evaluation, keys, len(items).bit_length())
    order = sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)
    return [items[index] for index in order]


def _split(evaluation: Evaluation, value: object, separator: object = None, maxsplit: int = -1) -> list[object]:
    text = evaluation.text(value)
    evaluation.charge(len(text) // 4 + 1)
    parts = text.split(None if separator is None else evaluation.text(separator), maxsplit)
    return [*parts]


def _sum(evaluation: Evaluation, value: object, attribute: object = None, start: object = 0) -> object:
    get, total = _getter(attribute), start
    for item in items_of(evaluation, value, WORK_PER_ITEM):
        total = binary(evaluation, "+", total, get(item))
    return total


def _unique(
    evaluation: Evaluation, value: object, case_sensitive: bool = False, attribute: object = None
) -> list[object]:
    get = _getter(attribute, fold_for=None if case_sensitive else evaluation)
    items = items_of(evaluation, value, WORK_PER_ITEM)
    found: dict[object, object] = {}
    for item in items:
        key = get(item)
        if isinstance(key, str):
            evaluation.charge(len(key) // 64)
        found.setdefault(key, item)
    return list(found.values())


def _values(evaluation: Evaluation, value: object) -> list[object]:
    return items_of(evaluation, list(_mapping(value).values()))


DATA_FILTERS: dict[str, Callable[..., object]] = {
    "attr": _attr,
    "batch": _batch,
    "count": _length,
    "d": _default,
    "default": _default,
    "dictsort": _dictsort,
    "first": _first,
    "get": _get,
    "groupby": _groupby,
    "items": _items,
    "join": _join,
    "keys": _keys,
    "last": _last,
    "length": _length,
    "list": _list,
    "map": _map,
    "max": _max,
    "min": _min,
    "random": _random,
    "reject": _reject,
    "rejectattr": _rejectattr,
    "reverse": _reverse,
    "select": _select,
    "selectattr": _selectattr,
    "slice": _slice,
    "sort": _sort,
    "split": _split,
    "sum": _sum,
    "truth": lambda _, value: is_true(value),
    "unique": _unique,
    "values": _values,
}
FILTERS: dict[str, Callable[..., object]] = {**TEXT_FILTERS, **DATA_FILTERS}


def _same(_: Evaluation, value: object, other: object) -> bool:
    # Identity of Python objects is an accident of memory; types and values are not.
    return type(value) is type(other) and value == other


def _remainder(evaluation: Evaluation, value: object, divisor: object) -> object:
    return binary(evaluation, "%", value, divisor)


def _is_integer(_: Evaluation, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _compared(symbol: str) -> Callable[..., object]:
    def test(evaluation: Evaluation, value: object, other: object) -> bool:
        return compare(evaluation, symbol, value, other)

    return test


_NAMES_OF_COMPARISONS = {
    "eq": ("==", "eq", "equalto"),
    "ne": ("!=", "ne"),
    "gt": (">", "gt", "greaterthan"),
    "gteq": (">=", "ge"),
    "lt": ("<", "lt", "lessthan"),
    "lteq": ("<=", "le"),
}
TESTS: dict[str, Callable[..., object]] = {
    "boolean": lambda _, value: isinstance(value, bool),
    "callable": lambda _, __: False,
    "defined": lambda _, value: not isinstance(value, Undefined),
    "divisibleby": lambda evaluation, value, num: _remainder(evaluation, value, num) == 0,
    "escaped": lambda _, __: False,
    "even": lambda evaluation, value: _remainder(evaluation, value, 2) == 0,
    "false": lambda _, value: value is False,
    "filter": lambda _, value: value in FILTERS,
    "float": lambda _, value: isinstance(value, float),
    "in": contains,
    "integer": _is_integer,
    "iterable": lambda _, value: isinstance(value, dict | list | tuple | range | str | Undefined),
    "lower": lambda evaluation, value: evaluation.text(value).islower(),
    "mapping": lambda _, value: isinstance(value, dict),
    "none": lambda _, value: value is None,
    "number": lambda _, value: isinstance(value, int | float),
    "odd": lambda evaluation, value: _remainder(evaluation, value, 2) == 1,
    "sameas": _same,
    "sequence": lambda _, value: isinstance(value, dict | list | tuple | range | str | Undefined),
    "string": lambda _, value: isinstance(value, str),
    "test": lambda _, value: value in TESTS,
    "true": lambda _, value: value is True,
    "undefined": lambda _, value: isinstance(value, Undefined),
    "upper": lambda evaluation, value: evaluation.text(value).isupper(),
    **{name: _compared(symbol) for symbol, names in _NAMES_OF_COMPARISONS.items() for name in names},
}
