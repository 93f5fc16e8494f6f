"""Where a payload lives: small ones travel with the event's own statement, large ones are stored before it."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from noetl.core import limits
from noetl.core.codec import canonical_bytes, ordered_bytes, parse_json, sha256_hex
from noetl.core.errors import PayloadCorrupt, PayloadMissing, Transient
from noetl.core.reference import (
    MEDIA_INDEX,
    MEDIA_JSON,
    STORE_LARGE,
    STORE_SMALL,
    Payload,
    Reference,
    address,
    reference_from_json,
)
from noetl.core.results.index import (
    IndexedJson,
    Node,
    Part,
    index_document,
    index_from_document,
    is_indexable,
    parsed_part,
    seems_large,
)
from noetl.ports.data.payloads import LargePayloadStore, PayloadStore

__all__ = ["STORE_LARGE", "STORE_SMALL", "Payloads"]
CACHE_BYTES_MAX = 64 * 1024 * 1024
ASK_AGAIN_SECONDS = 0.5
NEAR_BYTES = 64
T = TypeVar("T")
log = logging.getLogger("noetl.payloads")


class _Cache:
    """Parsed values by owner and digest; the longest unused go first."""

    def __init__(self) -> None:
        self._values: OrderedDict[tuple[str, str, str], tuple[int, object]] = OrderedDict()
        self._bytes = 0

    def find(self, key: tuple[str, str, str]) -> tuple[int, object] | None:
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
        return found

    def keep(self, key: tuple[str, str, str], size: int, value: object) -> None:
        if key in self._values or size > CACHE_BYTES_MAX // 8:
            return
        self._values[key] = (size, value)
        self._bytes += size
        while self._bytes > CACHE_BYTES_MAX:
            _, (dropped, _value) = self._values.popitem(last=False)
            self._bytes -= dropped


class _Patient:
    def __init__(self, store: PayloadStore) -> None:
        self._store = store

    async def put(self, payload: Payload) -> None:
        await _patiently(lambda: self._store.put(payload))

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        return await _patiently(
            lambda: self._store.get(reference, tenant_id=tenant_id, organization_id=organization_id)
        )


class _PatientLarge(_Patient):
    def __init__(self, store: LargePayloadStore) -> None:
        super().__init__(store)
        self._large = store

    async def put_stream(
        self, chunks: AsyncIterator[bytes], *, media_type: str, tenant_id: str, organization_id: str
    ) -> Reference:
        """Tried once: what was read of a stream cannot be read again."""
        return await self._large.put_stream(
            chunks, media_type=media_type, tenant_id=tenant_id, organization_id=organization_id
        )

    async def get_range(
        self, reference: Reference, *, offset: int, length: int, tenant_id: str, organization_id: str
    ) -> bytes:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        return await _patiently(lambda: self._large.get_range(reference, offset=offset, length=length, **owner))

    def get_stream(self, reference: Reference, *, tenant_id: str, organization_id: str) -> AsyncIterator[bytes]:
        """Tried once: what was given out of a stream cannot be given again."""
        return self._large.get_stream(reference, tenant_id=tenant_id, organization_id=organization_id)

    async def exists(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bool:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        return await _patiently(lambda: self._large.exists(reference, **owner))


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except Transient as error:
            await _wait(error)


async def _wait(error: Transient) -> None:
    log.warning("waiting for a payload store", extra={"event": "payload.unavailable", "reason": str(error)})
    await asyncio.sleep(ASK_AGAIN_SECONDS)


async def _yielding(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces of a large value; between two of them others have their turn."""
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)


