"""The tables port over any store of large payloads.

`keep` makes a table durable and hands back its reference; `open` finds the nearest copy.  A caller that keeps small
payloads elsewhere uses `encode` for a table that is known to be small, or `keep_unless_small`, which hands back the
bytes of one that turns out to be small instead of storing them; later it uses `open_bytes` with what it has read.

A child process may write its rows straight into a file at the `landing_place`: in shared memory the file becomes the
segment without being copied.

Everything that an open table does may read files or wait for the store: call it by way of its `looked`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from noetl.adapters.arrow.codec import COMPRESSION
from noetl.adapters.arrow.counters import TableCounters
from noetl.adapters.arrow.datasets.reading import DatasetReading
from noetl.adapters.arrow.keeping.encoding import Encoding
from noetl.adapters.arrow.keeping.kept import Keeping
from noetl.adapters.arrow.keeping.tiny import encoded_now, is_tiny
from noetl.adapters.arrow.opening.durable import DurableTables, Spill, decoded_or_spilled
from noetl.adapters.arrow.opening.memory import HeldTables, Key
from noetl.adapters.arrow.opening.opened import Content, OpenedTable, TableContent
from noetl.adapters.arrow.segments.header import HEADER_BYTES
from noetl.adapters.arrow.segments.shared import Segments, payload_key
from noetl.adapters.arrow.segments.spill import Spilled, Spilling
from noetl.adapters.arrow.segments.writer import SegmentIdentity
from noetl.adapters.arrow.threads import in_thread
from noetl.core.dataset import MEDIA_DATASET
from noetl.core.limits import PAYLOAD_INLINE_BYTES_MAX, TABLE_WHOLE_BYTES_MAX
from noetl.core.reference import MEDIA_ARROW, MEDIA_INDEX, Reference, address
from noetl.ports.data.counters import Sample
from noetl.ports.data.payloads import LargePayloadStore
from noetl.ports.data.tables import EncodedTable, LandingPlace, Scrub

TIER1_BYTES_DEFAULT = 128 * 1024 * 1024
SWEEP_MARGIN_SECONDS = 1.0
SMALL_BYTES_MAX = 4 * 1024
"""Durable bytes that are decoded without a thread."""


class ArrowTables:
    """Keeps and opens the tables of one process.  Without `segments` the shared tier is off."""

    def __init__(
        self,
        store: LargePayloadStore,
        *,
        segments: Segments | None = None,
        spill: Path | None = None,
        memory_bytes: int = TIER1_BYTES_DEFAULT,
    ) -> None:
        self.counters = segments.counters if segments is not None else TableCounters()
        self._held = HeldTables(memory_bytes)
        self._store = store
        self._segments = segments
        self._spilling = Spilling(spill, segments)
        self._durable = DurableTables(store=store, incoming=self._spilling.incoming)
        self._datasets = DatasetReading(store, self._durable)
        self._turns: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._is_sweep_due = False

    # --- keeping -------------------------------------------------------------------------------------------

    async def keep(
        self, source: object, *, tenant_id: str, organization_id: str, scrub: Scrub | None = None
    ) -> Reference:
        kept = await self.keep_unless_small(
            source, bytes_max=-1, tenant_id=tenant_id, organization_id=organization_id, scrub=scrub
        )
        assert isinstance(kept, Reference)
        return kept

    async def keep_unless_small(
        self,
        source: object,
        *,
        tenant_id: str,
        organization_id: str,
        scrub: Scrub | None = None,
        bytes_max: int = PAYLOAD_INLINE_BYTES_MAX,
        is_shared: bool = True,
    ) -> Reference | EncodedTable:
        """Keep a table as `keep` does; one whose durable bytes are at most so many is handed back instead."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        if bytes_max >= 0 and is_tiny(source):
            tiny = encoded_now(source, scrub)
            if len(tiny.content) <= bytes_max:
                return tiny
        async with Keeping(source, scrub=scrub, segments=self._segments if is_shared else None) as keeping:
            head = await keeping.head(bytes_max)
            if len(head) <= bytes_max:
                return EncodedTable(content=head, facts=keeping.encoding.facts())
            found = await self._store.put_stream(keeping.joined(head), media_type=MEDIA_ARROW, **owner)
            reference = await self._indexed(_described(found, keeping.encoding), keeping.encoding, **owner)
            shared = await asyncio.to_thread(self._shared, reference, keeping, **owner)
            if shared.ipc is not None:
                self._sweep_later()
            return shared

    async def encode(self, source: object, *, scrub: Scrub | None = None) -> EncodedTable:
        """The durable bytes of a table, held in memory."""
        async with Keeping(source, scrub=scrub, segments=None) as keeping:
            content = b"".join([chunk async for chunk in keeping.chunks])
            return EncodedTable(content=content, facts=keeping.encoding.facts())

    async def landing_place(self) -> LandingPlace | None:
        room = 0 if self._segments is None else await asyncio.to_thread(self._segments.room_bytes)
        if self._segments is None or room <= HEADER_BYTES:
            return None
        folder = self._segments.folder
        return LandingPlace(folder=folder.root, prefix=folder.new_prefix, offset=HEADER_BYTES, bytes_max=room)

    async def _indexed(self, reference: Reference, encoding: Encoding, **owner: str) -> Reference:
        content = encoding.index() if reference.bytes > TABLE_WHOLE_BYTES_MAX else None
        if content is None:
            return reference
        index = address(content, media_type=MEDIA_INDEX, store=reference.store, **owner)
        await self._store.put(index)
        return replace(reference, index={"sha256": index.reference.sha256, "bytes": len(content)})

    def _shared(self, reference: Reference, keeping: Keeping, **owner: str) -> Reference:
        """The durable copy is there; now the one that others on this machine find without copying."""
        assert reference.schema_digest is not None
        assert reference.row_count is not None
        identity = SegmentIdentity(
            key=payload_key(**owner, sha256=reference.sha256),
            sha256=reference.sha256,
            schema_digest=reference.schema_digest,
            row_count=reference.row_count,
        )
        published = keeping.publish(identity)
        if published is None or self._segments is None:
            return reference
        return replace(reference, ipc=self._segments.hint(reference.sha256, published))

    def samples(self) -> Iterator[Sample]:
        """What was counted, and how full the shared tier is."""
        yield from self.counters.samples()
        if self._segments is not None:
            yield "noetl_storage_ipc_bytes_in_use", {}, self._segments.folder.bytes_in_use()
            yield "noetl_storage_ipc_budget_bytes", {}, self._segments.folder.budget_bytes

    # --- opening -------------------------------------------------------------------------------------------

    async def open(self, reference: Reference, *, tenant_id: str, organization_id: str) -> OpenedTable:
        started = time.monotonic()
        held_key = (tenant_id, organization_id, reference.sha256)
        key = payload_key(*held_key)
        # One after the other: the second one finds what the first one has fetched.
        async with self._turns.setdefault(held_key, asyncio.Lock()):
            tier, content = "memory", self._held.get(held_key)
            if content is None:
                found = await in_thread(self._nearby, reference, key)
                if found is None:
                    found = "durable", await self._from_store(reference, key, tenant_id, organization_id)
                tier, content = found
                self._held.add(held_key, content)
        self.counters.resolved(tier, time.monotonic() - started)
        return self._table(content, tier=tier, key=key, reference=reference, held_key=held_key)

    async def open_bytes(self, content: bytes, reference: Reference) -> OpenedTable:
        """A table whose durable bytes the caller has, and has verified."""
        key = payload_key(reference.uri, "", reference.sha256)
        spill = self._spill(key, reference)
        # Most of them are smaller than the way to a thread and back is long.
        is_small = len(content) <= SMALL_BYTES_MAX
        found = (
            decoded_or_spilled(content, reference, spill)
            if is_small
            else await in_thread(decoded_or_spilled, content, reference, spill)
        )
        return self._table(found, tier="durable", key=key, reference=reference)

    async def _from_store(self, reference: Reference, key: str, tenant_id: str, organization_id: str) -> Content:
        if reference.media_type == MEDIA_DATASET:
            return await self._datasets.read(reference, tenant_id=tenant_id, organization_id=organization_id)
        self.counters.durable_fallback_reads += 1
        return await self._durable.read(
            reference, spill=self._spill(key, reference), tenant_id=tenant_id, organization_id=organization_id
        )

    def _nearby(self, reference: Reference, key: str) -> tuple[str, Content] | None:
        """A copy on this machine.  One that is damaged counts as none."""
        content = self._segments.find(reference, key) if self._segments is not None else None
        if content is not None:
            return "ipc", content
        content = self._spilling.find(reference, key)
        return None if content is None else ("disk", content)

    def _table(
        self, content: Content, *, tier: str, key: str, reference: Reference, held_key: Key | None = None
    ) -> OpenedTable:
        def mapped(unmapped: Content) -> Content:
            found = self._spill(key, reference)(unmapped.schema, lambda: unmapped.each(None, 0, unmapped.row_count))
            if held_key is not None:
                self._held.add(held_key, found)  # the next one that asks needs no file of its own
            return found

        return OpenedTable(content, tier=tier, spill=mapped)

    def _spill(self, key: str, reference: Reference) -> Spill:
        def spill(schema: Any, batches: Callable[[], Iterator[Any]]) -> TableContent:
            return self._spilling.spill(Spilled(key=key, reference=reference, schema=schema, batches=batches))

        return spill

    # --- keeping house -------------------------------------------------------------------------------------

    def _sweep_later(self) -> None:
        """When the lease of what was published now has ended, whether or not anything else happens until then."""
        if self._segments is None or self._is_sweep_due:
            return
        self._is_sweep_due = True
        loop = asyncio.get_running_loop()
        delay = self._segments.lease_seconds + self._segments.folder.grace_seconds + SWEEP_MARGIN_SECONDS
        loop.call_later(delay, lambda: loop.run_in_executor(None, self._sweep_now, loop))

    def _sweep_now(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_sweep_due = False
        self.sweep()
        if self._segments is not None and self._segments.folder.has_own():
            # What was published meanwhile.
            loop.call_soon_threadsafe(self._sweep_later)

    def sweep(self) -> int:
        """Let go of what is over, in this process and on this node; how many files that were.  For a thread."""
        self._held.forget_expired(time.time_ns() // 1000)
        return self._segments.folder.sweep() if self._segments is not None else 0


def _described(reference: Reference, encoding: Encoding) -> Reference:
    facts = encoding.facts()
    return replace(
        reference,
        row_count=facts.row_count,
        schema_digest=facts.schema_digest,
        compression=COMPRESSION,
        plain_bytes=facts.raw_bytes,
    )
