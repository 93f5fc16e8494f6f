"""Rows of DuckDB as Arrow with exact types.

What has no type of its own in Arrow becomes text or, for integers of 128 bits, a decimal; a value that does not fit
there is an error and never another value.  UUID and JSON travel as the types that Arrow has for them."""

from __future__ import annotations

from typing import Any

# DuckDB's name of a type → what it is cast to.
_CASTS = {
    "hugeint": "DECIMAL(38,0)",
    "uhugeint": "DECIMAL(38,0)",
    "bignum": "VARCHAR",
    "bit": "VARCHAR",
    "time with time zone": "VARCHAR",
    "time_ns": "VARCHAR",
    "enum": "VARCHAR",
    "union": "VARCHAR",
    "variant": "VARCHAR",
    "geometry": "VARCHAR",
}


def exportable(relation: Any) -> Any:
    """The relation with columns that Arrow can hold.  Of columns with the same name the last one stays."""
    last = {name: number for number, name in enumerate(relation.columns)}
    columns = [_column(number, name, relation.types[number]) for name, number in sorted(last.items(), key=_number)]
    is_same = len(last) == len(relation.columns) and all(not is_cast for _, is_cast in columns)
    return relation if is_same else relation.project(", ".join(text for text, _ in columns))


def _number(item: tuple[str, int]) -> int:
    return item[1]


def _column(number: int, name: str, type_: Any) -> tuple[str, bool]:
    target = _target(type_)
    value = f"#{number + 1}" if target is None else f"CAST(#{number + 1} AS {target})"
    return f"{value} AS {quoted(name)}", target is not None


def _target(type_: Any) -> str | None:
    """The type to cast to; None when Arrow has this one."""
    if type_.id in _CASTS:
        return _CASTS[type_.id]
    if type_.id not in ("list", "array", "struct", "map"):
        return None
    children = dict(type_.children)
    if not any(_target(child) for name, child in children.items() if type_.id != "array" or name == "child"):
        return None
    if type_.id == "list":
        return f"{_named(children['child'])}[]"
    if type_.id == "array":
        return f"{_named(children['child'])}[{children['size']}]"
    if type_.id == "map":
        return f"MAP({_named(children['key'])}, {_named(children['value'])})"
    return f"STRUCT({', '.join(f'{quoted(name)} {_named(child)}' for name, child in children.items())})"


def _named(type_: Any) -> str:
    return _target(type_) or str(type_)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
