"""The datasets port over any store of large payloads.

Keeping comes in this order: everything is looked at, then all parts are made durable, then the manifest.  Whoever dies
on the way leaves parts that nothing names."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from noetl.adapters.arrow.codec import schema_digest
from noetl.adapters.arrow.datasets.checking import (
    PartCheck,
    checked_schema,
    has_schema,
    invalid,
    json_bytes_min,
    ordered,
)
from noetl.adapters.arrow.datasets.layout import Layout
from noetl.adapters.arrow.datasets.manifests import Manifests, schema_of
from noetl.adapters.arrow.stored.text import schema_text
from noetl.core.dataset import MEDIA_DATASET, MEDIA_PARQUET, DatasetPart, Manifest
from noetl.core.errors import Transient
from noetl.core.limits import DATASET_PARTS_AT_ONCE_MAX, DATASET_PARTS_MAX
from noetl.core.reference import Reference
from noetl.ports.data.datasets import Finds, LandedDataset, LandedPart, LocalDataset
from noetl.ports.data.payloads import AdoptsFiles, HasFiles, LargePayloadStore

AWAY_SECONDS = (0.1, 0.5, 2.0)
_READ_BYTES = 1024 * 1024
T = TypeVar("T")
R = TypeVar("R")
_Key = tuple[str, str, Path]


@dataclass(frozen=True, slots=True)
class _Taken:
    """A file that is the store's."""

    reference: Reference
    plain_bytes: int


def _key(part: LandedPart, owner: Mapping[str, str]) -> _Key:
    return owner["tenant_id"], owner["organization_id"], part.path


class ArrowDatasets:
    """Keeps and lays out datasets in a store."""

    def __init__(self, store: LargePayloadStore) -> None:
        self._store = store
        self._manifests = Manifests(store)
        # Files of datasets that were not kept to the end: who hands such a one over again has them no more.
        self._taken: OrderedDict[_Key, _Taken] = OrderedDict()

    async def keep(
        self, landed: LandedDataset, *, tenant_id: str, organization_id: str, finds: Finds | None = None
    ) -> Reference:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        schema = checked_schema(landed, finds)
        parts = ordered(landed)
        check = PartCheck(landed, schema, finds)

        async def checked(part: LandedPart) -> int:
            known = self._taken.get(_key(part, owner))
            return await asyncio.to_thread(check.plain_bytes, part) if known is None else known.plain_bytes

        sizes = await _together(parts, checked)

        async def stored(place: int) -> DatasetPart:
            part = parts[place]
            key = _key(part, owner)
            if key not in self._taken:
                try:
                    found = await self._stored(part.path, **owner)
                except FileNotFoundError as error:
                    raise invalid("a file that the job wrote is not there any more") from error
                self._note(key, _Taken(found, sizes[place]))
            reference = self._taken[key].reference
            return DatasetPart(reference=reference, row_count=part.row_count, partition=dict(part.partition))

        manifest = Manifest(
            arrow_schema=schema_text(schema),
            schema_digest=schema_digest(schema),
            row_count=sum(part.row_count for part in parts),
            partition_by=tuple(landed.partition_by),
            parts=tuple(await _together(range(len(parts)), stored)),
        )
        reference = await self._named(manifest, **owner)
        for part in parts:
            self._taken.pop(_key(part, owner), None)
        plain_bytes = json_bytes_min(schema, manifest.row_count, sizes)
        return replace(
            reference,
            row_count=manifest.row_count,
            schema_digest=manifest.schema_digest,
            plain_bytes=plain_bytes,
        )

    async def manifest(self, reference: Reference, *, tenant_id: str, organization_id: str) -> Manifest:
        return await self._manifests.read(reference, tenant_id=tenant_id, organization_id=organization_id)

    async def sole_part(self, reference: Reference, *, tenant_id: str, organization_id: str) -> Reference | None:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        manifest = await self._manifests.read(reference, **owner)
        if len(manifest.parts) != 1 or manifest.partition_by or not isinstance(self._store, HasFiles):
            return None
        (part,) = manifest.parts
        path = await self._store.file_of(part.reference, **owner)
        if path is None:
            return None
        schema = schema_of(manifest, reference)
        return part.reference if await asyncio.to_thread(has_schema, path, schema) else None

    async def laid_out(
        self, reference: Reference, folder: Path, *, tenant_id: str, organization_id: str
    ) -> LocalDataset:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        manifest = await self._manifests.read(reference, **owner)
        layout = Layout(self._store, folder, manifest, **owner)
        await asyncio.to_thread(layout.prepare)
        await _together(list(enumerate(manifest.parts)), lambda one: layout.place(*one))
        return LocalDataset(root=folder, manifest=manifest)

    def _note(self, key: _Key, taken: _Taken) -> None:
        self._taken[key] = taken
        while len(self._taken) > DATASET_PARTS_MAX:
            self._taken.popitem(last=False)

    async def _stored(self, path: Path, **owner: str) -> Reference:
        """A file as a payload; it is the store's then."""
        if isinstance(self._store, AdoptsFiles):
            adopts = self._store
            return await _patiently(lambda: adopts.put_file(path, media_type=MEDIA_PARQUET, **owner))
        found = await _patiently(lambda: self._store.put_stream(_chunks_of(path), media_type=MEDIA_PARQUET, **owner))
        await asyncio.to_thread(path.unlink, missing_ok=True)
        return found

    async def _named(self, manifest: Manifest, **owner: str) -> Reference:
        content = manifest.to_bytes()

        async def whole() -> AsyncIterator[bytes]:
            yield content

        return await _patiently(lambda: self._store.put_stream(whole(), media_type=MEDIA_DATASET, **owner))


async def _together(items: Sequence[T], call: Callable[[T], Awaitable[R]]) -> list[R]:
    """The results of calls, of which a few run at a time.  After the first failure no more are begun, and it is raised
    when all have ended: until then they use the files."""
    found: dict[int, R] = {}
    waiting = list(enumerate(items))[::-1]

    async def lane() -> None:
        while waiting:
            number, item = waiting.pop()
            is_done = False
            try:
                found[number] = await call(item)
                is_done = True
            finally:
                if not is_done:
                    waiting.clear()

    lanes = (lane() for _ in range(min(DATASET_PARTS_AT_ONCE_MAX, len(items))))
    for failure in await asyncio.gather(*lanes, return_exceptions=True):
        if failure is not None:
            raise failure
    return [found[number] for number in range(len(items))]


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """A store that is away for a moment is asked again: to run the whole job again would cost more."""
    for seconds in AWAY_SECONDS:
        try:
            return await ask()
        except Transient:
            await asyncio.sleep(seconds)
    return await ask()


async def _chunks_of(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    with file:
        while chunk := await asyncio.to_thread(file.read, _READ_BYTES):
            yield chunk
