"""Buckets and caches in the cases that the compliance suite does not have: wrong settings, keys, crashed collectors."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest

from noetl.adapters.crypto.chunks import ChunkSeal
from noetl.adapters.objects.blobs import PLAIN, Owner
from noetl.adapters.objects.build import StoreKeys, payload_stores
from noetl.adapters.objects.clouds import cloud_payloads, memory_payloads
from noetl.adapters.objects.content import ContentPayloads
from noetl.adapters.objects.disk_cache import CachedPayloads
from noetl.adapters.objects.filesystem import FilePayloads
from noetl.core.errors import PayloadMissing, PayloadUnreadable, SettingsInvalid, StoreRefused, StoreUnavailable
from noetl.core.reference import Payload, address
from noetl.core.secret import Secret
from noetl.core.storage import Cloud, Storage
from tests.support.aio import asynchronous
from tests.support.object_servers import BUCKET, azurite, needs_node, seaweed
from tests.support.stores import SEAL, cached, cloud, files, objects

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
KEYS = StoreKeys(key=None, seal_of=ChunkSeal)
AZURE = pytest.param("azure", marks=needs_node)


def payload(content: bytes, store: str = "any") -> Payload:
    return address(content, media_type="text/plain", store=store, **OWNER)


# --- stores that refuse or do not answer -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["s3", AZURE])
@asynchronous
async def test_wrong_credentials_are_told(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    server = seaweed() if kind == "s3" else azurite()
    cloud(server, monkeypatch, kind)
    wrong = {"s3": ("AWS_SECRET_ACCESS_KEY", "canary-secret"), "azure": ("AZURE_STORAGE_ACCOUNT_KEY", "Y2FuYXJ5")}
    monkeypatch.setenv(*wrong[kind])
    store = cloud_payloads(Cloud(kind=kind, bucket=BUCKET, endpoint=server.endpoint))
    one = payload(b"x")
    for ask in (store.put(one), store.get(one.reference, **OWNER), store.prepare()):
        with pytest.raises(StoreRefused, match=r"refuses this process .*credentials") as raised:
            await ask
        assert "canary" not in str(raised.value)


@pytest.mark.parametrize("kind", ["s3", AZURE])
@asynchronous
async def test_a_bucket_that_does_not_exist_is_told(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    server = seaweed() if kind == "s3" else azurite()
    store = cloud(server, monkeypatch, kind, bucket="nowhere")
    with pytest.raises(StoreRefused, match=r"nowhere .*\((s3|azure)\)"):
        await store.put(payload(b"x"))
    with pytest.raises(StoreRefused, match="nowhere"):
        await store.prepare()


@asynchronous
async def test_a_server_says_at_its_start_that_a_store_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud(seaweed(), monkeypatch, "s3")
    storage = Storage(tier="s3", cloud=Cloud(kind="s3", bucket="nowhere", endpoint=seaweed().endpoint))
    with pytest.raises(SettingsInvalid, match=r"the payload store s3 cannot be used: .*nowhere"):
        await payload_stores(storage, files=tmp_path, keys=KEYS).prepare()


@asynchronous
async def test_a_store_that_does_not_answer_may_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud(seaweed(), monkeypatch, "s3")
    away = Cloud(kind="s3", bucket=BUCKET, endpoint="http://127.0.0.1:9")
    store = cloud_payloads(away)
    with pytest.raises(StoreUnavailable, match="does not answer: Connection refused"):
        await store.put(payload(b"x"))
    # No reason not to start.
    await payload_stores(Storage(tier="s3", cloud=away), files=tmp_path, keys=KEYS).prepare()


def test_settings_of_the_cloud_that_cannot_be_read_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SettingsInvalid, match="the store azure cannot be set up"):
        cloud_payloads(Cloud(kind="azure", bucket=BUCKET))


def test_the_store_of_google_is_made_from_the_same_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    assert cloud_payloads(Cloud(kind="gcs", bucket=BUCKET)).name == "gcs"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    with pytest.raises(SettingsInvalid, match="the store gcs cannot be set up"):
        cloud_payloads(Cloud(kind="gcs", bucket=BUCKET))


@asynchronous
async def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "payloads").write_text("a file is in the way")
    with pytest.raises(StoreRefused, match=r"payloads cannot be kept in .*payloads"):
        await FilePayloads(tmp_path / "payloads").put(payload(b"x"))


@asynchronous
async def test_a_name_that_is_too_long_for_a_folder_is_told(tmp_path: Path) -> None:
    owner = {"tenant_id": "語" * 100, "organization_id": "x"}
    with pytest.raises(StoreRefused, match="240"):
        await FilePayloads(tmp_path).put(address(b"x", media_type="text/plain", store="file", **owner))


# --- keys ------------------------------------------------------------------------------------------------


def stores_of(kind: str, folder: Path) -> Any:
    """Stores over the same objects, by key."""
    if kind == "file":
        return lambda seal: FilePayloads(folder, seal=seal)
    blobs: Any = memory_payloads()._blobs
    return lambda seal: ContentPayloads(blobs, name="memory", seal=seal)


@pytest.mark.parametrize("kind", ["file", "memory"])
@asynchronous
async def test_a_wrong_key_or_none_is_told_and_older_plain_payloads_stay_readable(tmp_path: Path, kind: str) -> None:
    store = stores_of(kind, tmp_path)
    old, new = payload(b"older than the key" * 10), payload(b"sealed" * 100)
    await store(None).put(old)
    sealed = store(SEAL)
    await sealed.put(new)
    assert await sealed.get(old.reference, **OWNER) == old.content
    assert await sealed.get(new.reference, **OWNER) == new.content
    other = ChunkSeal(Secret(b"k" * 32))
    for one, message in ((store(other), f"sealed with the key {SEAL.key_id}.*has the key {other.key_id}"),):
        with pytest.raises(PayloadUnreadable, match=message):
            await one.get(new.reference, **OWNER)
    for ask in (
        store(None).get(new.reference, **OWNER),
        store(None).get_range(new.reference, offset=0, length=1, **OWNER),
        anext(store(None).get_stream(new.reference, **OWNER)),
    ):
        with pytest.raises(PayloadUnreadable, match=r"this process has none.*NOETL_PAYLOAD_KEY_FILE"):
            await ask
    # Another key's process puts the same content: both can read it, and it is collected as one.
    await store(other).put(new)
    assert await store(other).get(new.reference, **OWNER) == new.content
    assert await sealed.get(new.reference, **OWNER) == new.content
    found = [one.sha256 async for one in sealed.objects(**OWNER)]
    assert sorted(found) == sorted([old.reference.sha256, new.reference.sha256])
    assert await sealed.delete(new.reference.sha256, renewed_before=time.time() + 100, **OWNER)
    for one in (sealed, store(other)):
        with pytest.raises(PayloadMissing):
            await one.get(new.reference, **OWNER)


@asynchronous
async def test_nothing_of_a_sealed_payload_is_on_disk(tmp_path: Path) -> None:
    canary = b"s3cret-canary"
    store = FilePayloads(tmp_path, seal=SEAL)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield canary * 10_000
            for path in tmp_path.rglob("*"):
                assert path.is_dir() or canary not in path.read_bytes()

    reference = await store.put_stream(chunks(), media_type="text/plain", **OWNER)
    await store.put(payload(canary * 100))
    assert all(path.is_dir() or canary not in path.read_bytes() for path in tmp_path.rglob("*"))
    assert (await store.get(reference, **OWNER)).count(canary) == 500_000


# --- a collector that died -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_renewed", [True, False])
@asynchronous
async def test_a_deletion_that_was_broken_off_is_ended_by_the_next_one(is_renewed: bool) -> None:
    subject = objects(memory_payloads(), is_sealed=False)
    assert subject.durable is not None
    blobs: Any = subject.durable._blobs
    one = payload(b"half deleted")
    await subject.durable.put(one)
    key = (await subject.kept())[0]
    moment = time.time() + 0.001
    await asyncio.sleep(0.002)
    if is_renewed:
        await subject.durable.put(one)
    # As a collector leaves it that ends between the deletion and its second look.
    await obstore.copy_async(blobs._store, key, f"{key}.deleted")
    await obstore.delete_async(blobs._store, key)
    assert await subject.durable.get(one.reference, **OWNER) == one.content
    assert await subject.durable.exists(one.reference, **OWNER)
    assert await subject.durable.size_of(one.reference, **OWNER) == len(one.content)
    assert await subject.durable.get_range(one.reference, offset=3, length=0, **OWNER) == b""
    assert await blobs.forms(Owner(**OWNER), one.reference.sha256) == [PLAIN]
    (found,) = [o async for o in subject.durable.objects(**OWNER)]
    assert found.sha256 == one.reference.sha256
    before = moment if is_renewed else time.time() + 100
    assert await subject.durable.delete(one.reference.sha256, renewed_before=before, **OWNER) is not is_renewed
    kept = [name.removesuffix(".renewed") for name in await subject.kept()]
    assert set(kept) == ({key} if is_renewed else set())


# --- the disk cache --------------------------------------------------------------------------------------


@asynchronous
async def test_what_was_read_once_is_read_from_disk_also_by_the_next_process(tmp_path: Path) -> None:
    far = objects(memory_payloads(), is_sealed=False)
    one, two = payload(os.urandom(200_000)), payload(os.urandom(300_000))
    for each in (one, two):
        await far.store.put(each)
    first = cached(far, tmp_path).cache
    assert first is not None
    assert await first.get(one.reference, **OWNER) == one.content
    assert b"".join([chunk async for chunk in first.get_stream(two.reference, **OWNER)]) == two.content
    assert (first.counters.hits, first.counters.misses) == (0, 2)
    # A process that starts later finds them, whatever happened to the store.
    for each in (one, two):
        assert far.durable is not None
        await far.durable.delete(each.reference.sha256, renewed_before=time.time() + 100, **OWNER)
    second = cached(far, tmp_path).cache
    assert second is not None
    assert await second.get(one.reference, **OWNER) == one.content
    part = await second.get_range(two.reference, offset=100_000, length=9, **OWNER)
    assert part == two.content[100_000:100_009]
    assert b"".join([chunk async for chunk in second.get_stream(two.reference, **OWNER)]) == two.content
    assert (second.counters.hits, second.counters.misses) == (3, 0)
    assert second.counters.hit_bytes == 200_000 + 9 + 300_000
    # Nobody else finds them, and the cache is no proof that something exists.
    with pytest.raises(PayloadMissing):
        await second.get(one.reference, tenant_id="other", organization_id="sales")
    assert not await second.exists(one.reference, **OWNER)


@asynchronous
async def test_the_longest_unused_goes_first(tmp_path: Path) -> None:
    far = objects(memory_payloads(), is_sealed=False)
    cache = CachedPayloads(far.store, folder=tmp_path, bytes_max=1_000_000, seal=SEAL)
    payloads = [payload(os.urandom(100_000)) for _ in range(25)]
    for number, one in enumerate(payloads):
        await cache.put(one)
        for path in tmp_path.rglob(f"{one.reference.sha256}*"):
            os.utime(path, (number, number))
        await cache.get(payloads[0].reference, **OWNER)  # used all the time
    kept = {path.name[:64] for path in tmp_path.rglob("*") if path.is_file()}
    assert payloads[0].reference.sha256 in kept
    assert {one.reference.sha256 for one in payloads[1:10]}.isdisjoint(kept)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 1_100_000
    assert cache.counters.evicted_bytes >= 1_000_000
    for one in payloads:
        assert await cache.get(one.reference, **OWNER) == one.content
    assert not list((tmp_path / ".incoming").iterdir())


@asynchronous
async def test_what_is_too_large_for_the_cache_passes_by(tmp_path: Path) -> None:
    far = objects(memory_payloads(), is_sealed=False)
    cache = CachedPayloads(far.store, folder=tmp_path, bytes_max=2_000_000, seal=SEAL)
    one = payload(os.urandom(3_000_000))

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(one.content), 500_000):
            yield one.content[at : at + 500_000]

    reference = await cache.put_stream(chunks(), media_type="text/plain", **OWNER)
    assert await cache.get(replace(reference, bytes=0), **OWNER) == one.content
    assert b"".join([chunk async for chunk in cache.get_stream(reference, **OWNER)]) == one.content
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@asynchronous
async def test_a_cache_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    subject = cached(files(tmp_path / "far"), tmp_path / "cache")
    assert subject.cache is not None
    one = payload(os.urandom(100_000))
    await subject.cache.put(one)
    assert await subject.cache.get(one.reference, **OWNER) == one.content
    assert b"".join([chunk async for chunk in subject.cache.get_stream(one.reference, **OWNER)]) == one.content
    assert subject.cache.counters.failures >= 1


@asynchronous
async def test_a_stream_that_turns_bad_in_the_cache_goes_on_from_the_store(tmp_path: Path) -> None:
    far = objects(memory_payloads(), is_sealed=False)
    subject = cached(far, tmp_path)
    one = payload(os.urandom(5_000_000))
    await subject.store.put(one)

    def late(content: bytes) -> bytes:
        return content[:4_000_000] + bytes([content[4_000_000] ^ 1]) + content[4_000_001:]

    await subject.change(one.reference.sha256, late)
    assert b"".join([chunk async for chunk in subject.store.get_stream(one.reference, **OWNER)]) == one.content
    assert subject.cache is not None
    assert (subject.cache.counters.corrupt, subject.cache.counters.misses) == (1, 1)
    assert await subject.store.get(one.reference, **OWNER) == one.content
    assert subject.cache.counters.hits == 1
