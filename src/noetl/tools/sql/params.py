"""Placeholders of a statement become `$n`, and their values stand in that order.  Pure.

Ways to write a placeholder: `$1` and `%s` (a list), `%(name)s` and `:name` (a mapping), and for databases that have no
operators of these letters also `?` (a list) and `$name` (a mapping).  Nothing inside strings, quoted names and comments
is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from noetl.tools.sql.split import WITH_PLACEHOLDERS, Find, tokens

_KINDS = ("colon", "percent", "named", "question")


class ParamsInvalid(ValueError):
    """Statement and `params` do not fit together; the text says how."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A statement with `$1`…`$n` and its values."""

    text: str
    values: tuple[object, ...] = ()


def bind(text: str, params: object, find: Find = WITH_PLACEHOLDERS) -> Bound:
    """The statement with `$1`…`$n` and their values in order; `find` knows the placeholders of the database.  Raises
    ParamsInvalid."""
    if isinstance(params, Mapping):
        return _bind_mapping(text, params, find)
    if isinstance(params, list | tuple):
        return _bind_list(text, params, find)
    raise ParamsInvalid(f"params must be a list or a mapping, not {type(params).__name__}")


def _bind_list(text: str, params: Sequence[object], find: Find) -> Bound:
    numbers = [int(text[start + 1 : end]) for kind, start, end in tokens(text) if kind == "parameter"]
    if numbers:
        check_count(max(numbers), len(params), "$n")
        return Bound(text, tuple(params))
    count = 0

    def replace(placeholder: str) -> str | None:
        nonlocal count
        if placeholder not in ("%s", "?"):
            return None
        count += 1
        return f"${count}"

    bound = _replaced(text, replace, find)
    check_count(count, len(params), "%s")
    return Bound(bound, tuple(params))


def check_count(used: int, given: int, written: str) -> None:
    """Raises ParamsInvalid when placeholders and values are not equally many."""
    if used != given:
        raise ParamsInvalid(f"the statement has {used} placeholders ({written}), params has {given} values")


def _bind_mapping(text: str, params: Mapping[object, object], find: Find) -> Bound:
    order: dict[str, int] = {}

    def replace(placeholder: str) -> str | None:
        if placeholder in ("%s", "?"):
            raise ParamsInvalid(f"params is a mapping, so placeholders are %(name)s or :name, not {placeholder}")
        name = placeholder[2:-2] if placeholder[0] == "%" else placeholder[1:]
        if name not in params:
            raise ParamsInvalid(f"params has no value for {placeholder}")
        return f"${order.setdefault(name, len(order) + 1)}"

    bound = _replaced(text, replace, find)
    if not order and any(kind == "parameter" for kind, _, _ in tokens(text)):
        raise ParamsInvalid("params is a mapping, so placeholders are %(name)s or :name, not $n")
    return Bound(bound, tuple(params[name] for name in order))


def _replaced(text: str, replace: Callable[[str], str | None], find: Find) -> str:
    """The text with its placeholders replaced.  `%%` is a `%` only where `%` begins placeholders at all."""
    found = [(kind, start, end) for kind, start, end in tokens(text, find) if kind in _KINDS]
    has_percent = any(kind == "percent" and text[start:end] != "%%" for kind, start, end in found)
    pieces: list[str] = []
    seen = 0
    for _, start, end in found:
        placeholder = text[start:end]
        new = ("%" if has_percent else None) if placeholder == "%%" else replace(placeholder)
        if new is not None:
            pieces += (text[seen:start], new)
            seen = end
    return "".join((*pieces, text[seen:]))