class Payloads:
    """Addresses new payloads and reads old ones, with a small cache of parsed values in front."""

    def __init__(self, *, small: PayloadStore, large: LargePayloadStore) -> None:
        self._small = small
        self._large = large
        self._stores: Mapping[str, PayloadStore] = {STORE_SMALL: small, STORE_LARGE: large}
        self._cache = _Cache()
        self._is_patient = False
        self._announced: Callable[[], Awaitable[None]] | None = None

    def awaiting(self, announced: Callable[[], Awaitable[None]]) -> Payloads:
        """For a command that is prepared while its claim is being committed: the payloads that it reads may be in the
        same commit.  What is missing is asked for again when `announced` returns.  The cache is the same."""
        found = Payloads(small=self._small, large=self._large)
        found._cache, found._is_patient, found._announced = self._cache, self._is_patient, announced
        return found

    def patient(self) -> Payloads:
        """For a worker, whose command would otherwise fail: a store that is away for a while is asked again until it
        answers.  The cache is the same."""
        patient = Payloads(small=_Patient(self._small), large=_PatientLarge(self._large))
        patient._cache = self._cache
        patient._is_patient = True
        return patient

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
                found = await self._large.put_stream(_yielding(writer.pieces()), media_type=media_type, **owner)
                break
            except Transient as error:
                if not self._is_patient:
                    raise
                await _wait(error)
        assert writer.root is not None
        content = canonical_bytes(index_document(writer.root))
        index = address(content, media_type=MEDIA_INDEX, store=STORE_LARGE, **owner)
        await self._large.put(index)
        self._cache.keep((tenant_id, organization_id, f"index/{found.sha256}"), len(content), writer.root)
        named = {"sha256": index.reference.sha256, "bytes": len(content)}
        return Payload(replace(found, store=STORE_LARGE, index=named), b"", tenant_id, organization_id)

    async def keep(
        self,
        content: bytes,
        *,
        tenant_id: str,
        organization_id: str,
        media_type: str,
    ) -> Payload:
        """Address bytes.  A large payload is durable when this returns; a small one must travel with its event."""
        store = STORE_SMALL if len(content) <= limits.PAYLOAD_INLINE_BYTES_MAX else STORE_LARGE
        payload = address(
            content, media_type=media_type, store=store, tenant_id=tenant_id, organization_id=organization_id
        )
        if store == STORE_LARGE:
            await self._large.put(payload)
        return payload

    async def keep_stream(
        self, chunks: AsyncIterator[bytes], *, tenant_id: str, organization_id: str, media_type: str
    ) -> Reference:
        """Store bytes as they arrive.  They are durable when this returns, however few they were."""
        reference = await self._large.put_stream(
            chunks, media_type=media_type, tenant_id=tenant_id, organization_id=organization_id
        )
        return replace(reference, store=STORE_LARGE)

    async def store(self, payload: Payload) -> None:
        """Make a payload durable that travels with no event.  Storing it again changes nothing."""
        if payload.reference.store == STORE_SMALL:
            await self._small.put(payload)
        elif payload.reference.index is None:
            # One with an index was stored when it was addressed, piece by piece.
            await self._large.put(payload)

    # --- reading -------------------------------------------------------------------------------------------

    async def read(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        store = self._stores.get(reference.store)
        if store is None:
            raise PayloadMissing(f"{reference.uri} is in the store {reference.store!r}, which is not configured")
        try:
            return await store.get(reference, tenant_id=tenant_id, organization_id=organization_id)
        except PayloadMissing:
            if self._announced is None:
                raise
        await self._announced()
        return await store.get(reference, tenant_id=tenant_id, organization_id=organization_id)

    async def read_json(self, document: Mapping[str, object], *, tenant_id: str, organization_id: str) -> Any:
        """The parsed value behind a recorded reference.  Callers must not change it."""
        reference = reference_from_json(document)
        key = (tenant_id, organization_id, reference.sha256)
        known = self._cache.find(key)
        if known is not None:
            return known[1]
        value = parse_json(await self.read(reference, tenant_id=tenant_id, organization_id=organization_id))
        self._cache.keep(key, reference.bytes, value)
        return value

    def known(self, reference: Mapping[str, Any], *, tenant_id: str, organization_id: str) -> tuple[object] | None:
        """The parsed value behind a recorded reference if it is at hand."""
        found = self._cache.find((tenant_id, organization_id, str(reference["sha256"])))
        return None if found is None else (found[1],)

    async def read_index(self, document: Mapping[str, object], *, tenant_id: str, organization_id: str) -> Node | None:
        """The index behind a recorded reference; None when there is none that can be used."""
        reference = reference_from_json(document)
        if reference.index is None:
            return None
        key = (tenant_id, organization_id, f"index/{reference.sha256}")
        known = self._cache.find(key)
        if known is None:
            named: Any = {**reference.to_json(), **reference.index, "media_type": MEDIA_INDEX, "index": None}
            content = await self.read(reference_from_json(named), tenant_id=tenant_id, organization_id=organization_id)
            known = (len(content), index_from_document(parse_json(content)))
            self._cache.keep(key, *known)
        node = known[1]
        assert node is None or isinstance(node, Node)
        return node

    async def read_parts(
        self,
        document: Mapping[str, object],
        parts: Sequence[tuple[bool, Part]],
        *,
        tenant_id: str,
        organization_id: str,
    ) -> list[Any]:
        """Members of parts of a payload (with each, whether it is of a list), every part checked by its digest."""
        reference = reference_from_json(document)
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        found: list[Any] = []
        for run in _runs(parts):
            first, last = run[0][1], run[-1][1]
            keys = [(tenant_id, organization_id, f"{reference.sha256}@{part.offset}") for _, part in run]
            known = [self._cache.find(key) for key in keys]
            if all(known):
                found += [one[1] for one in known if one is not None]
                continue
            length = last.offset + last.length - first.offset
            content = await self._large.get_range(reference, offset=first.offset, length=length, **owner)
            for key, (is_list, part) in zip(keys, run, strict=True):
                start = part.offset - first.offset
                members = _members(reference, is_list, part, content[start : start + part.length])
                self._cache.keep(key, part.length, members)
                found.append(members)
        return found

    async def read_text(self, document: Mapping[str, object], *, tenant_id: str, organization_id: str) -> str:
        """The text behind a recorded reference."""
        reference = reference_from_json(document)
        # Not the key of a parsed value: a text may be JSON too.
        key = (tenant_id, organization_id, f"text/{reference.sha256}")
        known = self._cache.find(key)
        if known is not None:
            return str(known[1])
        content = await self.read(reference, tenant_id=tenant_id, organization_id=organization_id)
        text = content.decode("utf-8")
        self._cache.keep(key, reference.bytes, text)
        return text


def _runs(parts: Sequence[tuple[bool, Part]]) -> Iterator[list[tuple[bool, Part]]]:
    """Parts that are read together: neighbours, as long as they are not too many bytes for one turn."""
    run: list[tuple[bool, Part]] = []
    for is_list, part in parts:
        if run:
            end = run[-1][1].offset + run[-1][1].length
            is_near = 0 <= part.offset - end <= NEAR_BYTES
            if not is_near or part.offset + part.length - run[0][1].offset > limits.INDEX_READ_BYTES_MAX:
                yield run
                run = []
        run.append((is_list, part))
    if run:
        yield run


def _members(reference: Reference, is_list: bool, part: Part, content: bytes) -> Any:
    if sha256_hex(content) != part.sha256:
        raise PayloadCorrupt(f"{reference.uri}: bytes {part.offset} to {part.offset + part.length} have another digest")
    return parsed_part(is_list, content)
