"""Bytes between a payload and its object: hashed and, with a key, sealed on the way in, opened on the way out."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

from noetl.adapters.objects.blobs import READ_BYTES, Incoming, Opening, Owner, Place, Seal
from noetl.core.errors import PayloadCorrupt
from noetl.core.locator import payload_locator
from noetl.core.reference import Reference


class Sealer:
    """Makes the stored bytes of one payload.  Without a key they are the plain ones."""

    def __init__(self, seal: Seal | None, owner: Owner) -> None:
        self._seal = seal
        self._owner = owner
        self.head_bytes = 0 if seal is None else seal.head_bytes
        self._start()

    def _start(self) -> None:
        names = {"tenant_id": self._owner.tenant_id, "organization_id": self._owner.organization_id}
        self._sealing = None if self._seal is None else self._seal.sealing(**names)

    def stored_size(self, size: int) -> int:
        return size if self._seal is None else self._seal.sealed_size(size)

    def whole(self, content: bytes, sha256: str) -> list[bytes]:
        """All of an object, each time with a key of its own: it may be made twice."""
        self._start()
        views = (
            [content[at : at + READ_BYTES] for at in range(0, len(content), READ_BYTES)] if self._seal else [content]
        )
        pieces = self.pieces(views, is_last=True)
        return [self.head(sha256), *pieces] if self._seal else pieces

    def pieces(self, plain: list[bytes], *, is_last: bool) -> list[bytes]:
        if self._sealing is None:
            return plain
        sealed = [self._sealing.seal(piece) for piece in plain]
        if is_last:
            sealed.append(self._sealing.rest())
        return [piece for piece in sealed if piece]

    def head(self, sha256: str) -> bytes:
        return b"" if self._sealing is None else self._sealing.head(sha256)


class Writing:
    """A payload that is handed over piece by piece.  `drop` it in any case."""

    def __init__(self, incoming: Incoming, sealer: Sealer, owner: Owner, *, form: str, store: str) -> None:
        self._incoming = incoming
        self._sealer = sealer
        self._owner = owner
        self._form = form
        self._store = store
        self._digest = hashlib.sha256()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self.size = 0

    async def write(self, chunk: bytes) -> None:
        # Gathered first: a thread for every small chunk of a network would cost more than the writing.
        self._waiting.append(chunk)
        self._waiting_bytes += len(chunk)
        self.size += len(chunk)
        if self._waiting_bytes >= READ_BYTES:
            await self._flush(is_last=False)

    async def settle(self, media_type: str) -> Reference:
        """All is here: give it its address.  It is durable when this returns."""
        await self._flush(is_last=True)
        sha256 = self._digest.hexdigest()
        place = Place(self._owner, sha256, self._form)
        size = self._sealer.stored_size(self.size)
        await self._incoming.settle(place, size=size, head=self._sealer.head(sha256))
        return Reference(
            kind="payload",
            uri=payload_locator(self._owner.tenant_id, self._owner.organization_id, sha256),
            sha256=sha256,
            media_type=media_type,
            bytes=self.size,
            store=self._store,
        )

    async def drop(self) -> None:
        await self._incoming.drop()

    async def _flush(self, *, is_last: bool) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        pieces = await asyncio.to_thread(self._prepared, waiting, is_last)
        if pieces:
            await self._incoming.write(pieces)

    def _prepared(self, waiting: list[bytes], is_last: bool) -> list[bytes]:
        for chunk in waiting:
            self._digest.update(chunk)
        return self._sealer.pieces(waiting, is_last=is_last)


async def opened_stream(stored: AsyncIterator[bytes], seal: Seal, place: Place) -> AsyncIterator[bytes]:
    """Plain bytes out of a sealed object, chunk by chunk; no byte is given that was not authenticated."""
    owner = {"tenant_id": place.owner.tenant_id, "organization_id": place.owner.organization_id}
    opening: Opening | None = None
    waiting = bytearray()
    number = given = 0
    async for piece in stored:
        waiting += piece
        if opening is None:
            if len(waiting) < seal.head_bytes:
                continue
            opening = seal.opening(bytes(waiting[: seal.head_bytes]), sha256=place.sha256, **owner)
            del waiting[: seal.head_bytes]
        end = len(waiting) - len(waiting) % seal.chunk_bytes
        if end:
            sealed = bytes(waiting[:end])
            del waiting[:end]
            plain = await asyncio.to_thread(opening.chunks, number, sealed)
            number += end // seal.chunk_bytes
            given += len(plain)
            yield plain
    if opening is None:
        raise PayloadCorrupt("the sealed object is shorter than its header")
    if waiting:
        plain = opening.chunks(number, bytes(waiting))
        given += len(plain)
        yield plain
    if given != opening.size:
        raise PayloadCorrupt("the sealed object was cut off")
