"""Rows in columns, read while templates look at them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core import limits
from noetl.core.errors import PayloadMissing
from noetl.core.expression import Absent
from noetl.core.reference import STORE_SMALL, reference_from_json
from noetl.engine.payloads import Payloads
from noetl.ports.data.tables import OpenTable


async def open_table(payloads: Payloads, document: Mapping[str, Any], **owner: str) -> OpenTable:
    """The table behind a recorded reference, to be closed by the caller.  A small one lies beside the ledger, perhaps
    in a commit that is on its way."""
    reference = reference_from_json(document)
    if payloads.tables is None:
        raise PayloadMissing(f"{reference.uri} is a table, and this process cannot read tables")
    if reference.store == STORE_SMALL:
        return await payloads.tables.open_bytes(await payloads.read_bytes(reference, **owner), reference)
    return await payloads.tables.open(reference, **owner)


class StoredRows:
    """The rows of one table of a command.

    What was read stays for as long as the command: a look at several places must find all of them here."""

    def __init__(self, payloads: Payloads, reference: Mapping[str, Any], **owner: str) -> None:
        self._payloads = payloads
        self._reference = reference
        self._owner = owner
        self._windows: list[tuple[int, list[Any]]] = []
        self._wanted = (0, 0)

    def rows(self, first: int, count: int) -> list[Any]:
        for start, rows in self._windows:
            if start <= first and first + count <= start + len(rows):
                return rows if count == len(rows) else rows[first - start : first - start + count]
        self._wanted = (first, count)
        raise Absent(self)

    async def fetch(self) -> None:
        first, count = self._wanted
        total = int(self._reference["row_count"])
        # A few more than were asked for: who looks at one row mostly looks at the next one too.
        count = min(max(count, limits.TABLE_WINDOW_ROWS), total - first)
        table = await open_table(self._payloads, self._reference, **self._owner)
        try:
            rows = await table.looked(table.rows, first, count)
        finally:
            table.close()
        if count == total:
            self._windows = []
        self._windows.append((first, rows))
