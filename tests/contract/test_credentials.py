"""The store of sealed credentials: memory and Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import pytest

from noetl.adapters.memory.credentials import MemoryCredentials
from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.registry.credentials import PostgresCredentials
from noetl.adapters.system.clock import SystemClock
from noetl.ports.secrets import CredentialStore, SealedCredential
from tests.support.aio import asynchronous
from tests.support.databases import connected

OpenStore = Callable[[], AbstractAsyncContextManager[CredentialStore]]
OWNER = {"tenant_id": "acme", "organization_id": "sales"}
FOREIGN = (
    {"tenant_id": "other", "organization_id": "sales"},
    {"tenant_id": "acme", "organization_id": "other"},
    {"tenant_id": "acmesales", "organization_id": "pg"},
)


def sealed(name: str = "pg", **changes: object) -> SealedCredential:
    one = SealedCredential(
        name=name,
        type="postgres",
        key_id="0123456789abcdef",
        nonce=bytes(range(12)),
        ciphertext=bytes(range(256)),
        description="The orders.",
        tags=("prod", "eu, west"),
        **OWNER,
    )
    return replace(one, **changes)  # type: ignore[arg-type]


def wide(length: int) -> str:
    """Four bytes for each character, and hard to compress: what an index has to hold in the worst case."""
    return "".join(chr(0x1F300 + number * number * 7 % 1_000) for number in range(length))


@pytest.fixture(params=["memory", "postgres"])
def store(request: pytest.FixtureRequest) -> OpenStore:
    address: str = request.getfixturevalue("address") if request.param == "postgres" else ""

    @asynccontextmanager
    async def memory() -> AsyncIterator[CredentialStore]:
        yield MemoryCredentials(SystemClock())

    @asynccontextmanager
    async def postgres() -> AsyncIterator[CredentialStore]:
        async with connected(address) as connection:
            await connection.execute("TRUNCATE noetl.credential")
        reader = Reader(address, size_max=4)
        await reader.open()
        try:
            yield PostgresCredentials(reader)
        finally:
            await reader.close()

    return postgres if address else memory


@asynchronous
async def test_what_was_put_is_what_is_found_with_its_time(store: OpenStore) -> None:
    async with store() as credentials:
        await credentials.put(sealed())
        found = await credentials.find("pg", **OWNER)
        assert found is not None
        assert found == sealed(updated_at=found.updated_at)
        assert len(found.updated_at) == len("2026-01-01T00:00:00.000000Z")
        assert found.updated_at.endswith("Z")


@asynchronous
async def test_a_credential_without_remarks_is_found_as_it_was(store: OpenStore) -> None:
    async with store() as credentials:
        bare = sealed(description=None, tags=())
        await credentials.put(bare)
        found = await credentials.find("pg", **OWNER)
        assert found == replace(bare, updated_at=found.updated_at if found else "")


@asynchronous
async def test_putting_again_replaces_all_of_it_and_moves_the_time(store: OpenStore) -> None:
    async with store() as credentials:
        await credentials.put(sealed())
        first = await credentials.find("pg", **OWNER)
        changed = sealed(
            type="generic", ciphertext=b"x", nonce=b"n" * 12, key_id="f" * 16, description=None, tags=("b",)
        )
        await credentials.put(changed)
        found = await credentials.find("pg", **OWNER)
        assert first is not None
        assert found is not None
        assert found == replace(changed, updated_at=found.updated_at)
        assert found.updated_at > first.updated_at
        assert len(await credentials.names(**OWNER)) == 1


@asynchronous
async def test_what_is_not_there_is_none(store: OpenStore) -> None:
    async with store() as credentials:
        assert await credentials.find("pg", **OWNER) is None
        assert await credentials.names(**OWNER) == []
        assert not await credentials.delete("pg", **OWNER)


@asynchronous
async def test_another_owner_sees_and_deletes_nothing(store: OpenStore) -> None:
    async with store() as credentials:
        await credentials.put(sealed())
        for owner in FOREIGN:
            assert await credentials.find("pg", **owner) is None
            assert await credentials.names(**owner) == []
            assert not await credentials.delete("pg", **owner)
        assert await credentials.find("pg", **OWNER) is not None


@asynchronous
async def test_two_owners_may_use_one_name(store: OpenStore) -> None:
    async with store() as credentials:
        await credentials.put(sealed())
        await credentials.put(sealed(tenant_id="other", ciphertext=b"theirs"))
        mine = await credentials.find("pg", **OWNER)
        theirs = await credentials.find("pg", tenant_id="other", organization_id="sales")
        assert mine is not None
        assert theirs is not None
        assert (mine.ciphertext, theirs.ciphertext) == (bytes(range(256)), b"theirs")


@asynchronous
async def test_the_list_is_in_order_of_the_names_and_holds_nothing_to_decrypt(store: OpenStore) -> None:
    async with store() as credentials:
        for name in ("b", "ä", "a", "B", "a/b", "a b"):
            await credentials.put(sealed(name))
        names = await credentials.names(**OWNER)
        assert [one.name for one in names] == ["B", "a", "a b", "a/b", "b", "ä"]
        assert {(one.nonce, one.ciphertext) for one in names} == {(b"", b"")}
        assert {(one.type, one.description, one.tags) for one in names} == {
            ("postgres", "The orders.", ("prod", "eu, west"))
        }


@asynchronous
async def test_a_deleted_credential_is_gone_and_can_be_set_again(store: OpenStore) -> None:
    async with store() as credentials:
        await credentials.put(sealed())
        assert await credentials.delete("pg", **OWNER)
        assert await credentials.find("pg", **OWNER) is None
        assert not await credentials.delete("pg", **OWNER)
        await credentials.put(sealed())
        assert await credentials.find("pg", **OWNER) is not None


@asynchronous
async def test_names_of_any_alphabet_and_the_longest_ones_fit(store: OpenStore) -> None:
    async with store() as credentials:
        name, owner = wide(200), {"tenant_id": wide(100), "organization_id": wide(100)}
        await credentials.put(sealed(name, **owner))
        assert await credentials.find(name, **owner) is not None
