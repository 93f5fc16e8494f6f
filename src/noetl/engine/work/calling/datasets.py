"""Datasets of one command: on their way into a store, and on their way to a tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from noetl.core import limits
from noetl.core.codec import canonical_bytes
from noetl.core.dataset import MEDIA_DATASET
from noetl.core.errors import EnvelopeInvalid, Failure, ToolFailed
from noetl.core.locator import payload_locator
from noetl.core.reference import Reference, reference_from_json
from noetl.engine.payloads import Payloads
from noetl.engine.work.calling.redact import Redactor
from noetl.ports.data.datasets import Datasets, LandedDataset, LocalDataset
from noetl.ports.data.tables import OpenTable


class CallDatasets:
    """The sink that a tool is given: it keeps for one owner and knows no other, and it keeps no dataset in which there
    is a secret that the redactor has seen."""

    def __init__(self, payloads: Payloads, *, tenant_id: str, organization_id: str, redactor: Redactor) -> None:
        self._payloads = payloads
        self._redactor = redactor
        self._owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        self._kept: tuple[LandedDataset, Reference] | None = None

    async def keep(self, landed: LandedDataset) -> dict[str, object]:
        """Raises Transient while the store is away, and may be asked again then with the same dataset."""
        if self._kept is None or self._kept[0] is not landed:
            finds = self._redactor.finds if self._redactor.has_learnt else None
            # Its files belong to the store from here on: a store that is away before the rows are measured must not
            # have them looked for again.
            self._kept = landed, await self._datasets().keep(landed, finds=finds, **self._owner)
        return (await self._measured(self._kept[1])).to_json()

    async def laid_out(self, reference: Mapping[str, object], folder: Path) -> LocalDataset:
        found = self._checked(reference)
        self._payloads.used.opened(found.sha256)
        return await self._datasets().laid_out(found, folder, **self._owner)

    def _datasets(self) -> Datasets:
        datasets = self._payloads.datasets
        if datasets is None:
            message = "this worker has no store for datasets"
            raise ToolFailed(Failure(kind="storage_access", code="NO_STORE", message=message))
        return datasets

    def _checked(self, document: Mapping[str, object]) -> Reference:
        try:
            reference = reference_from_json(dict(document))
        except EnvelopeInvalid as error:
            raise ToolFailed(Failure(kind="config", message=f"this is no reference: {error}")) from error
        if reference.media_type != MEDIA_DATASET:
            raise ToolFailed(Failure(kind="config", message=f"{reference.uri} is no dataset"))
        uri = payload_locator(self._owner["tenant_id"], self._owner["organization_id"], reference.sha256)
        if reference.uri != uri:
            message = f"{reference.uri} is no payload of this tenant and organization"
            raise ToolFailed(Failure(kind="missing_reference", message=message))
        return reference

    async def _measured(self, reference: Reference) -> Reference:
        """Whether a result counts as external depends on its size as JSON (dsl §8.5), which only its JSON tells; of
        many rows it is enough to know that they are many."""
        tables = self._payloads.tables
        if tables is None or (reference.plain_bytes or 0) >= limits.TABLE_MEASURED_BYTES_MAX:
            return reference
        table = await tables.open(reference, **self._owner)
        try:
            size = await table.looked(_json_bytes, table)
        finally:
            table.close()
        return replace(reference, plain_bytes=size)


def _json_bytes(table: OpenTable) -> int:
    """A few rows at a time: values that compress well may be much larger than they seemed."""
    size, first = len("[]"), 0
    while first < table.row_count:
        rows = table.rows(first, limits.TABLE_WINDOW_ROWS)
        size += len(canonical_bytes(rows)) - len("[]") + (len(",") if first else 0)
        first += len(rows)
        if size >= limits.TABLE_MEASURED_BYTES_MAX:
            break
    return size
