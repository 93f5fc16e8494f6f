"""What every store of large payloads keeps to, whatever is below it: files, buckets, memory, a cache, a server."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from noetl.core.errors import PayloadCorrupt, PayloadMissing
from noetl.core.reference import Payload, Reference, address
from tests.support.aio import asynchronous
from tests.support.object_servers import needs_node
from tests.support.server import Place, place
from tests.support.stores import CONTROL, Subject, opened, owner_of_its_own

OpenStore = Callable[[], AbstractAsyncContextManager[Subject]]
KINDS = ["file", "sealed file", "memory", "sealed memory", "s3", "sealed s3", "cached", "http"]
LARGE = bytes(range(256)) * 1_200  # a few chunks of a sealed object, and a bit


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[], Place]]:
    """Started when the first test wants it."""
    with place() as found:

        def started() -> Place:
            if not found.url:
                found.start_server()
            return found

        yield started


@pytest.fixture(params=[*KINDS, pytest.param("azure", marks=needs_node)])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Callable[[], Place]
) -> OpenStore:
    return lambda: opened(request.param, tmp_path, monkeypatch, server)


def payload(subject: Subject, content: bytes) -> Payload:
    return address(content, media_type="text/plain", store=_name(subject), **subject.owner)


def _name(subject: Subject) -> str:
    return "file" if subject.durable is None else subject.durable.name


async def chunks_of(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk


async def streamed(subject: Subject, reference: Reference) -> bytes:
    return b"".join([chunk async for chunk in subject.store.get_stream(reference, **subject.owner)])


async def payload_names(subject: Subject) -> list[str]:
    """What is stored and is neither a mark nor of another test."""
    names = await subject.kept()
    own = subject.owner["tenant_id"].partition(".")[2]
    return [name for name in names if own in name and not any(name.endswith(end) for end in CONTROL)]


# --- keeping and reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"text", LARGE], ids=["empty", "text", "large"])
@asynchronous
async def test_what_was_put_is_what_is_got(store: OpenStore, content: bytes) -> None:
    async with store() as subject:
        one = payload(subject, content)
        assert not await subject.store.exists(one.reference, **subject.owner)
        await subject.store.put(one)
        for _ in range(2):
            assert await subject.store.get(one.reference, **subject.owner) == content
            assert await streamed(subject, one.reference) == content
        assert await subject.store.exists(one.reference, **subject.owner)
        assert await subject.store.size_of(one.reference, **subject.owner) == len(content)


@pytest.mark.parametrize(
    "chunks",
    [(), (b"",), (b"a", b"", b"b"), tuple(bytes([n]) * 300_000 for n in range(9)), (b"x" * 9_000_000,)],
    ids=["none", "empty", "some", "many", "in parts"],
)
@asynchronous
async def test_a_stream_is_addressed_by_its_bytes(store: OpenStore, chunks: tuple[bytes, ...]) -> None:
    content = b"".join(chunks)
    async with store() as subject:
        reference = await subject.store.put_stream(chunks_of(*chunks), media_type="text/plain", **subject.owner)
        assert reference == payload(subject, content).reference
        assert await streamed(subject, reference) == content


@asynchronous
async def test_the_same_content_is_one_object(store: OpenStore) -> None:
    async with store() as subject:
        for content in (b"again", b"x" * 2_000_000):
            one = payload(subject, content)
            await subject.store.put(one)
            await asyncio.gather(*(subject.store.put(one) for _ in range(5)))
            reference = await subject.store.put_stream(chunks_of(content), media_type="text/plain", **subject.owner)
            assert reference.sha256 == one.reference.sha256
            assert await subject.store.get(one.reference, **subject.owner) == content
        assert len(await payload_names(subject)) == 2


@asynchronous
async def test_some_of_the_bytes_can_be_read_by_themselves(store: OpenStore) -> None:
    async with store() as subject:
        reference = await subject.store.put_stream(chunks_of(LARGE), media_type="text/plain", **subject.owner)
        spans = [(0, 1), (0, len(LARGE)), (65_530, 12), (65_536, 65_536), (100, 200_000), (len(LARGE) - 3, 3), (7, 0)]
        for offset, length in spans:
            found = await subject.store.get_range(reference, offset=offset, length=length, **subject.owner)
            assert found == LARGE[offset : offset + length]
        for offset, length in ((len(LARGE) - 3, 4), (len(LARGE), 1), (10**9, 5)):
            with pytest.raises(PayloadCorrupt, match="fewer"):
                await subject.store.get_range(reference, offset=offset, length=length, **subject.owner)


@asynchronous
async def test_what_is_not_there_is_missing(store: OpenStore) -> None:
    async with store() as subject:
        reference = payload(subject, b"never put").reference
        with pytest.raises(PayloadMissing):
            await subject.store.get(reference, **subject.owner)
        with pytest.raises(PayloadMissing):
            await streamed(subject, reference)
        for length in (0, 1):
            with pytest.raises(PayloadMissing):
                await subject.store.get_range(reference, offset=0, length=length, **subject.owner)
        assert not await subject.store.exists(reference, **subject.owner)
        assert await subject.store.size_of(reference, **subject.owner) is None


@asynchronous
async def test_another_tenant_or_organization_sees_nothing(store: OpenStore) -> None:
    async with store() as subject:
        one = payload(subject, LARGE)
        await subject.store.put(one)
        tenant, organization = subject.owner["tenant_id"], subject.owner["organization_id"]
        for other in (
            {"tenant_id": "other", "organization_id": organization},
            {"tenant_id": tenant, "organization_id": "other"},
            {"tenant_id": tenant.replace("/", "%2F"), "organization_id": organization},
            {"tenant_id": "..", "organization_id": "."},
        ):
            with pytest.raises(PayloadMissing):
                await subject.store.get(one.reference, **other)
            with pytest.raises(PayloadMissing):
                await subject.store.get_range(one.reference, offset=0, length=1, **other)
            assert not await subject.store.exists(one.reference, **other)
        theirs = owner_of_its_own()
        await subject.store.put(address(LARGE, media_type="text/plain", store=_name(subject), **theirs))
        assert await subject.store.get(one.reference, **theirs) == LARGE


@asynchronous
async def test_streams_at_the_same_time_do_not_mix(store: OpenStore) -> None:
    async with store() as subject:

        async def put(content: bytes) -> None:
            pieces = [content[start : start + 50_000] for start in range(0, len(content), 50_000)]
            reference = await subject.store.put_stream(chunks_of(*pieces), media_type="text/plain", **subject.owner)
            assert await subject.store.get(reference, **subject.owner) == content

        await asyncio.gather(*(put(bytes([number]) * 1_400_000) for number in range(4)))


@asynchronous
async def test_a_stream_that_breaks_off_leaves_nothing(store: OpenStore) -> None:
    is_waiting = asyncio.Event()

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000
        raise ConnectionResetError

    async def endless() -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000
        is_waiting.set()
        await asyncio.Event().wait()

    async with store() as subject:
        with pytest.raises(ConnectionResetError):
            await subject.store.put_stream(broken(), media_type="text/plain", **subject.owner)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(subject.store.put_stream(endless(), media_type="text/plain", **subject.owner))
            await is_waiting.wait()
            task.cancel()
        assert await payload_names(subject) == []
        with pytest.raises(PayloadMissing):
            await subject.store.get(payload(subject, b"x" * 2_000_000).reference, **subject.owner)


# --- damage ----------------------------------------------------------------------------------------------


def flipped(position: int, bit: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        found = bytearray(content)
        found[position % len(found)] ^= 1 << bit
        return bytes(found)

    return change


@asynchronous
async def test_a_hundred_flipped_bits_are_all_found(store: OpenStore) -> None:
    chance = random.Random()
    async with store() as subject:
        one = payload(subject, chance.randbytes(70_000))
        await subject.store.put(one)
        # Fewer where a flip takes several requests, over code that the others have examined.
        is_slow = subject.durable is None or _name(subject) == "azure" or (subject.is_sealed and _name(subject) == "s3")
        count = 25 if is_slow and subject.cache is None else 100
        for _ in range(count):
            flip = flipped(chance.randrange(10**6), chance.randrange(8))
            await subject.change(one.reference.sha256, flip)
            await _is_found(subject, one)
            if subject.cache is None:
                await subject.change(one.reference.sha256, flip)
        if subject.cache is not None:
            assert subject.cache.counters.corrupt == 100
            assert subject.cache.counters.misses == 100
        assert await subject.store.get(one.reference, **subject.owner) == one.content


async def _is_found(subject: Subject, one: Payload) -> None:
    if subject.cache is not None:
        # The cache drops it, and the bytes come from where they are right.
        read = random.choice([subject.store.get, lambda *_, **__: streamed(subject, one.reference)])
        assert await read(one.reference, **subject.owner) == one.content
        return
    with pytest.raises(PayloadCorrupt):
        await subject.store.get(one.reference, **subject.owner)
    with pytest.raises(PayloadCorrupt):
        await streamed(subject, one.reference)
    if subject.is_sealed:
        # Of a sealed one even a part is right or an error.
        try:
            part = await subject.store.get_range(one.reference, offset=40_000, length=20_000, **subject.owner)
        except PayloadCorrupt:
            return
        assert part == one.content[40_000:60_000]


@pytest.mark.parametrize(
    "change",
    [lambda content: content[:-1], lambda content: content + b"x", lambda _: b"", lambda _: b"damaged"],
    ids=["shorter", "longer", "empty", "other"],
)
@asynchronous
async def test_bytes_of_another_length_are_never_returned(store: OpenStore, change: Callable[[bytes], bytes]) -> None:
    async with store() as subject:
        one = payload(subject, LARGE)
        await subject.store.put(one)
        await subject.change(one.reference.sha256, change)
        if subject.cache is not None:
            assert await streamed(subject, one.reference) == LARGE
            return
        with pytest.raises(PayloadCorrupt):
            await subject.store.get(one.reference, **subject.owner)
        with pytest.raises(PayloadCorrupt):
            await streamed(subject, one.reference)


@asynchronous
async def test_putting_again_repairs_an_object_of_another_length(store: OpenStore) -> None:
    async with store() as subject:
        one = payload(subject, LARGE)
        await subject.store.put(one)
        await subject.change(one.reference.sha256, lambda content: content[:1_000])
        await subject.store.put(one)
        assert await subject.store.get(one.reference, **subject.owner) == LARGE


@pytest.mark.parametrize("is_stream", [False, True])
@asynchronous
async def test_putting_again_repairs_what_a_reader_found_damaged(store: OpenStore, *, is_stream: bool) -> None:
    async with store() as subject:
        one = payload(subject, LARGE)
        await subject.store.put(one)
        await subject.change(one.reference.sha256, flipped(123_456, 3))
        await _is_found(subject, one)
        if is_stream:
            await subject.store.put_stream(chunks_of(LARGE), media_type="text/plain", **subject.owner)
        else:
            await subject.store.put(one)
        assert await subject.store.get(one.reference, **subject.owner) == LARGE


# --- collecting ------------------------------------------------------------------------------------------


@asynchronous
async def test_the_collector_finds_everything_of_an_owner(store: OpenStore) -> None:
    async with store() as subject:
        if subject.durable is None:
            pytest.skip("only a server collects")
        expected = {}
        for content in (b"one", b"two", LARGE):
            one = payload(subject, content)
            await subject.store.put(one)
            expected[one.reference.sha256] = len(content)
        await subject.store.put(payload(subject, b"two"))
        other = owner_of_its_own()
        await subject.store.put(address(b"theirs", media_type="text/plain", store=_name(subject), **other))
        owners = {owner async for owner in subject.durable.owners()}
        assert owners == {tuple(subject.owner.values()), tuple(other.values())}
        found = {one.sha256: one async for one in subject.durable.objects(**subject.owner)}
        assert set(found) == set(expected)
        for sha256, size in expected.items():
            assert found[sha256].bytes >= size
            assert abs(found[sha256].renewed_at - time.time()) < 60
        assert [one async for one in subject.durable.objects(tenant_id="nobody", organization_id="sales")] == []


@asynchronous
async def test_only_what_is_old_is_deleted(store: OpenStore) -> None:
    async with store() as subject:
        if subject.durable is None:
            pytest.skip("only a server collects")
        one, kept = payload(subject, LARGE), payload(subject, b"kept")
        await subject.store.put(one)
        await subject.store.put(kept)
        (first,) = [o async for o in subject.durable.objects(**subject.owner) if o.sha256 == one.reference.sha256]
        durable, owner, sha256 = subject.durable, subject.owner, one.reference.sha256
        assert not await durable.delete(sha256, renewed_before=first.renewed_at, **owner)
        assert await durable.get(one.reference, **owner) == LARGE
        # Put again until the store's clock, which may be coarse, has moved on: that alone must keep it.
        deadline = time.monotonic() + 10
        while True:
            assert time.monotonic() < deadline
            await subject.store.put(one)
            (again,) = [o async for o in durable.objects(**owner) if o.sha256 == sha256]
            if again.renewed_at > first.renewed_at:
                break
            await asyncio.sleep(0.05)
        assert not await durable.delete(sha256, renewed_before=again.renewed_at, **owner)
        assert await durable.get(one.reference, **owner) == LARGE
        assert await durable.delete(sha256, renewed_before=again.renewed_at + 1, **owner)
        with pytest.raises(PayloadMissing):
            await durable.get(one.reference, **owner)
        assert await durable.delete(sha256, renewed_before=again.renewed_at + 1, **owner)
        assert [o.sha256 async for o in durable.objects(**owner)] == [kept.reference.sha256]
        assert all(sha256 not in name for name in await subject.kept())
        await subject.store.put(one)
        assert await durable.get(one.reference, **owner) == LARGE


@pytest.mark.parametrize("store", ["file", "memory", "s3", pytest.param("azure", marks=needs_node)], indirect=True)
@asynchronous
async def test_what_is_put_while_it_is_deleted_is_there_afterwards(store: OpenStore) -> None:
    async with store() as subject:
        assert subject.durable is not None
        durable, owner = subject.durable, subject.owner
        payloads = [payload(subject, f"contended {number}".encode()) for number in range(30)]
        for one in payloads:
            await durable.put(one)
        last = max([one.renewed_at async for one in durable.objects(**owner)])
        # Everything that is put from now on is younger than the moment, whatever the steps of the store's clock.
        while time.time() <= last + 0.01:
            await asyncio.sleep(0.01)
        moment = last + 0.005

        async def keep(one: Payload) -> None:
            await asyncio.sleep(random.random() * 0.01)
            await durable.put(one)

        for one in payloads:
            await asyncio.gather(durable.delete(one.reference.sha256, renewed_before=moment, **owner), keep(one))
            assert await durable.get(one.reference, **owner) == one.content
        assert {name.rpartition(".")[2] for name in await subject.kept()}.isdisjoint({"deleted"})


@asynchronous
async def test_a_reference_may_say_nothing_of_its_size(store: OpenStore) -> None:
    async with store() as subject:
        one = payload(subject, LARGE)
        await subject.store.put(one)
        bare = replace(one.reference, bytes=0)
        assert await subject.store.get(bare, **subject.owner) == LARGE
        assert await streamed(subject, bare) == LARGE
        assert await subject.store.get_range(bare, offset=5, length=7, **subject.owner) == LARGE[5:12]
