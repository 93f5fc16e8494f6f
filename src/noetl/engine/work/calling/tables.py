"""Tables of one command: on their way into a store, and on their way to a tool."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from noetl.core import limits
from noetl.core.codec import canonical_bytes
from noetl.core.errors import Failure, ToolFailed
from noetl.core.reference import MEDIA_ARROW, STORE_SMALL, Payload, Reference, address
from noetl.engine.payloads import Payloads
from noetl.engine.stored.tables import open_table
from noetl.engine.work.calling.redact import Redactor
from noetl.ports.data.tables import EncodedTable, LandingPlace, OpenTable


class CallTables:
    """The sink that a tool is given.  A small table waits here for the fact of its command, a large one is durable when
    `keep` returns; no secret that the redactor has seen is in either.  Without `is_shared` nothing goes into shared
    memory."""

    def __init__(
        self, payloads: Payloads, *, tenant_id: str, organization_id: str, redactor: Redactor, is_shared: bool = True
    ) -> None:
        self._payloads = payloads
        self._is_shared = is_shared
        self._redactor = redactor
        self._owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        self._waiting: list[Payload] = []
        self._carried = 0

    async def keep(self, source: object) -> dict[str, object]:
        tables = self._payloads.tables
        if tables is None:
            message = "this worker has no store for tables"
            raise ToolFailed(Failure(kind="storage_access", code="NO_STORE", message=message))
        scrub = self._redactor.scrub if self._redactor.has_learnt else None
        bytes_max = self._payloads.small_bytes_max
        kept = await tables.keep_unless_small(
            source, scrub=scrub, bytes_max=bytes_max, is_shared=self._is_shared, **self._owner
        )
        if isinstance(kept, Reference):
            return kept.to_json()
        payload = await self._addressed(kept)
        self._carried += len(payload.content)
        if self._carried <= limits.COLLECTION_CARRIED_BYTES_MAX:
            self._waiting.append(payload)
        else:
            await self._payloads.store(payload)
        self._payloads.remember(payload)
        return payload.reference.to_json()

    async def landing_place(self) -> LandingPlace | None:
        tables = self._payloads.tables
        return None if tables is None or not self._is_shared else await tables.landing_place()

    async def _addressed(self, table: EncodedTable) -> Payload:
        payload = address(table.content, media_type=MEDIA_ARROW, store=STORE_SMALL, **self._owner)
        facts = table.facts
        reference = replace(
            payload.reference,
            row_count=facts.row_count,
            schema_digest=facts.schema_digest,
            compression=facts.compression,
            plain_bytes=facts.raw_bytes,
        )
        tables = self._payloads.tables
        assert tables is not None
        if table.plain_bytes is not None:
            reference = replace(reference, plain_bytes=table.plain_bytes)
        elif facts.raw_bytes < limits.TABLE_MEASURED_BYTES_MAX:
            # Whether a result counts as external depends on its size as JSON (dsl §8.5), which only its JSON tells.
            opened = await tables.open_bytes(table.content, reference)
            size = await asyncio.to_thread(_json_bytes, opened)
            reference = replace(reference, plain_bytes=size)
        return replace(payload, reference=reference)

    def take(self) -> list[Payload]:
        """The small tables that travel with the next fact."""
        waiting, self._waiting, self._carried = self._waiting, [], 0
        return waiting


def _json_bytes(table: OpenTable) -> int:
    try:
        return len(canonical_bytes(table.rows(0, table.row_count)))
    finally:
        table.close()


class GivenTable:
    """A table in the input of a call."""

    def __init__(self, payloads: Payloads, reference: Mapping[str, Any], **owner: str) -> None:
        self._payloads = payloads
        self._owner = owner
        self.reference = reference

    async def open(self) -> OpenTable:
        return await open_table(self._payloads, self.reference, **self._owner)
