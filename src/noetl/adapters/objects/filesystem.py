"""Payloads as files: written to a temporary name, synced, renamed, directory synced.  Then the event may name them.

A file is at `tenant/organization/first two digits/digest`, in a sealed form with the form's name behind a dot.  What is
being written is in `.incoming`, whose files are nobody's when they are old."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from noetl.adapters.objects.adopting import TakenFile, VerifiedFiles, chunks_of, taken
from noetl.adapters.objects.blobs import PLAIN, READ_BYTES, Owner, Pieces, Place, Seal, is_digest, segment, text_of
from noetl.adapters.objects.content import ContentPayloads
from noetl.adapters.objects.trouble import file_trouble
from noetl.core.locator import payload_locator
from noetl.core.reference import Reference
from noetl.core.storage import FILE
from noetl.points import point
from noetl.ports.data.payloads import StoredObject

INCOMING = ".incoming"
LEFT_SECONDS = 24 * 3600.0
"""A stream that has not grown for this long belongs to no living process."""
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class FilePayloads(ContentPayloads):
    def __init__(self, root: Path, *, seal: Seal | None = None) -> None:
        self._files = FileBlobs(root)
        super().__init__(self._files, name=FILE, seal=seal)
        self._hashed_files = VerifiedFiles()

    async def put_file(self, path: Path, *, media_type: str, tenant_id: str, organization_id: str) -> Reference:
        """Without a copy when it can be renamed; what is sealed, or comes from another file system, is written anew."""
        if self._form == PLAIN:
            owned = Owner(tenant_id, organization_id)
            found = await asyncio.to_thread(_adopted, self._files, path, owned, self._hashed_files)
            if found is not None:
                sha256, size = found
                uri = payload_locator(tenant_id, organization_id, sha256)
                return Reference(
                    kind="payload", uri=uri, sha256=sha256, media_type=media_type, bytes=size, store=self.name
                )
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        reference = await self.put_stream(chunks_of(path), media_type=media_type, **owner)
        await asyncio.to_thread(path.unlink, missing_ok=True)
        return reference

    async def file_of(self, reference: Reference, *, tenant_id: str, organization_id: str) -> Path | None:
        if self._form != PLAIN:
            return None
        owner = Owner(tenant_id, organization_id)
        place = Place(owner, reference.sha256)
        path = self._files.path(place)

        def look() -> tuple[str, int]:
            with file_trouble(path.parent):
                return self._hashed_files.digest(path)

        try:
            sha256, size = await asyncio.to_thread(look)
        except FileNotFoundError:
            raise await self._absent(owner, reference) from None
        if size != reference.bytes:
            raise self._damaged(place, f"{reference.uri} has {size:,} bytes and not {reference.bytes:,}")
        if sha256 != reference.sha256:
            raise self._damaged(place, f"{reference.uri}: the stored bytes have another digest")
        return path


class FileBlobs:
    """`is_durable` is False for a cache: what a power failure tears there is found out and fetched again."""

    def __init__(self, root: Path, *, is_durable: bool = True) -> None:
        self._root = root
        self._is_durable = is_durable
        self.doubted: set[Place] = set()

    async def put(self, place: Place, *, size: int, pieces: Pieces) -> None:
        await asyncio.to_thread(self._write, place, size, pieces)

    async def incoming(self, owner: Owner, *, reserved: int) -> _Incoming:  # noqa: ARG002
        return await asyncio.to_thread(self._open, reserved)

    async def read(self, place: Place, *, offset: int = 0, length: int | None = None) -> bytes:
        return await asyncio.to_thread(self._read, self.path(place), offset, length)

    async def stream(self, place: Place) -> AsyncIterator[bytes]:
        path = self.path(place)
        file = await asyncio.to_thread(_opened, path)
        with file:
            while chunk := await asyncio.to_thread(_next, file, path):
                yield chunk

    async def size(self, place: Place) -> int | None:
        def look() -> int:
            with file_trouble(self._root):
                return self.path(place).stat().st_size

        try:
            return await asyncio.to_thread(look)
        except FileNotFoundError:
            return None

    async def forms(self, owner: Owner, sha256: str) -> list[str]:
        def look() -> list[str]:
            with file_trouble(self._root):
                return [form for name, form in _names(self._folder(owner, sha256)) if name == sha256]

        return await asyncio.to_thread(look)

    async def owners(self) -> AsyncIterator[tuple[str, str]]:
        for tenant in await asyncio.to_thread(_folders, self._root):
            for organization in await asyncio.to_thread(_folders, tenant):
                yield text_of(tenant.name), text_of(organization.name)

    async def objects(self, owner: Owner) -> AsyncIterator[StoredObject]:
        for folder in await asyncio.to_thread(_folders, self._owner(owner)):
            for found in await asyncio.to_thread(_objects, folder):
                yield found

    async def delete(self, owner: Owner, sha256: str, *, renewed_before: float) -> bool:
        return await asyncio.to_thread(_delete, self._folder(owner, sha256), sha256, renewed_before)

    async def prepare(self) -> None:
        def make() -> None:
            with file_trouble(self._root):
                (self._root / INCOMING).mkdir(parents=True, exist_ok=True)
                _sweep(self._root / INCOMING)

        await asyncio.to_thread(make)

    # --- paths ---------------------------------------------------------------------------------------------

    def path(self, place: Place) -> Path:
        name = place.sha256 if place.form == PLAIN else f"{place.sha256}.{place.form}"
        return self._folder(place.owner, place.sha256) / name

    def _owner(self, owner: Owner) -> Path:
        return self._root / segment(owner.tenant_id) / segment(owner.organization_id)

    def _folder(self, owner: Owner, sha256: str) -> Path:
        return self._owner(owner) / sha256[:2]

    # --- in threads ----------------------------------------------------------------------------------------

    def _open(self, reserved: int) -> _Incoming:
        with file_trouble(self._root):
            folder = self._root / INCOMING
            folder.mkdir(parents=True, exist_ok=True)
            return _Incoming(self, folder / secrets.token_hex(16), reserved)

    def _write(self, place: Place, size: int, pieces: Pieces) -> None:
        with file_trouble(self._root):
            if self._is_renewed(place, size):
                return
            incoming = self._open(0)
            try:
                incoming.write_now(pieces())
                self.settle(incoming, place, size=size)
            finally:
                incoming.drop_now()

    def settle(self, incoming: _Incoming | TakenFile, place: Place, *, size: int, head: bytes = b"") -> None:
        """The rename that makes a payload exist, and the syncs that make it stay."""
        if self._is_renewed(place, size):
            return
        point("payload.written")
        incoming.end(head, is_synced=self._is_durable)
        point("payload.synced")
        path = self.path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent, fcntl.LOCK_SH):
            incoming.path.replace(path)
        point("payload.renamed")
        self.doubted.discard(place)
        self._sync_folders(path)
        point("payload.settled")

    def _is_renewed(self, place: Place, size: int) -> bool:
        """Is the content there?  Reuse renews its time, so that a collector's grace starts again."""
        path = self.path(place)
        try:
            with _locked(path.parent, fcntl.LOCK_SH):
                if path.stat().st_size != size or place in self.doubted:
                    return False
                os.utime(path)
        except FileNotFoundError:
            return False
        # Who renamed it may have died before it synced the folders.
        self._sync_folders(path)
        return True

    def _sync_folders(self, path: Path) -> None:
        if self._is_durable:
            # Up to the root, for each of these folders may be new.
            for folder in (path.parent, *path.parents[1:4]):
                _sync(folder)

    @staticmethod
    def _read(path: Path, offset: int, length: int | None) -> bytes:
        with file_trouble(path.parent), path.open("rb") as file:
            if offset:
                file.seek(offset)
            return file.read() if length is None else file.read(length)


