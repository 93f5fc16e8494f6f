"""Payloads as files: written to a temporary name, synced, renamed, directory synced.  Then the event may name them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from noetl.core.codec import sha256_hex
from noetl.core.errors import PayloadCorrupt, PayloadMissing
from noetl.core.locator import payload_locator
from noetl.core.reference import Payload, Reference

STORE = "file"
_WRITE_BYTES = 1024 * 1024


class FilePayloads:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, payload: Payload) -> None:
        await asyncio.to_thread(self._write, payload)

    async def put_stream(
        self, chunks: AsyncIterator[bytes], *, media_type: str, tenant_id: str, organization_id: str
    ) -> Reference:
        folder = self._owner(tenant_id, organization_id)
        incoming = await asyncio.to_thread(_Incoming, folder)
        try:
            # Gathered first: a thread for every small chunk of a network would cost more than the writing.
            waiting: list[bytes] = []
            size = 0
            async for chunk in chunks:
                waiting.append(chunk)
                size += len(chunk)
                if size >= _WRITE_BYTES:
                    await asyncio.to_thread(incoming.write, waiting)
                    waiting, size = [], 0
            sha256 = await asyncio.to_thread(self._settle, incoming, waiting, tenant_id, organization_id)
        finally:
            incoming.drop()
        return Reference(
            kind="payload",
            uri=payload_locator(tenant_id, organization_id, sha256),
            sha256=sha256,
            media_type=media_type,
            bytes=incoming.size,
            store=STORE,
        )

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        path = self._path(tenant_id, organization_id, reference.sha256)
        return await asyncio.to_thread(self._read, path, reference)

    async def get_range(
        self, reference: Reference, *, offset: int, length: int, tenant_id: str, organization_id: str
    ) -> bytes:
        path = self._path(tenant_id, organization_id, reference.sha256)
        return await asyncio.to_thread(self._read_range, path, reference, offset, length)

    async def get_stream(self, reference: Reference, *, tenant_id: str, organization_id: str) -> AsyncIterator[bytes]:
        path = self._path(tenant_id, organization_id, reference.sha256)
        try:
            file = await asyncio.to_thread(path.open, "rb")
        except FileNotFoundError as error:
            raise PayloadMissing(f"{reference.uri} is not in the file store") from error
        digest = hashlib.sha256()
        with file:
            while chunk := await asyncio.to_thread(file.read, _WRITE_BYTES):
                digest.update(chunk)
                yield chunk
        if digest.hexdigest() != reference.sha256:
            raise PayloadCorrupt(f"{reference.uri}: the file has another digest")

    async def exists(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bool:
        return await asyncio.to_thread(self._path(tenant_id, organization_id, reference.sha256).exists)

    def _owner(self, tenant_id: str, organization_id: str) -> Path:
        """Encoded tenant and organization: nothing of a user's text becomes a path."""
        owner = self._root / quote(tenant_id, safe="").replace(".", "%2E")
        return owner / quote(organization_id, safe="").replace(".", "%2E")

    def _path(self, tenant_id: str, organization_id: str, sha256: str) -> Path:
        """Digest names below the owner's folder."""
        assert len(sha256) == 64
        assert sha256.isalnum()
        return self._owner(tenant_id, organization_id) / sha256[:2] / sha256

    def _write(self, payload: Payload) -> None:
        path = self._path(payload.tenant_id, payload.organization_id, payload.reference.sha256)
        if _renewed(path):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own for each writer: two may store the same content at the same moment.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with temporary.open("wb") as file:
            file.write(payload.content)
            file.flush()
            os.fsync(file.fileno())
        _publish(temporary, path)

    def _settle(self, incoming: _Incoming, rest: list[bytes], tenant_id: str, organization_id: str) -> str:
        """Write the rest, and give the bytes the name that only now is known."""
        incoming.write(rest)
        sha256 = incoming.sync()
        path = self._path(tenant_id, organization_id, sha256)
        if _renewed(path):
            incoming.path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            _publish(incoming.path, path)
        return sha256

    @staticmethod
    def _read(path: Path, reference: Reference) -> bytes:
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise PayloadMissing(f"{reference.uri} is not in the file store") from error
        if sha256_hex(content) != reference.sha256:
            raise PayloadCorrupt(f"{reference.uri}: the file has another digest")
        return content

    @staticmethod
    def _read_range(path: Path, reference: Reference, offset: int, length: int) -> bytes:
        try:
            with path.open("rb") as file:
                file.seek(offset)
                content = file.read(length)
        except FileNotFoundError as error:
            raise PayloadMissing(f"{reference.uri} is not in the file store") from error
        if len(content) != length:
            raise PayloadCorrupt(f"{reference.uri} has fewer bytes than its index says")
        return content


class _Incoming:
    """A file whose name is not known yet, with its digest so far."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f".incoming.{secrets.token_hex(8)}"
        self.size = 0
        self._digest = hashlib.sha256()
        # Buffered on purpose: its lock makes `drop` wait for a write that a cancelled call left in a thread.
        self._file: BinaryIO = self.path.open("wb")

    def write(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            self._file.write(chunk)
            self._digest.update(chunk)
            self.size += len(chunk)

    def sync(self) -> str:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._digest.hexdigest()

    def drop(self) -> None:
        """Leave nothing behind of a stream that broke off; a settled one has left nothing."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def _renewed(path: Path) -> bool:
    """Is the content there?  Reuse renews its time, so that a collector's grace starts again."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _publish(temporary: Path, path: Path) -> None:
    """The rename that makes a payload exist, and the syncs that make it stay."""
    temporary.replace(path)
    # Up to the root, for each of these folders may be new.
    for folder in (path.parent, *path.parents[1:4]):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
