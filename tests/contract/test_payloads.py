"""The payload port: memory, the table in Postgres, and files."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from noetl.adapters.memory.payloads import Contents, MemoryPayloads
from noetl.adapters.objects.filesystem import FilePayloads
from noetl.core.errors import PayloadCorrupt, PayloadMissing
from noetl.core.reference import Payload, address, reference_from_json
from noetl.engine.payloads import Payloads
from noetl.engine.work.calling.body_sink import PayloadBodySink
from noetl.ports.data.payloads import LargePayloadStore, PayloadStore
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


# --- streams ---------------------------------------------------------------------------------------------


async def chunks_of(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk


@pytest.fixture(params=["memory", "files"])
def large(request: pytest.FixtureRequest, tmp_path: Path) -> LargePayloadStore:
    return MemoryPayloads({}) if request.param == "memory" else FilePayloads(tmp_path)


@pytest.mark.parametrize(
    "chunks",
    [(), (b"",), (b"text",), (b"a", b"", b"b"), tuple(bytes([n]) * 300_000 for n in range(9))],
    ids=["none", "empty", "one", "some", "large"],
)
@asynchronous
async def test_a_stream_is_addressed_by_its_bytes(large: LargePayloadStore, chunks: tuple[bytes, ...]) -> None:
    reference = await large.put_stream(chunks_of(*chunks), media_type="text/csv", **OWNER)
    content = b"".join(chunks)
    expected = address(content, media_type="text/csv", store=reference.store, **OWNER).reference
    assert reference == expected
    assert await large.get(reference, **OWNER) == content


@asynchronous
async def test_a_stream_and_bytes_of_the_same_content_are_one_object(large: LargePayloadStore, tmp_path: Path) -> None:
    one = payload(b"the same content")
    await large.put(one)
    for _ in range(2):
        reference = await large.put_stream(chunks_of(b"the same ", b"content"), media_type="text/plain", **OWNER)
        assert reference.sha256 == one.reference.sha256
    assert await large.get(one.reference, **OWNER) == b"the same content"
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) <= 1


@asynchronous
async def test_some_of_the_bytes_can_be_read_by_themselves(large: LargePayloadStore) -> None:
    content = bytes(range(256)) * 1_000
    reference = await large.put_stream(chunks_of(content), media_type="text/plain", **OWNER)
    for offset, length in ((0, 1), (100, 5_000), (len(content) - 3, 3), (7, 0)):
        assert await large.get_range(reference, offset=offset, length=length, **OWNER) == content[offset:][:length]
    with pytest.raises(PayloadCorrupt):
        await large.get_range(reference, offset=len(content) - 3, length=4, **OWNER)
    with pytest.raises(PayloadMissing):
        await large.get_range(reference, offset=0, length=1, tenant_id="other", organization_id="sales")
    with pytest.raises(PayloadMissing):
        await large.get_range(payload(b"never put").reference, offset=0, length=1, **OWNER)


@asynchronous
async def test_another_tenant_cannot_read_a_stream(large: LargePayloadStore) -> None:
    reference = await large.put_stream(chunks_of(b"private"), media_type="text/plain", **OWNER)
    with pytest.raises(PayloadMissing):
        await large.get(reference, tenant_id="other", organization_id="sales")


@asynchronous
async def test_streams_at_the_same_time_do_not_mix(large: LargePayloadStore) -> None:
    contents = [bytes([number]) * 400_000 for number in range(8)]

    async def put(content: bytes) -> None:
        pieces = [content[start : start + 50_000] for start in range(0, len(content), 50_000)]
        reference = await large.put_stream(chunks_of(*pieces), media_type="text/plain", **OWNER)
        assert await large.get(reference, **OWNER) == content

    async with asyncio.TaskGroup() as group:
        for content in contents:
            group.create_task(put(content))


@asynchronous
async def test_a_stream_that_breaks_off_leaves_nothing(large: LargePayloadStore, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await large.put_stream(broken(), media_type="text/plain", **OWNER)
    with pytest.raises(PayloadMissing):
        await large.get(payload(b"x" * 2_000_000).reference, **OWNER)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@asynchronous
async def test_a_stream_whose_reader_is_cancelled_leaves_nothing(large: LargePayloadStore, tmp_path: Path) -> None:
    is_waiting = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000
        is_waiting.set()
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(large.put_stream(endless(), media_type="text/plain", **OWNER))
        await is_waiting.wait()
        task.cancel()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@asynchronous
async def test_a_streamed_file_is_synced_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        order.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    def noted_rename(source: Path, target: Path) -> Path:
        order.append("rename")
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_rename)
    await FilePayloads(tmp_path).put_stream(chunks_of(b"durable"), media_type="text/plain", **OWNER)
    assert order == ["file", "rename", "folder", "folder", "folder", "folder"]


@asynchronous
async def test_memory_stays_bounded_while_a_file_is_streamed(tmp_path: Path) -> None:
    async def many() -> AsyncIterator[bytes]:
        for number in range(512):
            yield bytes([number % 256]) * 131_072  # 64 MiB in all

    tracemalloc.start()
    try:
        reference = await FilePayloads(tmp_path).put_stream(many(), media_type="text/plain", **OWNER)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reference.bytes == 64 * 1024 * 1024
    assert peak < 8 * 1024 * 1024


@asynchronous
async def test_the_sink_of_a_tool_keeps_for_its_owner(large: LargePayloadStore) -> None:
    payloads = Payloads(small=MemoryPayloads({}), large=large)
    sink = PayloadBodySink(payloads, **OWNER)
    document = await sink.keep(chunks_of(b"a,b\n", b"1,2\n"), media_type="text/csv")
    assert (document["bytes"], document["media_type"], document["store"]) == (8, "text/csv", "file")
    assert await payloads.read(reference_from_json(document), **OWNER) == b"a,b\n1,2\n"
    with pytest.raises(PayloadMissing):
        await payloads.read(reference_from_json(document), tenant_id="other", organization_id="sales")
