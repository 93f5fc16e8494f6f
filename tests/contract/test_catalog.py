"""The catalog's store: memory and Postgres."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import pytest

from noetl.adapters.memory.catalog import MemoryCatalog
from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.registry.catalog import PostgresCatalog
from noetl.adapters.system.clock import SystemClock
from noetl.core.codec import sha256_hex
from noetl.core.reference import MEDIA_PLAYBOOK, address
from noetl.ports.catalog import CatalogEntry, CatalogStore, NewVersion
from tests.support.aio import asynchronous
from tests.support.databases import connected

OpenStore = Callable[[], AbstractAsyncContextManager[CatalogStore]]
OWNER = {"tenant_id": "acme", "organization_id": "sales"}
FOREIGN = (
    {"tenant_id": "other", "organization_id": "sales"},
    {"tenant_id": "acme", "organization_id": "other"},
)


NUMBERS = itertools.count(1)


def content(path: str, text: str, **changes: object) -> NewVersion:
    payload = address(text.encode(), media_type=MEDIA_PLAYBOOK, store="db", **OWNER)
    new = NewVersion(
        catalog_id=next(NUMBERS),
        path=path,
        sha256=payload.reference.sha256,
        media_type=MEDIA_PLAYBOOK,
        name=f"The name of {path}",
        payload=payload.reference.to_json(),
        **OWNER,
    )
    return replace(new, **changes)  # type: ignore[arg-type]


def wide(length: int) -> str:
    """Four bytes for each character, and hard to compress: what an index has to hold in the worst case."""
    return "".join(chr(0x1F300 + number * number * 7 % 1_000) for number in range(length))


@pytest.fixture(params=["memory", "postgres"])
def store(request: pytest.FixtureRequest) -> OpenStore:
    where: str = request.getfixturevalue("address") if request.param == "postgres" else ""

    @asynccontextmanager
    async def memory() -> AsyncIterator[CatalogStore]:
        yield MemoryCatalog(SystemClock())

    @asynccontextmanager
    async def postgres() -> AsyncIterator[CatalogStore]:
        async with connected(where) as connection:
            await connection.execute("TRUNCATE noetl.catalog")
        reader = Reader(where, size_max=8)
        await reader.open()
        try:
            yield PostgresCatalog(reader)
        finally:
            await reader.close()

    return postgres if where else memory


def versions_of(entries: list[CatalogEntry]) -> list[tuple[str, int]]:
    return [(entry.path, entry.version) for entry in entries]


@asynchronous
async def test_the_first_content_is_version_one_and_is_found_whole(store: OpenStore) -> None:
    async with store() as catalog:
        entry, is_new = await catalog.register(content("a", "one"))
        assert is_new
        assert entry.version == 1
        assert (entry.sha256, entry.name, entry.media_type) == (sha256_hex(b"one"), "The name of a", MEDIA_PLAYBOOK)
        assert entry.payload == content("a", "one").payload
        assert entry.created_at.endswith("Z")
        assert await catalog.find("a", version=None, **OWNER) == entry
        assert await catalog.find("a", version=1, **OWNER) == entry


@asynchronous
async def test_other_content_is_the_next_version_and_the_same_content_none(store: OpenStore) -> None:
    async with store() as catalog:
        told = [await catalog.register(content("a", text)) for text in ("one", "two", "one", "two", "three")]
        assert [(entry.version, is_new) for entry, is_new in told] == [
            (1, True),
            (2, True),
            (1, False),
            (2, False),
            (3, True),
        ]
        assert told[2][0] == told[0][0]
        newest = await catalog.find("a", version=None, **OWNER)
        assert newest is not None
        assert newest.version == 3
        second = await catalog.find("a", version=2, **OWNER)
        assert second is not None
        assert second.sha256 == sha256_hex(b"two")


@asynchronous
async def test_paths_have_versions_of_their_own_and_the_leading_slash_counts(store: OpenStore) -> None:
    async with store() as catalog:
        for path, text in (("a", "one"), ("/a", "one"), ("a/", "one"), ("a", "two")):
            await catalog.register(content(path, text))
        found = {path: await catalog.find(path, version=None, **OWNER) for path in ("a", "/a", "a/")}
        assert {path: entry.version for path, entry in found.items() if entry} == {"a": 2, "/a": 1, "a/": 1}


@asynchronous
async def test_what_is_not_there_is_none(store: OpenStore) -> None:
    async with store() as catalog:
        await catalog.register(content("a", "one"))
        assert await catalog.find("b", version=None, **OWNER) is None
        assert await catalog.find("a", version=2, **OWNER) is None
        assert await catalog.versions("b", limit=10, **OWNER) == []
        assert await catalog.paths(prefix="b", limit=10, **OWNER) == []


@asynchronous
async def test_another_owner_sees_nothing_and_counts_for_itself(store: OpenStore) -> None:
    async with store() as catalog:
        await catalog.register(content("a", "one"))
        await catalog.register(content("a", "two"))
        for owner in FOREIGN:
            assert await catalog.find("a", version=None, **owner) is None
            assert await catalog.versions("a", limit=10, **owner) == []
            assert await catalog.paths(prefix="", limit=10, **owner) == []
            entry, is_new = await catalog.register(content("a", "two", **owner))
            assert (entry.version, is_new) == (1, True)
        assert len(await catalog.versions("a", limit=10, **OWNER)) == 2


@asynchronous
async def test_the_list_has_the_newest_version_of_each_path_in_order(store: OpenStore) -> None:
    async with store() as catalog:
        for path in ("b", "a/x", "/a", "a", "A", "ä"):
            await catalog.register(content(path, "one"))
        await catalog.register(content("a", "two"))
        everything = await catalog.paths(prefix="", limit=100, **OWNER)
        assert versions_of(everything) == [("/a", 1), ("A", 1), ("a", 2), ("a/x", 1), ("b", 1), ("ä", 1)]
        assert versions_of(await catalog.paths(prefix="a", limit=100, **OWNER)) == [("a", 2), ("a/x", 1)]
        assert versions_of(await catalog.paths(prefix="", limit=2, **OWNER)) == [("/a", 1), ("A", 1)]


@pytest.mark.parametrize("prefix", ["a%", "a_", "%", "_", "\\", "a\\"])
@asynchronous
async def test_a_prefix_is_text_and_no_pattern(store: OpenStore, prefix: str) -> None:
    async with store() as catalog:
        for path in ("ab", "a%b", "a_b", "a\\b"):
            await catalog.register(content(path, "one"))
        found = await catalog.paths(prefix=prefix, limit=10, **OWNER)
        assert [entry.path for entry in found] == [
            path for path in ("a%b", "a\\b", "a_b", "ab") if path.startswith(prefix)
        ]


@asynchronous
async def test_versions_come_newest_first(store: OpenStore) -> None:
    async with store() as catalog:
        for text in ("one", "two", "three"):
            await catalog.register(content("a", text))
        assert versions_of(await catalog.versions("a", limit=10, **OWNER)) == [("a", 3), ("a", 2), ("a", 1)]
        assert versions_of(await catalog.versions("a", limit=1, **OWNER)) == [("a", 3)]


@asynchronous
async def test_many_at_once_get_versions_without_gaps_or_doubles(store: OpenStore) -> None:
    async with store() as catalog:
        texts = [f"text {number % 12}" for number in range(36)]
        told = await asyncio.gather(*(catalog.register(content("a", text)) for text in texts))
        by_text = {text: entry.version for text, (entry, _) in zip(texts, told, strict=True)}
        assert sorted(by_text.values()) == list(range(1, 13))
        assert sum(is_new for _, is_new in told) == 12
        for text, (entry, _) in zip(texts, told, strict=True):
            assert entry.version == by_text[text]
        assert len(await catalog.versions("a", limit=100, **OWNER)) == 12


@asynchronous
async def test_the_longest_path_of_any_alphabet_fits(store: OpenStore) -> None:
    async with store() as catalog:
        owner = {"tenant_id": wide(100), "organization_id": wide(100)}
        entry, is_new = await catalog.register(content(wide(300), "one", **owner))
        assert (entry.version, is_new) == (1, True)


@asynchronous
async def test_scripts_are_part_of_the_content(store: OpenStore) -> None:
    async with store() as catalog:
        reference = address(b"x = 1", media_type=MEDIA_PLAYBOOK, store="db", **OWNER).reference.to_json()
        scripts = {"lib/a.py": {"ref": reference, "names": ["n"]}, "ä b.sql": {"ref": reference, "names": None}}
        one = content("a", "text", scripts=scripts, scripts_sha256="1" * 64)
        told = [
            await catalog.register(content("a", "text")),
            await catalog.register(one),
            await catalog.register(replace(one, scripts_sha256="2" * 64, catalog_id=next(NUMBERS))),
            await catalog.register(replace(one, catalog_id=next(NUMBERS))),
        ]
        assert [(entry.version, is_new) for entry, is_new in told] == [(1, True), (2, True), (3, True), (2, False)]
        assert told[3][0] == told[1][0]
        assert (told[1][0].scripts, told[0][0].scripts) == (scripts, {})
        assert told[0][0].digest == told[0][0].sha256
        assert len({entry.digest for entry, _ in told}) == 3
        assert {entry.sha256 for entry, _ in told} == {sha256_hex(b"text")}


@asynchronous
async def test_a_version_is_found_by_its_number_by_its_owner_only(store: OpenStore) -> None:
    async with store() as catalog:
        entry, _ = await catalog.register(content("a", "one"))
        again, _ = await catalog.register(content("a", "one"))
        assert again.catalog_id == entry.catalog_id
        assert await catalog.find_id(entry.catalog_id, **OWNER) == entry
        assert await catalog.find_id(2**63 - 1, **OWNER) is None
        for owner in FOREIGN:
            assert await catalog.find_id(entry.catalog_id, **owner) is None


@asynchronous
async def test_a_known_content_has_the_warnings_of_its_last_registration(store: OpenStore) -> None:
    async with store() as catalog:
        warning = {"code": "missing_playbook", "message": "ä 'x'", "line": 3}
        entry, _ = await catalog.register(content("a", "one", warnings=[warning]))
        assert entry.warnings == [warning]
        await catalog.register(content("a", "two", warnings=[warning]))
        again, is_new = await catalog.register(content("a", "one", warnings=[]))
        assert (again.version, is_new, list(again.warnings)) == (1, False, [])
        found = await catalog.versions("a", limit=10, **OWNER)
        assert [list(one.warnings) for one in found] == [[warning], []]
        assert [list(one.warnings) for one in await catalog.paths(prefix="", limit=10, **OWNER)] == [[warning]]
