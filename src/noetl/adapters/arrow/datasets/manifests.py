"""Manifests out of a store."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from noetl.adapters.arrow.codec import DAMAGE, schema_digest
from noetl.adapters.arrow.soundness import check_schema
from noetl.adapters.arrow.stored.text import schema_from_text
from noetl.core.dataset import Manifest, manifest_from
from noetl.core.errors import EnvelopeInvalid, PayloadCorrupt
from noetl.core.reference import Reference
from noetl.ports.data.payloads import LargePayloadStore

MANIFESTS_HELD_MAX = 64


class Manifests:
    """Reads the manifests of datasets, and remembers those that were read lately."""

    def __init__(self, store: LargePayloadStore) -> None:
        self._store = store
        self._held: OrderedDict[tuple[str, str, str], Manifest] = OrderedDict()

    async def read(self, reference: Reference, *, tenant_id: str, organization_id: str) -> Manifest:
        """Raises PayloadMissing or PayloadCorrupt."""
        key = (tenant_id, organization_id, reference.sha256)
        found = self._held.get(key)
        if found is None:
            content = await self._store.get(reference, tenant_id=tenant_id, organization_id=organization_id)
            found = parsed(content, reference)
            self._held[key] = found
            while len(self._held) > MANIFESTS_HELD_MAX:
                self._held.popitem(last=False)
        self._held.move_to_end(key)
        return found


def parsed(content: bytes, reference: Reference) -> Manifest:
    """Raises PayloadCorrupt."""
    try:
        found = manifest_from(content)
    except EnvelopeInvalid as error:
        raise PayloadCorrupt(f"{reference.uri}: {error}") from error
    if reference.row_count not in (None, found.row_count):
        raise PayloadCorrupt(f"{reference.uri} has {found.row_count:,} rows and not {reference.row_count:,}")
    return found


def schema_of(manifest: Manifest, reference: Reference) -> Any:
    """The columns as readers see them.  Raises PayloadCorrupt."""
    try:
        schema = schema_from_text(manifest.arrow_schema)
        check_schema(schema)
    except (EnvelopeInvalid, *DAMAGE) as error:
        raise PayloadCorrupt(f"{reference.uri}: the manifest has no readable schema") from error
    if schema_digest(schema) != manifest.schema_digest or not set(manifest.partition_by) <= set(schema.names):
        raise PayloadCorrupt(f"{reference.uri}: the manifest contradicts itself about the columns")
    return schema
