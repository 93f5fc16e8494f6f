"""The payload port: memory, the table in Postgres, and files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from noetl.adapters.memory.payloads import Contents, MemoryPayloads
from noetl.adapters.objects.filesystem import FilePayloads
from noetl.core.errors import PayloadCorrupt, PayloadMissing
from noetl.core.reference import Payload, address
from noetl.ports.payloads import PayloadStore
from tests.support.aio import asynchronous
from tests.support.backends import postgres_backend
from tests.support.databases import connected

Damage = Callable[[Payload], object]
OpenStore = Callable[[], AbstractAsyncContextManager[tuple[PayloadStore, Damage]]]
OWNER = {"tenant_id": "acme", "organization_id": "sales"}


def payload(content: bytes, *, tenant_id: str = "acme") -> Payload:
    return address(content, media_type="text/plain", store="any", tenant_id=tenant_id, organization_id="sales")


@asynccontextmanager
async def memory() -> AsyncIterator[tuple[PayloadStore, Damage]]:
    contents: Contents = {}

    async def damage(one: Payload) -> None:
        contents[one.tenant_id, one.organization_id, one.reference.sha256] = b"damaged"

    yield MemoryPayloads(contents), damage


@pytest.fixture(params=["memory", "postgres", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    if request.param == "memory":
        return memory

    @asynccontextmanager
    async def files() -> AsyncIterator[tuple[PayloadStore, Damage]]:
        async def damage(one: Payload) -> None:
            (path,) = tmp_path.rglob(one.reference.sha256)
            path.write_bytes(b"damaged")

        yield FilePayloads(tmp_path), damage

    if request.param == "files":
        return files
    where: str = request.getfixturevalue("address")

    @asynccontextmanager
    async def postgres() -> AsyncIterator[tuple[PayloadStore, Damage]]:
        async def damage(one: Payload) -> None:
            async with connected(where) as connection:
                await connection.execute(
                    "UPDATE noetl.payload SET content = 'damaged' WHERE sha256 = $1", one.reference.sha256
                )

        async with postgres_backend(where) as backend:
            yield backend.payloads, damage

    return postgres


@pytest.mark.parametrize("content", [b"", b"text", bytes(range(256)) * 300], ids=["empty", "text", "bytes"])
@asynchronous
async def test_what_was_put_is_what_is_got(store: OpenStore, content: bytes) -> None:
    async with store() as (payloads, _):
        one = payload(content)
        await payloads.put(one)
        assert await payloads.get(one.reference, **OWNER) == content


@asynchronous
async def test_the_same_content_twice_is_one_object(store: OpenStore) -> None:
    async with store() as (payloads, _):
        for _ in range(3):
            await payloads.put(payload(b"again"))
        assert await payloads.get(payload(b"again").reference, **OWNER) == b"again"


@asynchronous
async def test_what_is_not_there_is_missing(store: OpenStore) -> None:
    async with store() as (payloads, _):
        with pytest.raises(PayloadMissing):
            await payloads.get(payload(b"never put").reference, **OWNER)


@asynchronous
async def test_another_tenant_or_organization_cannot_read_it(store: OpenStore) -> None:
    async with store() as (payloads, _):
        one = payload(b"private")
        await payloads.put(one)
        for owner in (
            {"tenant_id": "other", "organization_id": "sales"},
            {"tenant_id": "acme", "organization_id": "other"},
            {"tenant_id": "acme/sales", "organization_id": ""},
        ):
            with pytest.raises(PayloadMissing):
                await payloads.get(one.reference, **owner)
        await payloads.put(payload(b"private", tenant_id="other"))
        assert await payloads.get(one.reference, tenant_id="other", organization_id="sales") == b"private"


@asynchronous
async def test_damaged_bytes_are_never_returned(store: OpenStore) -> None:
    async with store() as (payloads, damage):
        one = payload(b"will be damaged")
        await payloads.put(one)
        await damage(one)  # type: ignore[misc]
        with pytest.raises(PayloadCorrupt):
            await payloads.get(one.reference, **OWNER)
