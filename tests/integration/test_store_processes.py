"""Payload stores under several real processes: the same content from all of them, kills, and a disk that gets full."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from noetl.adapters.objects.filesystem import INCOMING, FilePayloads
from noetl.core.codec import sha256_hex
from noetl.core.reference import Reference
from tests.support.aio import asynchronous
from tests.support.object_servers import azurite, needs_node, seaweed
from tests.support.small_disk import small_file_system
from tests.support.stores import SEAL, cloud, objects

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
ROOT = Path(__file__).parents[2]
KEY = base64.b64encode(bytes(range(32))).decode()


def writer(*words: object, home: Path, before: tuple[str, ...] = (), **extra: str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NOETL_")}
    command = [*before, sys.executable, "-m", "tests.support.store_writer", *map(str, words)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**environment, "NOETL_HOME": str(home), **extra},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def told(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def written(home: Path) -> list[Path]:
    return [path for path in (home / "payloads").rglob("*") if path.is_file() and path.parent.name != INCOMING]


def test_a_hundred_writers_of_the_same_content_make_one_file(tmp_path: Path) -> None:
    processes = [writer("same", 25, 2_000, 1_500_000, home=tmp_path) for _ in range(4)]
    digests = {digest for process in processes for digest in told(process)["digests"]}
    paths = written(tmp_path)
    assert sorted(path.name for path in paths) == sorted(digests)
    assert [sha256_hex(path.read_bytes()) for path in paths] == [path.name for path in paths]
    assert len(digests) == 2
    assert list((tmp_path / "payloads" / INCOMING).iterdir()) == []


@pytest.mark.parametrize("kind", ["s3", pytest.param("azure", marks=[needs_node, pytest.mark.long])])
@asynchronous
async def test_a_hundred_writers_of_the_same_content_make_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    server = seaweed() if kind == "s3" else azurite()
    subject = objects(cloud(server, monkeypatch, kind), is_sealed=False)
    blobs: Any = subject.durable
    prefix = blobs._blobs._base.rstrip("/")
    settings = {**server.environment, "NOETL_STORAGE_PREFIX": prefix}
    processes = [writer("same", 25, 200_000, home=tmp_path, **settings) for _ in range(4)]
    (sha256,) = {digest for process in processes for digest in await asyncio.to_thread(_digests, process)}
    names = [name for name in await subject.kept() if not name.endswith(".renewed")]
    assert [name.rpartition("/")[2] for name in names] == [sha256]
    reference = Reference(kind="payload", uri=sha256, sha256=sha256, media_type="text/plain", bytes=200_000, store=kind)
    assert len(await subject.store.get(reference, **OWNER)) == 200_000


def _digests(process: subprocess.Popen[str]) -> list[str]:
    found: list[str] = told(process)["digests"]
    return found


@pytest.mark.parametrize("extra", [{}, {"NOETL_PAYLOAD_KEY": KEY}], ids=["plain", "sealed"])
@pytest.mark.parametrize("rounds", [25, pytest.param(1_000, marks=pytest.mark.long)])
def test_a_killed_writer_leaves_no_wrong_payload(tmp_path: Path, extra: Mapping[str, str], rounds: int) -> None:
    answered = set(told(writer("killed", rounds, home=tmp_path, **extra))["answered"])
    assert answered
    store = FilePayloads(tmp_path / "payloads", seal=SEAL if extra else None)
    found = {path.name.partition(".")[0] for path in written(tmp_path)}
    assert answered <= found

    async def read_all() -> None:
        for sha256 in found:  # also those that nobody was told of
            reference = Reference(
                kind="payload", uri=sha256, sha256=sha256, media_type="text/plain", bytes=0, store="file"
            )
            await store.get(reference, **OWNER)

    asyncio.run(read_all())
    left = list((tmp_path / "payloads" / INCOMING).iterdir())
    assert left, "no writer was killed while it wrote: the test proves nothing"
    young, *old = left
    for path in old:
        os.utime(path, (1.0, 1.0))
    asyncio.run(store.prepare())
    assert list((tmp_path / "payloads" / INCOMING).iterdir()) == [young]


@pytest.mark.parametrize("extra", [{}, {"NOETL_PAYLOAD_KEY": KEY}], ids=["plain", "sealed"])
def test_a_full_disk_is_waited_out(tmp_path: Path, extra: Mapping[str, str]) -> None:
    before = small_file_system(tmp_path)
    answer = told(writer("full", 30, home=tmp_path, before=before, **extra))
    assert answer["refused"] >= 3, answer
    assert answer["stored"] >= 3, answer
    assert answer["cache_failures"] >= 1, answer


@pytest.mark.long
@pytest.mark.parametrize("kind", ["file", "s3"])
@pytest.mark.parametrize("extra", [{}, {"NOETL_PAYLOAD_KEY": KEY}], ids=["plain", "sealed"])
def test_memory_stays_bounded_while_a_payload_passes(tmp_path: Path, kind: str, extra: Mapping[str, str]) -> None:
    environment = dict(seaweed().environment) if kind == "s3" else {}
    answer = told(writer("stream", 500, home=tmp_path, **environment, **extra))
    assert answer["grown"] < 150 * 1024, answer  # in kilobytes
