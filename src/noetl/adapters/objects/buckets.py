"""Objects in a bucket, by way of obstore: S3 and its like, Google, Azure, and memory.

    tenant/organization/digest                  the payload in plain
    tenant/organization/digest.sealed/form      a sealed form of it
    ….renewed                                   an empty object whose time says when its neighbour was last put again
    ….deleted                                   a copy that lives while its neighbour is being deleted

No store renews an object's time without writing it (S3 refuses to copy one onto itself), and none that obstore knows
deletes one only if it is old.  Hence the neighbours.  Who puts what exists writes the mark, then looks whether the
object is still there.  Who deletes copies, deletes, then looks at the mark, and puts the copy back when it is new.
Whatever the order of these four, an object that somebody was told is there stays, and a reader finds it or its copy."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore

from noetl.adapters.objects.blobs import PLAIN, READ_BYTES, Owner, Pieces, Place, is_digest, segment, text_of
from noetl.adapters.objects.trouble import file_trouble, is_absent, is_behind_end, object_error
from noetl.ports.data.payloads import StoredObject

if TYPE_CHECKING:
    from obstore import GetOptions

ONE_REQUEST_BYTES = 8 * 1024 * 1024
"""What is larger goes up in parts of this size, a few at a time, and is looked for first."""
LOOK_FIRST_BYTES = 1024 * 1024
PARTS_AT_ONCE = 4
RENEWED, DELETED, SEALED = ".renewed", ".deleted", ".sealed/"
Source = Callable[[], Iterator[bytes] | IO[bytes]]
"""Gives the bytes of an object from their beginning.  Called in a thread."""
T = TypeVar("T")


class ObjectBlobs:
    """`where` is what messages call the store: kind and bucket."""

    def __init__(self, store: ObjectStore, *, where: str, prefix: str = "") -> None:
        self._store = store
        self._where = where
        self._base = f"{prefix}/" if prefix else ""
        self._creating: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.doubted: set[Place] = set()

    async def put(self, place: Place, *, size: int, pieces: Pieces) -> None:
        await self.store(place, size=size, source=lambda: iter(pieces()))

    async def store(self, place: Place, *, size: int, source: Source) -> None:
        """Put what a source gives, unless it is there."""
        key, is_doubted = self._key(place), place in self.doubted
        if size > LOOK_FIRST_BYTES and not is_doubted and await self._is_renewed(key, size):
            return
        if size > ONE_REQUEST_BYTES:
            await self._upload(key, await asyncio.to_thread(source))
        else:
            content = await asyncio.to_thread(lambda: b"".join(source()))
            await self._create(key, size, content, is_doubted=is_doubted)
        self.doubted.discard(place)

    async def incoming(self, owner: Owner, *, reserved: int) -> _Incoming:  # noqa: ARG002
        return _Incoming(self, reserved)

    async def read(self, place: Place, *, offset: int = 0, length: int | None = None) -> bytes:
        options: GetOptions = {} if length is None else {"range": (offset, offset + length)}
        try:
            found = await self._get(self._key(place), options)
        except EOFError:
            return b""
        return bytes(await self._ask(found.bytes_async()))

    async def stream(self, place: Place) -> AsyncIterator[bytes]:
        found = await self._get(self._key(place), {})
        chunks = aiter(found.stream(min_chunk_size=READ_BYTES))
        with contextlib.suppress(StopAsyncIteration):
            while True:
                yield bytes(await self._ask(anext(chunks)))

    async def size(self, place: Place) -> int | None:
        """Of the object, or of its copy while it is being deleted: what can be read is there."""
        key = self._key(place)
        found = await self._find(key) or await self._find(key + DELETED)
        return None if found is None else int(found["size"])

    async def forms(self, owner: Owner, sha256: str) -> list[str]:
        found = [] if await self.size(Place(owner, sha256)) is None else [PLAIN]
        return found + [key.rpartition("/")[2] for key in await self._sealed(owner, sha256)]

    async def owners(self) -> AsyncIterator[tuple[str, str]]:
        for tenant in await self._folders(self._base.rstrip("/")):
            for organization in await self._folders(tenant):
                yield text_of(tenant.rpartition("/")[2]), text_of(organization.rpartition("/")[2])

    async def objects(self, owner: Owner) -> AsyncIterator[StoredObject]:
        """A listing is in the order of the keys, so everything about one digest comes together."""
        folder = self._folder(owner)
        last: StoredObject | None = None
        async for entry in self._list(folder):
            sha256 = str(entry["path"]).removeprefix(f"{folder}/")[:64]
            if not is_digest(sha256):
                continue
            if last is not None and last.sha256 != sha256:
                yield last
                last = None
            known = last or StoredObject(sha256, 0, 0.0)
            moment = max(known.renewed_at, _moment(entry["last_modified"]))
            last = StoredObject(sha256, known.bytes + int(entry["size"]), moment)
        if last is not None:
            yield last

    async def delete(self, owner: Owner, sha256: str, *, renewed_before: float) -> bool:
        is_gone = True
        for key in (self._key(Place(owner, sha256)), *await self._sealed(owner, sha256)):
            is_gone = await self._remove(key, renewed_before) and is_gone
        return is_gone

    async def prepare(self) -> None:
        """Nothing is half-written here, an object exists when it is complete; but what is refused now stays refused."""
        await self._ask(obstore.list_with_delimiter_async(self._store, self._base.rstrip("/") or None))

    # --- keys ----------------------------------------------------------------------------------------------

    def _folder(self, owner: Owner) -> str:
        return f"{self._base}{segment(owner.tenant_id)}/{segment(owner.organization_id)}"

    def _key(self, place: Place) -> str:
        key = f"{self._folder(place.owner)}/{place.sha256}"
        return key if place.form == PLAIN else f"{key}{SEALED}{place.form}"

    async def _sealed(self, owner: Owner, sha256: str) -> list[str]:
        folder = f"{self._folder(owner)}/{sha256}{SEALED}".rstrip("/")
        keys = {str(entry["path"]).removesuffix(RENEWED).removesuffix(DELETED) async for entry in self._list(folder)}
        return sorted(keys)

    async def _folders(self, prefix: str) -> list[str]:
        found = await self._ask(obstore.list_with_delimiter_async(self._store, prefix or None))
        return [str(one) for one in found["common_prefixes"]]

    async def _list(self, prefix: str) -> AsyncIterator[Any]:
        chunks = aiter(obstore.list(self._store, prefix, chunk_size=1_000))
        with contextlib.suppress(StopAsyncIteration):
            while True:
                for entry in await self._ask(anext(chunks)):
                    yield entry

    # --- putting and deleting ------------------------------------------------------------------------------

    async def _create(self, key: str, size: int, content: bytes, *, is_doubted: bool) -> None:
        """In one request, unless it is there."""
        # One at a time: stores answer slowly when many create one object at once, and only one of them can.
        async with self._creating.setdefault(key, asyncio.Lock()):
            try:
                await self._ask(obstore.put_async(self._store, key, content, mode="create", use_multipart=False))
            except AlreadyExistsError:
                if is_doubted or not await self._is_renewed(key, size):
                    await self._ask(obstore.put_async(self._store, key, content, use_multipart=False))

    async def _upload(self, key: str, source: Any) -> None:
        """In parts.  Two who do this at once write the same content."""
        await self._ask(
            obstore.put_async(
                self._store,
                key,
                source,
                use_multipart=True,
                chunk_size=ONE_REQUEST_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )
        )

    async def _is_renewed(self, key: str, size: int) -> bool:
        """Is the content there, with a time that says now?"""
        if not self._is_whole(await self._find(key), size):
            return False
        await self._ask(obstore.put_async(self._store, key + RENEWED, b"", use_multipart=False))
        # Only what is there behind the mark was not being deleted before it.
        return self._is_whole(await self._find(key), size)

    @staticmethod
    def _is_whole(found: Any, size: int) -> bool:
        return found is not None and int(found["size"]) == size

    async def _remove(self, key: str, renewed_before: float) -> bool:
        live, copy = await self._find(key), await self._find(key + DELETED)
        if live is None and copy is None:
            await self._drop(key + RENEWED)
            return True
        moments = [_moment(one["last_modified"]) for one in (live, await self._find(key + RENEWED)) if one is not None]
        if live is not None and max(moments) < renewed_before:
            await self._ask(obstore.copy_async(self._store, key, key + DELETED))
            await self._drop(key)
            live, copy = None, True
        mark = await self._find(key + RENEWED)
        is_wanted = mark is not None and _moment(mark["last_modified"]) >= renewed_before
        if copy is not None and live is None and is_wanted:
            await self._ask(obstore.copy_async(self._store, key + DELETED, key))
        await self._drop(key + DELETED)
        if live is not None or is_wanted:
            return False
        await self._drop(key + RENEWED)
        return True

    async def _drop(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            await self._ask(obstore.delete_async(self._store, key))

    # --- requests ------------------------------------------------------------------------------------------

    async def _ask(self, request: Awaitable[T]) -> T:
        """Every request goes through here: its trouble becomes ours.  EOFError is a range behind the end."""
        try:
            return await request
        except (BaseError, OSError) as error:
            if is_absent(error) or isinstance(error, AlreadyExistsError):
                raise
            if is_behind_end(error):
                raise EOFError from None
            raise object_error(error, self._where) from None

    async def _find(self, key: str) -> Any:
        try:
            return await self._ask(obstore.head_async(self._store, key))
        except FileNotFoundError:
            return None

    async def _get(self, key: str, options: GetOptions) -> Any:
        """The object, or its copy while it is being deleted."""
        try:
            return await self._ask(obstore.get_async(self._store, key, options=options))
        except FileNotFoundError:
            return await self._ask(obstore.get_async(self._store, key + DELETED, options=options))


class _Incoming:
    """Bytes that wait on this machine until their digest is known: in memory, then in a file that has no name."""

    def __init__(self, blobs: ObjectBlobs, reserved: int) -> None:
        self._blobs = blobs
        spool: Any = tempfile.SpooledTemporaryFile(max_size=ONE_REQUEST_BYTES)  # noqa: SIM115, closed by drop
        self._file: IO[bytes] = spool
        self._file.write(bytes(reserved))

    async def write(self, pieces: Sequence[bytes]) -> None:
        await asyncio.to_thread(self._write, pieces)

    def _write(self, pieces: Sequence[bytes]) -> None:
        with file_trouble(f"{tempfile.gettempdir()}, on their way to a bucket"):
            for piece in pieces:
                self._file.write(piece)

    async def settle(self, place: Place, *, size: int, head: bytes) -> None:
        await self._blobs.store(place, size=size, source=lambda: self._from_start(head))

    def _from_start(self, head: bytes) -> IO[bytes]:
        with file_trouble(f"{tempfile.gettempdir()}, on their way to a bucket"):
            self._file.seek(0)
            self._file.write(head)
            self._file.seek(0)
        return self._file

    async def drop(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def _moment(time: datetime) -> float:
    """Times of most stores are whole seconds, cut off: rounded up, nothing looks older than it is."""
    return time.timestamp() + (0.0 if time.microsecond else 1.0)
