"""Payloads over any kind of objects: addressed by the digest of their plain bytes, verified on every read, and sealed
at rest when there is a key.

With a key, new payloads are sealed and plain ones that are older stay readable.  The id of the key is part of an
object's name: what another key sealed is never overwritten and never mistaken for corrupt."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator

from noetl.adapters.objects.blobs import PLAIN, Blobs, Opening, Owner, Place, Seal
from noetl.adapters.objects.pieces import Sealer, Writing, opened_stream
from noetl.core.codec import sha256_hex
from noetl.core.errors import PayloadCorrupt, PayloadMissing, PayloadUnreadable
from noetl.core.reference import Payload, Reference
from noetl.ports.data.payloads import StoredObject

OPENINGS_KEPT_MAX = 1_024
DOUBTED_MAX = 1_024
_FORM = "aes-"


def form_of(seal: Seal | None) -> str:
    """The form in which new payloads are stored."""
    return PLAIN if seal is None else _FORM + seal.key_id


class ContentPayloads:
    """The payload ports over blobs.  `name` is the store that references to its payloads name.  A strict one reads
    nothing but what is sealed with its own key."""

    def __init__(self, blobs: Blobs, *, name: str, seal: Seal | None = None, is_strict: bool = False) -> None:
        self.name = name
        self._is_strict = is_strict
        self._blobs = blobs
        self._seal = seal
        self._form = form_of(seal)
        # What was read from headers, so that reading from the middle asks the store once.
        self._openings: OrderedDict[Place, Opening] = OrderedDict()

    # --- keeping -------------------------------------------------------------------------------------------

    async def put(self, payload: Payload) -> None:
        owner = Owner(payload.tenant_id, payload.organization_id)
        place = Place(owner, payload.reference.sha256, self._form)
        sealer = Sealer(self._seal, owner)
        size = sealer.stored_size(len(payload.content))
        await self._blobs.put(place, size=size, pieces=lambda: sealer.whole(payload.content, place.sha256))

    async def put_stream(
        self, chunks: AsyncIterator[bytes], *, media_type: str, tenant_id: str, organization_id: str
    ) -> Reference:
        writing = await self.writing(tenant_id=tenant_id, organization_id=organization_id)
        try:
            async for chunk in chunks:
                await writing.write(chunk)
            return await writing.settle(media_type)
        finally:
            await writing.drop()

    async def writing(self, *, tenant_id: str, organization_id: str) -> Writing:
        """A payload that is handed over piece by piece."""
        owner = Owner(tenant_id, organization_id)
        sealer = Sealer(self._seal, owner)
        incoming = await self._blobs.incoming(owner, reserved=sealer.head_bytes)
        return Writing(incoming, sealer, owner, form=self._form, store=self.name)

    # --- reading -------------------------------------------------------------------------------------------

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        owner = Owner(tenant_id, organization_id)
        for place in self._places(owner, reference):
            try:
                content = await self._blobs.read(place)
            except FileNotFoundError:
                continue
            try:
                return await asyncio.to_thread(self._verified, place, content)
            except PayloadCorrupt as error:
                raise self._damaged(place, f"{reference.uri}: {error}") from error
        raise await self._absent(owner, reference)

    async def get_range(
        self, reference: Reference, *, offset: int, length: int, tenant_id: str, organization_id: str
    ) -> bytes:
        owner = Owner(tenant_id, organization_id)
        for place in self._places(owner, reference):
            try:
                content = await self._range(place, offset, length)
            except FileNotFoundError:
                continue
            except PayloadCorrupt as error:
                raise self._damaged(place, f"{reference.uri}: {error}") from error
            if len(content) != length:
                raise self._damaged(place, f"{reference.uri} has fewer than {offset + length} bytes")
            return content
        raise await self._absent(owner, reference)

    async def get_stream(self, reference: Reference, *, tenant_id: str, organization_id: str) -> AsyncIterator[bytes]:
        owner = Owner(tenant_id, organization_id)
        for place in self._places(owner, reference):
            digest = hashlib.sha256()
            try:
                async for chunk in self._chunks(place):
                    digest.update(chunk)
                    yield chunk
            except FileNotFoundError:
                continue  # only ever before the first chunk
            except PayloadCorrupt as error:
                raise self._damaged(place, f"{reference.uri}: {error}") from error
            if digest.hexdigest() != reference.sha256:
                raise self._damaged(place, f"{reference.uri}: the stored bytes have another digest")
            return
        raise await self._absent(owner, reference)

    async def exists(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bool:
        return await self.size_of(reference, tenant_id=tenant_id, organization_id=organization_id) is not None

    async def size_of(self, reference: Reference, *, tenant_id: str, organization_id: str) -> int | None:
        for place in self._places(Owner(tenant_id, organization_id), reference):
            size = await self._blobs.size(place)
            if size is not None:
                return size if self._seal is None or place.form == PLAIN else self._seal.plain_size(size)
        return None

    # --- collecting ----------------------------------------------------------------------------------------

    def owners(self) -> AsyncIterator[tuple[str, str]]:
        return self._blobs.owners()

    def objects(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredObject]:
        return self._blobs.objects(Owner(tenant_id, organization_id))

    async def delete(self, sha256: str, *, renewed_before: float, tenant_id: str, organization_id: str) -> bool:
        owner = Owner(tenant_id, organization_id)
        return await self._blobs.delete(owner, sha256, renewed_before=renewed_before)

    async def prepare(self) -> None:
        """At the start of a process.  Raises StoreRefused when this store can never work as it is configured."""
        await self._blobs.prepare()

    # --- one object ----------------------------------------------------------------------------------------

    def _places(self, owner: Owner, reference: Reference) -> list[Place]:
        forms = (self._form,) if self._form == PLAIN or self._is_strict else (self._form, PLAIN)
        return [Place(owner, reference.sha256, form) for form in forms]

    def _damaged(self, place: Place, message: str) -> PayloadCorrupt:
        """What is known to be damaged is not taken for stored when somebody puts the same content again."""
        if len(self._blobs.doubted) < DOUBTED_MAX:
            self._blobs.doubted.add(place)
        return PayloadCorrupt(message)

    def _verified(self, place: Place, stored: bytes) -> bytes:
        content = stored
        if place.form != PLAIN:
            assert self._seal is not None
            opening = self._opening(place, stored[: self._seal.head_bytes])
            content = opening.chunks(0, stored[self._seal.head_bytes :])
        if sha256_hex(content) != place.sha256:
            raise PayloadCorrupt("the stored bytes have another digest")
        return content

    async def _range(self, place: Place, offset: int, length: int) -> bytes:
        if length == 0:
            if await self._blobs.size(place) is None:
                raise FileNotFoundError(place.sha256)
            return b""
        if place.form == PLAIN:
            return await self._blobs.read(place, offset=offset, length=length)
        known = self._openings.get(place)
        if known is not None:
            try:
                return await self._sealed_range(place, known, offset, length)
            except PayloadCorrupt:
                self._openings.pop(place, None)  # it may have been deleted and sealed anew since
        assert self._seal is not None
        head = await self._blobs.read(place, length=self._seal.head_bytes)
        opening = self._opening(place, head)
        self._openings[place] = opening
        while len(self._openings) > OPENINGS_KEPT_MAX:
            self._openings.popitem(last=False)
        return await self._sealed_range(place, opening, offset, length)

    async def _sealed_range(self, place: Place, opening: Opening, offset: int, length: int) -> bytes:
        if offset + length > opening.size:
            return b""
        start, sealed_length = opening.span(offset, length)
        sealed = await self._blobs.read(place, offset=start, length=sealed_length)
        return await asyncio.to_thread(opening.part, offset, length, sealed)

    def _chunks(self, place: Place) -> AsyncIterator[bytes]:
        stored = self._blobs.stream(place)
        if place.form == PLAIN:
            return stored
        assert self._seal is not None
        return opened_stream(stored, self._seal, place)

    def _opening(self, place: Place, head: bytes) -> Opening:
        assert self._seal is not None
        owner = place.owner
        return self._seal.opening(
            head, sha256=place.sha256, tenant_id=owner.tenant_id, organization_id=owner.organization_id
        )

    async def _absent(self, owner: Owner, reference: Reference) -> PayloadMissing | PayloadUnreadable:
        for form in [] if self._is_strict else await self._blobs.forms(owner, reference.sha256):
            if form != PLAIN:
                have = "none" if self._seal is None else f"the key {self._seal.key_id}"
                return PayloadUnreadable(
                    f"{reference.uri} is sealed with the key {form.removeprefix(_FORM)}, and this process has {have}: "
                    "give it that key by NOETL_PAYLOAD_KEY_FILE"
                )
        return PayloadMissing(f"{reference.uri} is not in the {self.name} store")
