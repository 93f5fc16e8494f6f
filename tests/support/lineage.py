"""Results as the database shows them, and as the ledger says that they must be."""

from __future__ import annotations

from typing import Any

from noetl.adapters.postgres.rows import event_of, iso
from noetl.core.codec import parse_json
from noetl.core.results.references import ResultRef, result_ref
from tests.support.databases import connected


async def stored_refs(address: str) -> dict[int, ResultRef]:
    """The rows of `noetl.result_ref`."""
    async with connected(address) as connection:
        rows = await connection.fetch("SELECT * FROM noetl.result_ref")
    return {row["ref_id"]: _ref(row) for row in rows}


async def derived_refs(address: str) -> dict[int, ResultRef]:
    """The same from the ledger alone."""
    async with connected(address) as connection:
        rows = await connection.fetch("SELECT * FROM noetl.event")
    found = (result_ref(event_of(row)) for row in rows)
    return {ref.ref_id: ref for ref in found if ref is not None}


async def must_be_rebuildable(address: str) -> dict[int, ResultRef]:
    """The results, which must be what the ledger gives, with every parent among them."""
    stored, derived = await stored_refs(address), await derived_refs(address)
    assert stored == derived
    parents = {ref.parent_ref_id for ref in stored.values()} - {None}
    assert parents <= stored.keys()
    return stored


def _ref(row: Any) -> ResultRef:
    values = {name: row[name] for name in ResultRef._fields}
    values["created_at"] = iso(row["created_at"])
    values["correlation"] = None if row["correlation"] is None else parse_json(row["correlation"])
    values["auth_reference"] = None if row["auth_reference"] is None else tuple(row["auth_reference"])
    return ResultRef(**values)
