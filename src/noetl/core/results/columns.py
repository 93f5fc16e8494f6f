"""Columns of rows that are plain data: their names and one type for each, or exactly what is in the way.

A list of mappings has the keys of all of them as columns, in the order in which they appear; what a row does not have
is null.  A list of anything else has one column, `value`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from noetl.core.errors import ResultNotTabular
from noetl.core.limits import RESULT_COLUMNS_MAX, RESULT_TYPE_DEPTH_MAX

SINGLE = "value"
"""The only column of rows that are no mappings."""
_EXACT_IN_FLOATS = 2**53
_HINT = "ask for json or ndjson, which take anything, or for other columns"


class Kind(StrEnum):
    NULL = "nothing but null"
    BOOLEAN = "a boolean"
    INTEGER = "a whole number"
    UNSIGNED = "a whole number from 2^63 on"
    FLOAT = "a number"
    TEXT = "text"
    LIST = "a list"
    MAPPING = "a mapping"
    MIXED = "of several types"
    """Only where columns are texts anyway."""


@dataclass(slots=True)
class ColumnType:
    """What is known of a column so far."""

    kind: Kind = Kind.NULL
    low: int = 0
    high: int = 0
    item: ColumnType | None = None
    members: dict[str, ColumnType] = field(default_factory=dict)

    def settled(self, where: str) -> ColumnType:
        """The type at the end of all rows.  Raises ResultNotTabular."""
        if self.kind is Kind.INTEGER and self.high >= 2**63:
            if self.low < 0 or self.high >= 2**64:
                raise ResultNotTabular(f"{where} has whole numbers that no column of 64 bits holds: {_HINT}")
            return ColumnType(Kind.UNSIGNED)
        if self.kind is Kind.INTEGER and self.low < -(2**63):
            raise ResultNotTabular(f"{where} has whole numbers that no column of 64 bits holds: {_HINT}")
        if self.kind is Kind.FLOAT and max(-self.low, self.high) > _EXACT_IN_FLOATS:
            raise ResultNotTabular(
                f"{where} has fractions beside whole numbers above 2^53, which no float holds exactly: {_HINT}"
            )
        item = None if self.item is None else self.item.settled(f"{where}[]")
        members = {name: member.settled(f"{where}.{name}") for name, member in self.members.items()}
        return ColumnType(self.kind, item=item, members=members)

    def add(self, value: object, where: str, row: int, depth: int = 0) -> None:
        """Raises ResultNotTabular when a value does not go with those before it."""
        if value is None or self.kind is Kind.MIXED:
            return
        kind = _kind(value)
        if kind is not self.kind:
            self._become(kind, where, row)
        if type(value) is int:
            self.low, self.high = min(self.low, value), max(self.high, value)
        elif isinstance(value, list):
            self._add_items(value, where, row, depth)
        elif isinstance(value, dict):
            self._add_members(value, where, row, depth)

    def _become(self, kind: Kind, where: str, row: int) -> None:
        numbers = (Kind.INTEGER, Kind.FLOAT)
        if self.kind is Kind.NULL:
            self.kind = kind
        elif self.kind in numbers and kind in numbers:
            self.kind = Kind.FLOAT
        else:
            raise ResultNotTabular(f"{where} is {kind} in row {row:,} and {self.kind} in a row before it: {_HINT}")

    def _add_items(self, items: list[object], where: str, row: int, depth: int) -> None:
        _check_depth(depth, where)
        if self.item is None:
            self.item = ColumnType()
        for item in items:
            self.item.add(item, f"{where}[]", row, depth + 1)

    def _add_members(self, members: Mapping[str, object], where: str, row: int, depth: int) -> None:
        _check_depth(depth, where)
        for name, member in members.items():
            known = self.members.get(name)
            if known is None:
                if len(self.members) >= RESULT_COLUMNS_MAX:
                    raise ResultNotTabular(f"{where} has more than {RESULT_COLUMNS_MAX:,} members: {_HINT}")
                known = self.members[name] = ColumnType()
            known.add(member, f"{where}.{name}", row, depth + 1)


class Columns:
    """Looks at rows in their order, and says at the end what columns they have."""

    def __init__(self, chosen: Iterable[str] | None = None, *, are_texts: bool = False) -> None:
        """`chosen` are the only columns that are wanted, in this order.  `are_texts` says that it does no harm when the
        values of a column have no type in common."""
        self._are_texts = are_texts
        self._chosen = None if chosen is None else tuple(chosen)
        self._types = {name: ColumnType() for name in self._chosen or ()}
        self._is_keyed: bool | None = None if self._chosen is None else True
        self._row = 0

    def add(self, rows: Iterable[object]) -> None:
        """Raises ResultNotTabular."""
        for row in rows:
            self._add(row)
            self._row += 1

    def names(self) -> list[str]:
        return list(self._types)

    @property
    def is_keyed(self) -> bool:
        """Whether the rows are mappings."""
        return self._is_keyed is not False

    def types(self) -> dict[str, ColumnType]:
        """Raises ResultNotTabular."""
        return {name: self._settled(name, one) for name, one in self._types.items()}

    def _settled(self, name: str, one: ColumnType) -> ColumnType:
        try:
            return one.settled(_column(name))
        except ResultNotTabular:
            if not self._are_texts:
                raise
            return ColumnType(Kind.MIXED)

    def _add(self, row: object) -> None:
        if row is None and self._is_keyed is not False:
            return  # of a loop: an item that never ran
        is_keyed = isinstance(row, dict)
        if self._is_keyed is None:
            self._is_keyed = is_keyed
        elif self._is_keyed is not is_keyed and row is not None:
            others = "those before it are mappings" if self._is_keyed else "those before it are not"
            raise ResultNotTabular(f"row {self._row:,} is {_kind(row)}, and {others}: {_HINT}")
        members = row if isinstance(row, dict) else {SINGLE: row}
        for name, value in members.items():
            known = self._types.get(name)
            if known is None:
                if self._chosen is not None:
                    continue
                if len(self._types) >= RESULT_COLUMNS_MAX:
                    raise ResultNotTabular(f"the rows have more than {RESULT_COLUMNS_MAX:,} columns: {_HINT}")
                known = self._types[name] = ColumnType()
            try:
                known.add(value, _column(name), self._row)
            except ResultNotTabular:
                if not self._are_texts:
                    raise
                self._types[name] = ColumnType(Kind.MIXED)


def _column(name: str) -> str:
    return f"column {name[:80]!r}"


def _check_depth(depth: int, where: str) -> None:
    if depth >= RESULT_TYPE_DEPTH_MAX:
        raise ResultNotTabular(f"{where[:200]} is nested more than {RESULT_TYPE_DEPTH_MAX} levels deep: {_HINT}")


_KINDS: dict[type, Kind] = {
    bool: Kind.BOOLEAN,
    int: Kind.INTEGER,
    float: Kind.FLOAT,
    str: Kind.TEXT,
    list: Kind.LIST,
    dict: Kind.MAPPING,
    type(None): Kind.NULL,
}


def _kind(value: object) -> Kind:
    return _KINDS[type(value)]
