"""Datasets that are opened as tables."""

from __future__ import annotations

from pathlib import Path

from noetl.adapters.arrow.datasets.content import DatasetContent
from noetl.adapters.arrow.datasets.files import PartFiles
from noetl.adapters.arrow.datasets.manifests import Manifests, schema_of
from noetl.adapters.arrow.opening.durable import DurableTables
from noetl.core.limits import DATASET_PARTS_HELD_MAX, TABLE_WHOLE_BYTES_MAX
from noetl.core.reference import Reference
from noetl.ports.data.payloads import LargePayloadStore


class DatasetReading:
    def __init__(self, store: LargePayloadStore, durable: DurableTables) -> None:
        self._store = store
        self._durable = durable
        self._manifests = Manifests(store)

    async def read(self, reference: Reference, *, tenant_id: str, organization_id: str) -> DatasetContent:
        """Raises PayloadMissing or PayloadCorrupt.  Of the parts nothing is read yet."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        manifest = await self._manifests.read(reference, **owner)
        schema = schema_of(manifest, reference)

        async def fetch(part: Reference) -> Path:
            return await self._durable.fetched(part, **owner)

        files = PartFiles(self._store, fetch=fetch, **owner)
        held = sorted((part.reference.bytes for part in manifest.parts), reverse=True)[:DATASET_PARTS_HELD_MAX]
        size = reference.bytes + sum(one for one in held if one <= TABLE_WHOLE_BYTES_MAX)
        return DatasetContent(manifest, schema, files, size=size)
