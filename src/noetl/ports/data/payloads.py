"""Immutable bytes by content address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from noetl.core.reference import Payload, Reference


class PayloadStore(Protocol):
    """Bytes that are durable before the event that names them."""

    async def put(self, payload: Payload) -> None:
        """Make the bytes durable.  Putting the same content twice is one object, and renews its time."""
        ...

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        """The bytes, verified against the digest.  Raises PayloadMissing or PayloadCorrupt."""
        ...


class LargePayloadStore(PayloadStore, Protocol):
    """A store for bytes of any size."""

    async def put_stream(
        self, chunks: AsyncIterator[bytes], *, media_type: str, tenant_id: str, organization_id: str
    ) -> Reference:
        """Make bytes durable whose size and digest are known only at their end.  Memory stays bounded."""
        ...

    async def get_range(
        self, reference: Reference, *, offset: int, length: int, tenant_id: str, organization_id: str
    ) -> bytes:
        """Some of the bytes, not verified: the digest of a payload is about all of them.  Raises PayloadMissing, or
        PayloadCorrupt when there are fewer."""
        ...

    def get_stream(self, reference: Reference, *, tenant_id: str, organization_id: str) -> AsyncIterator[bytes]:
        """All bytes in order, never held whole.  Raises PayloadMissing at the first chunk, and PayloadCorrupt behind
        the last one when the digest is another: who must not act on wrong bytes waits for the end."""
        ...

    async def exists(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bool:
        """Whether the bytes are there, without reading them."""
        ...

    async def size_of(self, reference: Reference, *, tenant_id: str, organization_id: str) -> int | None:
        """How many bytes there are, whatever the reference says, without reading them; None when there are none."""
        ...


@runtime_checkable
class AdoptsFiles(Protocol):
    """A store that takes files as they are, where others would read them as a stream."""

    async def put_file(self, path: Path, *, media_type: str, tenant_id: str, organization_id: str) -> Reference:
        """Make a closed file durable that nobody writes to any more.  It is the store's then: under its old name it is
        gone when this returns, and still there when this fails."""
        ...


@runtime_checkable
class HasFiles(Protocol):
    """A store whose payloads may be plain files of this machine."""

    async def file_of(self, reference: Reference, *, tenant_id: str, organization_id: str) -> Path | None:
        """The file that has the bytes and nothing else; None when there is none.  Its digest was checked by this
        process since it last changed.  It is to be read and never written.  Raises PayloadMissing or PayloadCorrupt."""
        ...


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a store knows of one payload without opening it."""

    sha256: str
    bytes: int
    renewed_at: float
    """When it was last put, in seconds of the store's own clock since 1970."""
    media_type: str | None = None
    """As far as the store knows it."""


class CollectableStore(Protocol):
    """What only the collector of unreachable payloads may ask of a store."""

    def owners(self) -> AsyncIterator[tuple[str, str]]:
        """Every tenant and organization that has payloads here."""
        ...

    def objects(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredObject]:
        """The payloads of one owner, in no order.  One that is put meanwhile may be missing."""
        ...

    async def delete(self, sha256: str, *, renewed_before: float, tenant_id: str, organization_id: str) -> bool:
        """Delete a payload unless it was put again at or after a moment; whether it is gone."""
        ...
