"""Every payload store that the compliance suite examines, each opened the way the product opens it."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import obstore
import pytest

from noetl.adapters.crypto.chunks import ChunkSeal
from noetl.adapters.objects.blobs import segment
from noetl.adapters.objects.buckets import ObjectBlobs
from noetl.adapters.objects.clouds import cloud_payloads, memory_payloads
from noetl.adapters.objects.content import ContentPayloads
from noetl.adapters.objects.disk_cache import CachedPayloads
from noetl.adapters.objects.filesystem import FilePayloads
from noetl.adapters.session.http_stream_link import ServerLink, ServerPlace
from noetl.adapters.session.http_stream_stores import HttpPayloads
from noetl.core.secret import Secret
from noetl.core.storage import Cloud
from noetl.ports.data.payloads import LargePayloadStore
from tests.support.object_servers import BUCKET, ObjectServer, azurite, seaweed
from tests.support.server import Place

SEAL = ChunkSeal(Secret(bytes(range(32))))
Change = Callable[[bytes], bytes]
_numbers = itertools.count()
CONTROL = {".renewed", ".deleted"}


@dataclass(slots=True)
class Subject:
    """A store under examination.  `owner` is nobody else's.  `durable` can be collected; it is None when only a server
    can do that.  `change` changes the stored bytes of a payload behind the store's back; `kept` are the names of all
    that is stored, whatever is in it."""

    store: LargePayloadStore
    durable: ContentPayloads | None
    change: Callable[[str, Change], Any]
    kept: Callable[[], Any]
    is_sealed: bool = False
    cache: CachedPayloads | None = None
    owner: dict[str, str] = field(default_factory=dict)


def owner_of_its_own() -> dict[str, str]:
    return {"tenant_id": f"größe/x.{os.getpid()}-{next(_numbers)}", "organization_id": "sales"}


def files(folder: Path, *, is_sealed: bool = False, owner: dict[str, str] | None = None) -> Subject:
    store = FilePayloads(folder, seal=SEAL if is_sealed else None)
    own = folder / segment(owner["tenant_id"]) if owner else folder

    async def change(sha256: str, how: Change) -> None:
        (path,) = own.rglob(f"{sha256}*")
        path.write_bytes(how(path.read_bytes()))

    async def kept() -> list[str]:
        return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]

    return Subject(store, store, change, kept, is_sealed)


def objects(store: ContentPayloads, *, is_sealed: bool) -> Subject:
    blobs: Any = store._blobs
    assert isinstance(blobs, ObjectBlobs)
    raw: Any = blobs._store
    base = blobs._base.rstrip("/") or None

    async def kept() -> list[str]:
        found = await obstore.list(raw, base).collect_async()
        return [str(entry["path"]) for entry in found]

    async def change(sha256: str, how: Change) -> None:
        (key,) = [key for key in await kept() if sha256 in key and not any(key.endswith(end) for end in CONTROL)]
        content = bytes(await (await obstore.get_async(raw, key)).bytes_async())
        await obstore.put_async(raw, key, how(content))

    return Subject(store, store, change, kept, is_sealed)


def bucket(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_sealed: bool = False) -> Subject:
    return objects(cloud(server, monkeypatch, kind, is_sealed=is_sealed), is_sealed=is_sealed)


def cloud(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_sealed: bool = False, bucket: str = BUCKET
) -> ContentPayloads:
    for name, value in server.environment.items():
        if not name.startswith("NOETL_"):
            monkeypatch.setenv(name, value)
    prefix = f"tests/{os.getpid()}-{next(_numbers)}"
    found = Cloud(kind=kind, bucket=bucket, prefix=prefix, endpoint=server.endpoint)
    return cloud_payloads(found, seal=SEAL if is_sealed else None)


def cached(far: Subject, folder: Path, *, bytes_max: int = 1024**3) -> Subject:
    """A store with a disk cache in front; `change` changes what is in the cache."""
    cache = CachedPayloads(far.store, folder=folder, bytes_max=bytes_max, seal=SEAL)
    return Subject(cache, far.durable, files(folder).change, far.kept, True, cache)


@asynccontextmanager
async def through(server: Place) -> AsyncIterator[Subject]:
    """The stores of a server, by way of its API."""
    owner = owner_of_its_own()
    inner = files(server.home / "payloads", owner=owner)
    async with ServerLink(ServerPlace(server.url, server.tokens["worker_token"])) as link:
        yield Subject(HttpPayloads(link), None, inner.change, inner.kept, owner=owner)


@asynccontextmanager
async def opened(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, server: Callable[[], Place]
) -> AsyncIterator[Subject]:
    name, is_sealed = kind.removeprefix("sealed "), kind.startswith("sealed ")
    if name == "http":
        async with through(server()) as subject:
            yield subject
        return
    subject = {
        "file": lambda: files(folder, is_sealed=is_sealed),
        "memory": lambda: objects(memory_payloads(seal=SEAL if is_sealed else None), is_sealed=is_sealed),
        "s3": lambda: bucket(seaweed(), monkeypatch, "s3", is_sealed=is_sealed),
        "azure": lambda: bucket(azurite(), monkeypatch, "azure", is_sealed=is_sealed),
        "cached": lambda: cached(bucket(seaweed(), monkeypatch, "s3"), folder / "cache"),
    }[name]()
    subject.owner = owner_of_its_own()
    yield subject
