"""Every row of the control plane that may name a payload.

A table of the schema `noetl` is read here, or a test says why none of its columns can name one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.statements import query
from noetl.ports.data.collection import Owner, RootText

ROWS = 500


@dataclass(frozen=True, slots=True)
class Source:
    """A query in `collection.sql`, the key that orders it, and a key in front of all rows."""

    name: str
    first: dict[str, int | str]


SOURCES = (
    # First what may be removed while we read and whose facts go to the ledger with its removal.
    Source("commands", {"execution_id": -1, "command_id": ""}),
    Source("catalog", {"catalog_id": -1}),
    Source("idempotency", {"tenant_id": "", "organization_id": "", "idempotency_key": ""}),
    Source("executions", {"execution_id": -1}),
    Source("logs", {"execution_id": -1, "log_id": -1}),
    Source("events", {"execution_id": -1, "position": -1}),
)


class PostgresRoots:
    def __init__(self, reader: Reader, sources: Sequence[Source] = SOURCES) -> None:
        self._reader = reader
        self._sources = sources

    async def pages(self) -> AsyncIterator[Sequence[RootText]]:
        """Each page is a statement of its own: no snapshot is held while payloads are read."""
        for source in self._sources:
            statement = query("collection.sql", source.name)
            key = dict(source.first)
            while True:
                rows = await self._reader.fetch(statement, rows=ROWS, **key)
                if not rows:
                    break
                key = {name: rows[-1][name] for name in key}
                texts: dict[Owner, list[str]] = {}
                for row in rows:
                    texts.setdefault(Owner(row["tenant_id"], row["organization_id"]), []).append(row["text"])
                yield [RootText(owner, "\n".join(found).encode()) for owner, found in texts.items()]
