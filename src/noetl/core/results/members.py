"""A result looked at from outside, one level at a time: nothing below the level is read.

What comes out is what `{{ step }}` hands over (dsl §8.2, §8.3): the data, without names that are only for reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from noetl.core.errors import ResultUnknown, TemplateRefused
from noetl.core.expression import FailedView, Lazy, LoopView, PipelineView, ResultRows, View, find, lookup
from noetl.core.expression.views import MISSING, Undefined, pipeline_result, sample
from noetl.core.expression.views.absence import put
from noetl.core.playbook.storage.reading import path_of
from noetl.core.results.parts import Parted, Table
from noetl.core.results.stored import Stored

Path = tuple[str | int, ...]
NATURAL = ("rows", "results", "data")
"""Where the rows of a mapping are, when nobody says it; the first that is a list counts."""
_KEYS_SHOWN_MAX = 20


class Members(dict[str, object]):
    """A mapping whose values may be views; no other mapping has any."""

    __slots__ = ()


class Member(Lazy):
    """A member of a stored mapping, which is read when somebody looks at it."""

    __slots__ = ("_key", "_mapping")
    _mapping: View
    _key: str

    def __init__(self, mapping: View, key: str) -> None:
        put(self, "_mapping", mapping)
        put(self, "_key", key)

    def _inner(self) -> Any:
        return find(self._mapping, self._key)


def opened(value: object) -> object:
    """A value with its first level open: Members, a list or a view of one, a Table, or plain data.  Raises Absent."""
    while isinstance(value, View) and not isinstance(value, Table | ResultRows):
        if isinstance(value, PipelineView):
            return _pipeline(value._order, value._results)
        if isinstance(value, FailedView):
            base = opened(value._view)
            return Members({**(base if isinstance(base, dict) else {}), "status": "error", "error": value._error})
        if isinstance(value, LoopView):
            return Members({**value._summary, "results": value._rows})
        if isinstance(value, Stored | Parted):
            is_list = isinstance(sample(value), list)
            return value if is_list else Members((str(key), Member(value, str(key))) for key in value)
        value = value._inner()
    return value


def _pipeline(order: Sequence[str], results: Mapping[str, object]) -> Members:
    levels = {label: opened(result) for label, result in results.items()}
    whole = pipeline_result(order, levels)
    return Members({**whole, "results": Members(levels)})


def is_list(value: object) -> bool:
    """Whether what `opened` gave is a list of any kind."""
    return isinstance(value, list) or (isinstance(value, View) and isinstance(sample(value), list))


# --- a part of it ----------------------------------------------------------------------------------------


def parsed_path(text: str) -> Path:
    """The keys of a path such as `rows`, `pull.rows[3]` or `$["odd key"]`; none is all of it.  Raises ResultUnknown."""
    if text.strip() in ("", "$"):
        return ()
    path = path_of(text)
    if path is None:
        raise ResultUnknown(f'{text[:100]!r} is no path: write `rows`, `pull.rows[3]` or `$["odd key"].a`')
    return path


def at(view: object, path: Path) -> object:
    """What a template finds under a path below a result.  Raises Absent and ResultUnknown."""
    value = view
    for number, key in enumerate(path):
        found = _below(value, key)
        if isinstance(found, Undefined):
            above = shown(path[:number])
            raise ResultUnknown(f"{above or 'the result'} has no {_shown_key(key)}: {_there_is(value)}")
        value = found
    return value


def _below(value: object, key: str | int) -> object:
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10 and is_list(opened(value)):
        key = int(key)  # `results.3`, as templates read it
    try:
        return lookup(value, key, str(key))
    except TemplateRefused:  # names that templates must not ask for
        return Undefined(str(key))


def shown(path: Path) -> str:
    """A path as it is written."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}"
    return text.removeprefix(".")


def _shown_key(key: str | int) -> str:
    return f"item {key}" if isinstance(key, int) else f"{key[:80]!r}"


def _there_is(value: object) -> str:
    level = opened(value)
    if isinstance(level, dict):
        keys = [str(key) for key in level][: _KEYS_SHOWN_MAX + 1]
        more = " …" if len(keys) > _KEYS_SHOWN_MAX else ""
        return f"it has {', '.join(keys[:_KEYS_SHOWN_MAX])}{more}" if keys else "it is an empty mapping"
    if is_list(level):
        return f"it is a list of {len(level):,}"  # type: ignore[arg-type]
    return "it is neither a mapping nor a list"


# --- the rows of it --------------------------------------------------------------------------------------


def natural_rows(value: object) -> tuple[Path, object] | None:
    """The list that a value is or has, and where; None when it has none.  Raises Absent."""
    level = opened(value)
    if is_list(level):
        return (), level
    if not isinstance(level, dict):
        return None
    for key in NATURAL:
        # By the rules of templates: the body of an http result is searched too.
        found = find(value, key) if isinstance(value, View) else level.get(key, MISSING)
        if found is not MISSING and is_list(below := opened(found)):
            return (key,), below
    return None


def lists_in(value: object) -> list[str]:
    """The members of a value that are lists, for who must choose one.  Raises Absent."""
    level: Any = opened(value)
    if not isinstance(level, dict):
        return []
    return [str(key) for key, member in islice(level.items(), _KEYS_SHOWN_MAX) if is_list(opened(member))]