class _Incoming:
    """A file whose name is not known yet."""

    def __init__(self, blobs: FileBlobs, path: Path, reserved: int) -> None:
        self._blobs = blobs
        self.path = path
        # Buffered on purpose: its lock makes `drop` wait for a write that a cancelled call left in a thread.
        self._file: BinaryIO = path.open("wb")
        if reserved:
            self._file.seek(reserved)

    async def write(self, pieces: Sequence[bytes]) -> None:
        await asyncio.to_thread(self._explained, self.write_now, pieces)

    async def settle(self, place: Place, *, size: int, head: bytes) -> None:
        await asyncio.to_thread(self._explained, partial(self._blobs.settle, size=size, head=head), self, place)

    async def drop(self) -> None:
        # Not in a thread, which a cancelled task could not wait for.
        self.drop_now()

    def _explained(self, act: Callable[..., None], *arguments: object) -> None:
        with file_trouble(self.path.parents[1]):
            act(*arguments)

    def write_now(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self._file.write(piece)

    def end(self, head: bytes, *, is_synced: bool) -> None:
        if head:
            self._file.seek(0)
            self._file.write(head)
        self._file.flush()
        if is_synced:
            os.fsync(self._file.fileno())
        self._file.close()

    def drop_now(self) -> None:
        """Leave nothing behind of a stream that broke off; a settled one has left nothing."""
        # On a full disk closing fails as well, because of what is still in the buffer.
        with contextlib.suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


def _adopted(blobs: FileBlobs, given: Path, owner: Owner, verified: VerifiedFiles) -> tuple[str, int] | None:
    """Make a file a payload without copying it; its digest and size.  None when that is not possible."""
    root = blobs._root
    with file_trouble(root):
        folder = root / INCOMING
        folder.mkdir(parents=True, exist_ok=True)
        found = taken(given, folder / secrets.token_hex(16))
        if found is None:
            return None
        try:
            sha256, size = found.digest()
            place = Place(owner, sha256)
            blobs.settle(found, place, size=size)
            if blobs.path(place).stat().st_ino == found.identity()[1]:
                verified.note(found.identity(), sha256)
            found.forget_now()
        finally:
            found.drop_now()
        return sha256, size


def _sweep(folder: Path) -> None:
    """Remove what ended processes left."""
    oldest = time.time() - LEFT_SECONDS
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):
            if entry.stat(follow_symlinks=False).st_mtime < oldest:
                os.unlink(entry.path)


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[None]:
    """Putting shares a folder, deleting has it alone: nothing is renewed or renamed between the look at its time and
    its end.  A file system without locks is used without them."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, kind)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _opened(path: Path) -> BinaryIO:
    with file_trouble(path.parent):
        return path.open("rb")


def _next(file: BinaryIO, path: Path) -> bytes:
    with file_trouble(path.parent):
        return file.read(READ_BYTES)


def _folders(folder: Path) -> list[Path]:
    with file_trouble(folder):
        try:
            return sorted(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
        except FileNotFoundError:
            return []


def _names(folder: Path) -> list[tuple[str, str]]:
    """Digest and form of every payload in a folder."""
    try:
        found = [entry.partition(".") for entry in os.listdir(folder)]
    except FileNotFoundError:
        return []
    return [(name, form) for name, _, form in found if is_digest(name)]


def _objects(folder: Path) -> list[StoredObject]:
    found: dict[str, StoredObject] = {}
    with file_trouble(folder):
        for name, form in _names(folder):
            try:
                stat = (folder / (f"{name}.{form}" if form else name)).stat()
            except FileNotFoundError:
                continue
            other = found.get(name, StoredObject(name, 0, 0.0))
            found[name] = StoredObject(name, other.bytes + stat.st_size, max(other.renewed_at, stat.st_mtime))
    return list(found.values())


def _delete(folder: Path, sha256: str, renewed_before: float) -> bool:
    with file_trouble(folder):
        try:
            with _locked(folder, fcntl.LOCK_EX):
                paths = [
                    folder / (f"{name}.{form}" if form else name) for name, form in _names(folder) if name == sha256
                ]
                if any(path.stat().st_mtime >= renewed_before for path in paths):
                    return False
                for path in paths:
                    path.unlink()
        except FileNotFoundError:
            pass
    return True
