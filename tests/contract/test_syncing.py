"""Files of payloads are on the disk before anybody may name them, whichever way they came.

Nobody can cut the power here: what is seen are the calls, and their order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from noetl.adapters.objects.blobs import Owner, Place
from noetl.adapters.objects.filesystem import FilePayloads
from noetl.core.reference import address
from noetl.points import watch_points
from tests.support.aio import asynchronous

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
FOLDERS = ["folder"] * 4


class Killed(BaseException):
    """The end of a process, as far as the code that it runs in is concerned."""


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced and renamed from now on."""
    seen: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        seen.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")

    def noted_rename(source: Path, target: Path) -> Path:
        seen.append("rename")
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_rename)
    return seen


@asynchronous
async def test_a_payload_is_synced_before_it_has_its_name(tmp_path: Path, order: list[str]) -> None:
    await FilePayloads(tmp_path).put(address(b"durable", media_type="text/plain", store="file", **OWNER))
    assert order == ["file", "rename", *FOLDERS]


@asynchronous
async def test_an_adopted_file_is_synced_before_it_has_its_name(tmp_path: Path, order: list[str]) -> None:
    given = tmp_path / "given"
    given.write_bytes(b"durable")
    await FilePayloads(tmp_path / "payloads").put_file(given, media_type="text/plain", **OWNER)
    assert not given.exists()
    assert order == ["file", "rename", *FOLDERS]


@asynchronous
async def test_what_is_there_already_is_synced_before_it_is_reused(tmp_path: Path, order: list[str]) -> None:
    """Whoever renamed it may have died before it synced the folders: that it is there does not say that it stays."""
    one = address(b"durable", media_type="text/plain", store="file", **OWNER)

    def die(name: str) -> None:
        if name == "payload.renamed":
            raise Killed

    watch_points(die)
    try:
        with pytest.raises(Killed):
            FilePayloads(tmp_path)._files._write(
                Place(Owner("acme", "sales"), one.reference.sha256), 7, lambda: [b"durable"]
            )
    finally:
        watch_points(None)
    assert order == ["file", "rename"]
    await FilePayloads(tmp_path).put(one)
    assert order == ["file", "rename", *FOLDERS]
