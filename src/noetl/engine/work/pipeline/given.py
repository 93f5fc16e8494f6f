"""The input of a task as its tool is given it, and as templates see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from noetl.core.expression import bare
from noetl.core.expression.views import Path
from noetl.core.results.parts import Parted, Table, holds_parts, placed, split
from noetl.engine.payloads import Payloads
from noetl.engine.stored.sources import settled
from noetl.engine.work.calling.tables import GivenTable


@dataclass(slots=True)
class Given:
    """Plain data with null at the places of the tables in it, and these."""

    plain: dict[str, object]
    tables: Mapping[Path, GivenTable] = field(default_factory=dict)
    view: Parted | None = None

    @property
    def seen(self) -> object:
        """`input` of templates: with its tables as they would be without them."""
        return self.plain if self.view is None else self.view

    def names(self) -> dict[str, object]:
        """Each input by its name, for the templates of the task's other fields."""
        return self.plain if self.view is None else {name: self.view._find(name) for name in self.plain}


async def given_of(payloads: Payloads, value: object, **owner: str) -> Given:
    """Rows stay a table, anything else that is stored on its own is read."""
    if not holds_parts(value):
        return Given(dict(value) if isinstance(value, Mapping) else {})
    document, parts = split(value)
    tables = {place: part for place, part in parts.items() if isinstance(part, Table)}
    others = {place: part for place, part in parts.items() if place not in tables}
    plain = await settled(lambda: placed(document, {place: bare(part) for place, part in others.items()}))
    if not isinstance(plain, dict):
        return Given({})
    given = {place: GivenTable(payloads, table._reference, **owner) for place, table in tables.items()}
    return Given(plain, given, Parted(plain, tables) if tables else None)
