"""What a worker without the database reads and keeps through its server: payloads, and sealed credentials."""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import io
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import quote

from noetl.adapters.session.http_stream_link import Refused, ServerLink, owner_headers
from noetl.core.errors import HostUnavailable, PayloadCorrupt, PayloadMissing, StorageFull, Transient
from noetl.core.locator import payload_locator
from noetl.core.reference import STORE_ANY, STORE_LARGE, Payload, Reference
from noetl.ports.secrets import SealedCredential

SPOOL_BYTES = 1024 * 1024
AWAY_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
_RANGE_NOT_SATISFIABLE = 416
T = TypeVar("T")
log = logging.getLogger("noetl.worker")


class HttpPayloads:
    """Both stores of a worker.  A small payload travels with its fact; `put` is for the others.  `name` is what the
    server calls the store that takes large ones."""

    def __init__(self, link: ServerLink, *, name: Callable[[], str] = lambda: STORE_LARGE) -> None:
        self._link = link
        self._name = name

    async def put(self, payload: Payload) -> None:
        reference = payload.reference
        headers = owner_headers(payload.tenant_id, payload.organization_id) | {"Content-Type": reference.media_type}
        path = _path(reference.sha256, reference.store)
        # A file, so that it is sent piece by piece and the loop has time for others.
        await _patiently(lambda: self._link.content("PUT", path, body=io.BytesIO(payload.content), headers=headers))

    async def put_stream(
        self, chunks: AsyncIterator[bytes], *, media_type: str, tenant_id: str, organization_id: str
    ) -> Reference:
        """The digest is part of the address, so the bytes wait in a temporary file until it is known."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        with _temporary() as file:
            sha256 = await _spooled(chunks, file)
            return await self._sent(file, sha256, media_type=media_type, **owner)

    async def put_file(self, path: Path, *, media_type: str, tenant_id: str, organization_id: str) -> Reference:
        """Sent as it is: a file that stays as it is needs no other one to wait in."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        with await asyncio.to_thread(_plain, path) as file:
            digest = await asyncio.to_thread(hashlib.file_digest, file, "sha256")
            reference = await self._sent(file, digest.hexdigest(), media_type=media_type, **owner)
        await asyncio.to_thread(path.unlink, missing_ok=True)
        return reference

    async def _sent(
        self, file: BinaryIO, sha256: str, *, media_type: str, tenant_id: str, organization_id: str
    ) -> Reference:
        """All of a file, of which the end was read last."""
        size = file.tell()
        headers = owner_headers(tenant_id, organization_id) | {"Content-Type": media_type}
        store = self._name()
        path = _path(sha256, store)
        await _patiently(lambda: self._link.content("PUT", path, body=_chunks_of(file), headers=headers))
        return Reference(
            kind="payload",
            uri=payload_locator(tenant_id, organization_id, sha256),
            sha256=sha256,
            media_type=media_type,
            bytes=size,
            store=store,
        )

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        return b"".join([chunk async for chunk in self.get_stream(reference, **owner)])

    async def get_range(
        self, reference: Reference, *, offset: int, length: int, tenant_id: str, organization_id: str
    ) -> bytes:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        if length == 0:
            if not await self.exists(reference, **owner):
                raise PayloadMissing(f"{reference.uri} is not in a store of the server")
            return b""
        path = _path(reference.sha256, reference.store)
        headers = owner_headers(**owner) | {"Range": f"bytes={offset}-{offset + length - 1}"}
        try:
            content = await _patiently(lambda: self._link.content("GET", path, headers=headers))
        except Refused as refused:
            if refused.status != _RANGE_NOT_SATISFIABLE:
                raise
            content = b""
        if len(content) != length:
            raise PayloadCorrupt(f"{reference.uri} has fewer than {offset + length} bytes")
        return content

    async def get_stream(self, reference: Reference, *, tenant_id: str, organization_id: str) -> AsyncIterator[bytes]:
        """One request; when it breaks off, the next one asks for the rest."""
        path = _path(reference.sha256, reference.store)
        headers = owner_headers(tenant_id, organization_id)
        digest = hashlib.sha256()
        received = 0
        waits = iter(AWAY_SECONDS)
        while True:
            asked = headers | {"Range": f"bytes={received}-"} if received else headers
            try:
                async for chunk in self._link.chunks(path, headers=asked):
                    digest.update(chunk)
                    received += len(chunk)
                    yield chunk
                break
            except Transient as error:
                # All of it came: the server broke off because it is not what it should be.
                if received and received >= reference.bytes:
                    break
                seconds = next(waits, None)
                if seconds is None:
                    raise
                log.info("the server does not answer", extra={"event": "payload.unavailable", "reason": str(error)})
                await asyncio.sleep(seconds)
        if digest.hexdigest() != reference.sha256:
            raise PayloadCorrupt(f"{reference.uri}: the server sent other bytes")

    async def exists(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bool:
        return await self.size_of(reference, tenant_id=tenant_id, organization_id=organization_id) is not None

    async def size_of(self, reference: Reference, *, tenant_id: str, organization_id: str) -> int | None:
        path = _path(reference.sha256, reference.store)
        headers = owner_headers(tenant_id, organization_id)
        return await _patiently(lambda: self._link.size(path, headers=headers))


def _path(sha256: str, store: str) -> str:
    path = f"/api/payloads/{sha256}"
    return path if store == STORE_ANY else f"{path}?store={quote(store, safe='')}"


def _plain(path: Path) -> io.BufferedReader:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


@contextmanager
def _temporary() -> Iterator[BinaryIO]:
    file = tempfile.TemporaryFile()  # noqa: SIM115  (closed below)
    try:
        yield file
    finally:
        with suppress(OSError):  # on a full disk it would try to write once more, and hide what went wrong
            file.close()


async def _spooled(chunks: AsyncIterator[bytes], file: BinaryIO) -> str:
    """Write a stream into a file; its digest."""
    digest = hashlib.sha256()

    def write(pieces: list[bytes]) -> None:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)

    waiting: list[bytes] = []
    size = 0
    try:
        async for chunk in chunks:
            waiting.append(chunk)
            size += len(chunk)
            if size >= SPOOL_BYTES:
                await asyncio.to_thread(write, waiting)
                waiting, size = [], 0
        await asyncio.to_thread(write, waiting)
        await asyncio.to_thread(file.flush)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageFull(f"no room for payloads in {tempfile.gettempdir()}, on their way to the server") from error
    return digest.hexdigest()


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again while the server is away for a moment: all of this can be asked twice, and a task should not fail for
    it.  Whether the work is still ours is for the session to say."""
    for seconds in AWAY_SECONDS:
        try:
            return await ask()
        except Transient as error:
            log.info("the server does not answer", extra={"event": "payload.unavailable", "reason": str(error)})
            await asyncio.sleep(seconds)
    return await ask()


async def _chunks_of(file: BinaryIO) -> AsyncIterator[bytes]:
    file.seek(0)
    while chunk := await asyncio.to_thread(file.read, SPOOL_BYTES):
        yield chunk


class HttpCredentials:
    """Sealed credentials of the server; the key stays here."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link

    async def find(self, name: str, *, tenant_id: str, organization_id: str) -> SealedCredential | None:
        path = f"/api/worker/credentials/{quote(name, safe='')}"
        try:
            headers = owner_headers(tenant_id, organization_id)
            found = await _patiently(lambda: self._link.ask("GET", path, headers=headers))
        except Refused as refused:
            if refused.is_not_found:
                return None
            raise
        try:
            return SealedCredential(
                name=str(found["name"]),
                type=str(found["type"]),
                tenant_id=str(found["tenant_id"]),
                organization_id=str(found["organization_id"]),
                key_id=str(found["key_id"]),
                nonce=base64.b64decode(str(found["nonce"]), validate=True),
                ciphertext=base64.b64decode(str(found["ciphertext"]), validate=True),
                updated_at=str(found["updated_at"]),
            )
        except (KeyError, ValueError) as error:
            raise HostUnavailable(f"the server's answer about a credential cannot be read: {error!r}") from error
