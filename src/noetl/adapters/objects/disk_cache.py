"""Tier 2: payloads of a remote store on this machine's disk, for reading them again.

Never the only copy: bytes are durable before they come here, and whatever is wrong here (a full disk, a torn file, a
flipped bit) is a miss and nothing more.  Entries are sealed chunk by chunk, so that a part of one can be trusted
without reading all of it; tenant and organization are in their path and in their seal.  Several processes may share a
folder: the time of a file says when it was last used, and that is all they have to agree on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from noetl.adapters.objects.blobs import Owner, Place, Seal
from noetl.adapters.objects.content import ContentPayloads, form_of
from noetl.adapters.objects.filesystem import INCOMING, FileBlobs
from noetl.adapters.objects.pieces import Writing
from noetl.core.errors import NoetlError, PayloadCorrupt, PayloadMissing, PayloadUnreadable
from noetl.core.reference import Payload, Reference
from noetl.ports.data.counters import Sample
from noetl.ports.data.payloads import LargePayloadStore

RANGE_FILL_BYTES_MAX = 16 * 1024 * 1024
"""A payload up to this size is fetched whole when a part of it is wanted: more parts will be."""
FAILED_PAUSE_SECONDS = 10.0
"""After trouble with the folder nothing is added for so long."""
ROOM_SHARE = 0.9
LOOK_SHARE = 0.1
"""The folder is looked through when so much was added, because others add to it as well."""
log = logging.getLogger("noetl.payloads")


@dataclass(slots=True)
class CacheCounters:
    """What the cache did since this process began."""

    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0
    miss_bytes: int = 0
    filled_bytes: int = 0
    evicted_bytes: int = 0
    corrupt: int = 0
    failures: int = 0

    def samples(self) -> Iterator[Sample]:
        for field in fields(self):
            yield f"noetl_storage_disk_cache_{field.name}_total", {}, getattr(self, field.name)


class CachedPayloads:
    """The payload port over a store that is far away.  Only what is read or written here is kept here."""

    def __init__(self, durable: LargePayloadStore, *, folder: Path, bytes_max: int, seal: Seal) -> None:
        self._durable = durable
        self._folder = folder
        self._bytes_max = bytes_max
        self._form = form_of(seal)
        self._files = FileBlobs(folder, is_durable=False)
        self._local = ContentPayloads(self._files, name="disk", seal=seal, is_strict=True)
        self._added = bytes_max  # as if it were full: the first entry looks at what earlier processes left
        self._total = 0
        self._pause_until = 0.0
        self._room = asyncio.Lock()
        self.counters = CacheCounters()

    async def put(self, payload: Payload) -> None:
        await self._durable.put(payload)
        await self._keep(payload)

    async def put_stream(
        self, chunks: AsyncIterator[bytes], *, media_type: str, tenant_id: str, organization_id: str
    ) -> Reference:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        fill = _Fill(self, **owner)

        async def teed() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                await fill.write(chunk)
                yield chunk

        try:
            reference = await self._durable.put_stream(teed(), media_type=media_type, **owner)
            await fill.settle()
        finally:
            await fill.drop()
        return reference

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        found = await self._near(self._local.get(reference, **owner), reference, tenant_id, organization_id)
        if found is not None:
            self._hit(len(found))
            return found
        content = await self._durable.get(reference, **owner)
        self._missed(len(content))
        await self._keep(Payload(reference, content, tenant_id, organization_id))
        return content

    async def get_range(
        self, reference: Reference, *, offset: int, length: int, tenant_id: str, organization_id: str
    ) -> bytes:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        read = self._local.get_range(reference, offset=offset, length=length, **owner)
        found = await self._near(read, reference, tenant_id, organization_id)
        if found is not None:
            self._hit(len(found))
            return found
        if 0 < reference.bytes <= RANGE_FILL_BYTES_MAX and offset + length <= reference.bytes:
            content = await self._durable.get(reference, **owner)
            self._missed(len(content))
            await self._keep(Payload(reference, content, tenant_id, organization_id))
            return content[offset : offset + length]
        content = await self._durable.get_range(reference, offset=offset, length=length, **owner)
        self._missed(length)
        return content

    async def get_stream(self, reference: Reference, *, tenant_id: str, organization_id: str) -> AsyncIterator[bytes]:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        given = 0
        chunks = self._local.get_stream(reference, **owner)
        while (chunk := await self._near(_next(chunks), reference, tenant_id, organization_id)) is not None:
            if not chunk:
                self._hit(given)
                return
            given += len(chunk)
            yield chunk
        # Not here, or not all of it: the rest comes from far, and what was given already was authenticated.
        fill = _Fill(self, **owner)
        try:
            passed = 0
            async for chunk in self._durable.get_stream(reference, **owner):
                await fill.write(chunk)
                rest = chunk[max(given - passed, 0) :]
                passed += len(chunk)
                if rest:
                    yield rest
            self._missed(passed)
            await fill.settle()
        finally:
            await fill.drop()

    async def exists(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bool:
        return await self._durable.exists(reference, tenant_id=tenant_id, organization_id=organization_id)

    async def size_of(self, reference: Reference, *, tenant_id: str, organization_id: str) -> int | None:
        return await self._durable.size_of(reference, tenant_id=tenant_id, organization_id=organization_id)

    # --- entries -------------------------------------------------------------------------------------------

    async def _near(
        self, read: Awaitable[bytes], reference: Reference, tenant_id: str, organization_id: str
    ) -> bytes | None:
        """What an entry says; None when there is none that is good."""
        try:
            found = await read
        except (PayloadMissing, PayloadUnreadable):
            return None
        except PayloadCorrupt:
            self.counters.corrupt += 1
            owner = {"tenant_id": tenant_id, "organization_id": organization_id}
            with contextlib.suppress(NoetlError):
                await self._local.delete(reference.sha256, renewed_before=float("inf"), **owner)
            return None
        except NoetlError as error:
            self.failed(error)
            return None
        await asyncio.to_thread(self._touch, reference, tenant_id, organization_id)
        return found

    def _touch(self, reference: Reference, tenant_id: str, organization_id: str) -> None:
        place = Place(Owner(tenant_id, organization_id), reference.sha256, self._form)
        with contextlib.suppress(OSError):
            os.utime(self._files.path(place))

    def _hit(self, size: int) -> None:
        self.counters.hits += 1
        self.counters.hit_bytes += size

    def _missed(self, size: int) -> None:
        self.counters.misses += 1
        self.counters.miss_bytes += size

    def failed(self, error: NoetlError) -> None:
        """Trouble with the folder is nobody's trouble but the cache's."""
        self.counters.failures += 1
        if time.monotonic() >= self._pause_until:
            log.warning("disk cache not used", extra={"event": "cache.failed", "reason": str(error)})
        self._pause_until = time.monotonic() + FAILED_PAUSE_SECONDS

    def is_worth(self, size: int) -> bool:
        return size <= self._bytes_max // 4 and time.monotonic() >= self._pause_until

    async def _keep(self, payload: Payload) -> None:
        if not self.is_worth(len(payload.content)):
            return
        try:
            await self._local.put(payload)
        except NoetlError as error:
            self.failed(error)
        else:
            await self.kept(len(payload.content))

    async def writing(self, *, tenant_id: str, organization_id: str) -> Writing:
        return await self._local.writing(tenant_id=tenant_id, organization_id=organization_id)

    async def kept(self, size: int) -> None:
        self.counters.filled_bytes += size
        self._added += size
        limit = self._bytes_max
        if self._total + self._added <= limit and self._added <= limit * LOOK_SHARE:
            return
        async with self._room:
            if self._added:
                self._added = 0
                await self._swept()
                self._total, evicted = await asyncio.to_thread(_make_room, self._folder, limit)
                self.counters.evicted_bytes += evicted

    async def _swept(self) -> None:
        with contextlib.suppress(NoetlError):
            await self._files.prepare()


class _Fill:
    """An entry that grows while its bytes pass by.  Its trouble stops nobody."""

    def __init__(self, cache: CachedPayloads, *, tenant_id: str, organization_id: str) -> None:
        self._cache = cache
        self._owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        self._writing: Writing | None = None
        self._is_open = cache.is_worth(0)

    async def write(self, chunk: bytes) -> None:
        if not self._is_open:
            return
        try:
            if self._writing is None:
                self._writing = await self._cache.writing(**self._owner)
            await self._writing.write(chunk)
        except NoetlError as error:
            self._cache.failed(error)
            await self.drop()
            return
        if not self._cache.is_worth(self._writing.size):
            await self.drop()

    async def settle(self) -> None:
        if self._writing is None:
            return
        try:
            reference = await self._writing.settle("")
        except NoetlError as error:
            self._cache.failed(error)
        else:
            await self._cache.kept(reference.bytes)

    async def drop(self) -> None:
        self._is_open = False
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing.drop()


async def _next(chunks: AsyncIterator[bytes]) -> bytes:
    """The next chunk; an empty one at the end."""
    async for chunk in chunks:
        if chunk:
            return chunk
    return b""


def _make_room(folder: Path, bytes_max: int) -> tuple[int, int]:
    """Remove what was longest unused until there is room; the bytes that are left, and those removed."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != INCOMING]
        for name in names:
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):
                stat = os.stat(path)
                found.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in found)
    if total <= bytes_max:
        return total, 0
    evicted = 0
    for _, size, path in sorted(found):
        if total - evicted <= bytes_max * ROOM_SHARE:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        evicted += size
    return total - evicted, evicted
