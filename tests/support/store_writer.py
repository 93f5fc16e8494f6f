"""Programs that write to the payload stores of the settings, each a process of its own.

    python -m tests.support.store_writer same COUNT BYTES …   put the same contents so many times at once
    python -m tests.support.store_writer killed ROUNDS        writers that are killed at random moments
    python -m tests.support.store_writer full ROUNDS          on a disk that gets full and is freed again
    python -m tests.support.store_writer stream MEGABYTES     one payload in and out, and the memory that it took

The last line of the output is JSON about what happened."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from noetl.adapters.crypto.chunks import ChunkSeal
from noetl.adapters.objects.build import StoreKeys, payload_stores
from noetl.adapters.objects.disk_cache import CachedPayloads
from noetl.adapters.objects.filesystem import FilePayloads
from noetl.core.errors import StorageFull
from noetl.core.reference import address
from noetl.settings import read_settings

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
SETTINGS = read_settings()
KEYS = StoreKeys(key=SETTINGS.payload_key, seal_of=ChunkSeal)
STORES = payload_stores(SETTINGS.storage, files=SETTINGS.home / "payloads", keys=KEYS)
STORE = STORES.large


def content_of(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


async def chunks_of(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 100_000):
        yield content[start : start + 100_000]


async def put(content: bytes, *, is_stream: bool) -> str:
    payload = address(content, media_type="text/plain", store=STORES.name, **OWNER)
    if is_stream:
        await STORE.put_stream(chunks_of(content), media_type="text/plain", **OWNER)
    else:
        await STORE.put(payload)
    return payload.reference.sha256


async def same(count: int, *sizes: int) -> dict[str, object]:
    contents = [content_of(1, size) for size in sizes]
    turns = [(content, number % 2 == 1) for content in contents for number in range(count)]
    found = await asyncio.gather(*(put(content, is_stream=is_stream) for content, is_stream in turns))
    return {"digests": sorted(set(found))}


# --- killed ----------------------------------------------------------------------------------------------


async def write_forever(pipe: int, seed: int) -> None:
    chance = random.Random(seed)
    while True:
        content = chance.randbytes(chance.choice([200, 70_000, 1_500_000]))
        sha256 = await put(content, is_stream=chance.random() < 0.5)
        os.write(pipe, f"{sha256}\n".encode())


def killed(rounds: int) -> dict[str, object]:
    """Digests that were answered for.  Forked, so that a round takes no longer than its writer lives."""
    answered: list[str] = []
    for number in range(rounds):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            asyncio.run(write_forever(writing, number))
        os.close(writing)
        time.sleep(random.uniform(0.005, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open(reading, "rb") as file:
            answered += file.read().decode().split()
    return {"answered": answered}


async def stream(megabytes: int) -> dict[str, object]:
    piece = os.urandom(1024 * 1024)

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(megabytes):
            yield number.to_bytes(8, "little") + piece[8:]

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reference = await STORE.put_stream(pieces(), media_type="text/plain", **OWNER)
    size = 0
    async for chunk in STORE.get_stream(reference, **OWNER):
        size += len(chunk)
    assert size == reference.bytes == megabytes * 1024 * 1024
    return {"grown": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before}


# --- a full disk -----------------------------------------------------------------------------------------


async def full(rounds: int) -> dict[str, object]:
    """The home is on a small file system.  Fill it up to a random point, put, free it, put again."""
    home = SETTINGS.home
    refused = stored = 0
    for number in range(rounds):
        content = content_of(number, random.choice([70_000, 900_000]))
        is_stream = number % 2 == 1
        filler = fill(home, leave=random.randrange(1_200_000))
        try:
            await put(content, is_stream=is_stream)
            stored += 1
        except StorageFull:
            refused += 1
        assert left_over(home) == [], "something half-written is left"
        filler.unlink()
        sha256 = await put(content, is_stream=is_stream)
        reference = address(content, media_type="text/plain", store="file", **OWNER).reference
        assert await STORE.get(reference, **OWNER) == content
        names = [path.name for path in (home / "payloads").rglob("*") if path.is_file()]
        assert [name.partition(".")[0] for name in names] == [sha256], names
        assert await STORES.durable["file"].delete(sha256, renewed_before=time.time() + 1_000, **OWNER)
    return {"refused": refused, "stored": stored, "cache_failures": await full_cache(home)}


async def full_cache(home: Path) -> int:
    """A cache without room stops nobody."""
    far = FilePayloads(home / "far")
    cache = CachedPayloads(far, folder=home / "cache", bytes_max=1024**3, seal=KEYS.cache_seal)
    content = content_of(5, 900_000)
    one = address(content, media_type="text/plain", store="far", **OWNER)
    await far.put(one)
    filler = fill(home, leave=10_000)
    assert await cache.get(one.reference, **OWNER) == content
    assert b"".join([chunk async for chunk in cache.get_stream(one.reference, **OWNER)]) == content
    filler.unlink()
    return cache.counters.failures


def fill(home: Path, *, leave: int) -> Path:
    filler = home / "filler"
    status = os.statvfs(home)
    with filler.open("wb") as file:
        size = max(status.f_bavail * status.f_frsize - leave, 0)
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
    return filler


def left_over(home: Path) -> list[str]:
    return [path.name for path in (home / "payloads" / ".incoming").glob("*")]


if __name__ == "__main__":
    mode, *numbers = sys.argv[1:]
    if mode == "killed":
        told = killed(int(numbers[0]))
    elif mode == "same":
        told = asyncio.run(same(*map(int, numbers)))
    elif mode == "stream":
        told = asyncio.run(stream(int(numbers[0])))
    else:
        told = asyncio.run(full(int(numbers[0])))
    print(json.dumps(told))
