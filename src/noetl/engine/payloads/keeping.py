"""Where a payload lives: small ones travel with the event's own statement, large ones are stored before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

from noetl.core import limits
from noetl.core.codec import canonical_bytes, ordered_bytes
from noetl.core.errors import Transient
from noetl.core.reference import MEDIA_INDEX, MEDIA_JSON, STORE_LARGE, STORE_SMALL, Payload, Reference, address
from noetl.core.results.index import IndexedJson, Node, index_document, is_indexable, seems_large
from noetl.engine.payloads.patience import Patient, PatientLarge, pause
from noetl.engine.payloads.reading import Cache, PayloadReading
from noetl.engine.stored.used import Used
from noetl.ports.data.datasets import Datasets
from noetl.ports.data.payloads import LargePayloadStore, PayloadStore
from noetl.ports.data.tables import Tables

__all__ = ["STORE_LARGE", "STORE_SMALL", "Payloads"]


async def _yielding(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces of a large value; between two of them others have their turn."""
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)


class Payloads(PayloadReading):
    """Addresses new payloads and reads old ones, with a small cache of parsed values in front."""

    def __init__(
        self,
        *,
        small: PayloadStore,
        large: LargePayloadStore,
        large_name: str | Callable[[], str] = STORE_LARGE,
        tables: Tables | None = None,
        datasets: Datasets | None = None,
        small_bytes_max: int | None = None,
    ) -> None:
        """`large` takes what is not small, and references to it carry `large_name`, which a worker may learn later
        than this.  It also reads what other stores took, as far as they are configured."""
        self.tables = tables
        self.datasets = datasets
        self._small_bytes_max = small_bytes_max
        self._small = small
        self._large = large
        self._name = large_name
        self._cache = Cache()
        self._is_patient = False
        self._announced: Callable[[], Awaitable[None]] | None = None
        self.used = Used(is_noting=False)

    def awaiting(self, announced: Callable[[], Awaitable[None]]) -> Payloads:
        """For a command that is prepared while its claim is being committed: the payloads that it reads may be in the
        same commit.  What is missing is asked for again when `announced` returns.  The cache is the same."""
        found = self._over(self._small, self._large)
        found._cache, found._is_patient, found._announced = self._cache, self._is_patient, announced
        found.used = Used()
        return found

    def patient(self) -> Payloads:
        """For a worker, whose command would otherwise fail: a store that is away for a while is asked again until it
        answers.  The cache is the same."""
        patient = self._over(Patient(self._small), PatientLarge(self._large))
        patient._cache = self._cache
        patient._is_patient = True
        return patient

    def _over(self, small: PayloadStore, large: LargePayloadStore) -> Payloads:
        return Payloads(
            small=small,
            large=large,
            large_name=self._name,
            tables=self.tables,
            datasets=self.datasets,
            small_bytes_max=self._small_bytes_max,
        )

    @property
    def small_bytes_max(self) -> int:
        """How many bytes a payload has at most that lies beside the ledger."""
        return limits.PAYLOAD_INLINE_BYTES_MAX if self._small_bytes_max is None else self._small_bytes_max

    @property
    def large_name(self) -> str:
        """The store that takes what is not small."""
        return self._name if isinstance(self._name, str) else self._name()

    # --- keeping -------------------------------------------------------------------------------------------

    async def keep_json(
        self, value: object, *, tenant_id: str, organization_id: str, media_type: str = MEDIA_JSON
    ) -> Payload:
        """Address a value, keys in their order.  A large one is stored piece by piece with an index of its parts: it is
        durable when this returns, and the payload has its reference but not its bytes."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        content = b"" if seems_large(value) else ordered_bytes(value)
        if (not content or len(content) > limits.INDEX_PART_BYTES) and is_indexable(value):
            payload = await self._keep_indexed(value, media_type=media_type, **owner)
        else:
            payload = await self.keep(content or ordered_bytes(value), media_type=media_type, **owner)
        if payload.reference.index is None:
            # A command may be prepared while the commit that makes its payloads readable is on its way.
            self._cache.keep((tenant_id, organization_id, payload.reference.sha256), payload.reference.bytes, value)
        return payload

    async def _keep_indexed(self, value: Any, *, media_type: str, tenant_id: str, organization_id: str) -> Payload:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        start: list[bytes] = []
        pieces = IndexedJson(value).pieces()
        for piece in pieces:
            start.append(piece)
            if sum(map(len, start)) > limits.INDEX_PART_BYTES:
                break
        else:
            return await self.keep(b"".join(start), media_type=media_type, **owner)
        while True:
            writer = IndexedJson(value)
            try:
                found = await self.keep_indexed(
                    _yielding(writer.pieces()), index=writer.made, media_type=media_type, **owner
                )
                return Payload(found, b"", tenant_id, organization_id)
            except Transient as error:
                if not self._is_patient:
                    raise
                await pause(error)

    async def keep_indexed(
        self,
        chunks: AsyncIterator[bytes],
        *,
        index: Callable[[], Node],
        tenant_id: str,
        organization_id: str,
        media_type: str = MEDIA_JSON,
    ) -> Reference:
        """Store the bytes of a JSON document, and behind them the index of its parts.  Both are durable when this
        returns."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        found = await self.keep_stream(chunks, media_type=media_type, **owner)
        root = index()
        content = canonical_bytes(index_document(root))
        payload = address(content, media_type=MEDIA_INDEX, store=found.store, **owner)
        await self._large.put(payload)
        self._cache.keep((tenant_id, organization_id, f"index/{found.sha256}"), len(content), root)
        named = {"sha256": payload.reference.sha256, "bytes": len(content)}
        return replace(found, index=named)

    async def keep(
        self,
        content: bytes,
        *,
        tenant_id: str,
        organization_id: str,
        media_type: str,
    ) -> Payload:
        """Address bytes.  A large payload is durable when this returns; a small one must travel with its event."""
        store = STORE_SMALL if len(content) <= self.small_bytes_max else self.large_name
        payload = address(
            content, media_type=media_type, store=store, tenant_id=tenant_id, organization_id=organization_id
        )
        if store != STORE_SMALL:
            await self._large.put(payload)
        return payload

    async def keep_stream(
        self, chunks: AsyncIterator[bytes], *, tenant_id: str, organization_id: str, media_type: str
    ) -> Reference:
        """Store bytes as they arrive.  They are durable when this returns, however few they were."""
        reference = await self._large.put_stream(
            chunks, media_type=media_type, tenant_id=tenant_id, organization_id=organization_id
        )
        return replace(reference, store=self.large_name)

    async def store(self, payload: Payload) -> None:
        """Make a payload durable that travels with no event.  Storing it again changes nothing."""
        if payload.reference.store == STORE_SMALL:
            await self._small.put(payload)
        elif payload.reference.index is None:
            # One with an index was stored when it was addressed, piece by piece.
            await self._large.put(payload)
