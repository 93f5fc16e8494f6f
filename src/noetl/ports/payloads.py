"""Immutable bytes by content address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from noetl.core.reference import Payload, Reference


class PayloadStore(Protocol):
    """Bytes that are durable before the event that names them."""

    async def put(self, payload: Payload) -> None:
        """Make the bytes durable.  Putting the same content twice is one object."""
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
