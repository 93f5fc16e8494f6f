"""What stands below a content-addressed store: objects by owner, digest and form, whatever is in them.  Nothing of a
user's text becomes a name by itself.

An object that is not there is a FileNotFoundError, on every kind of store.  Other trouble is already one of our errors:
StorageFull and StoreUnavailable may pass, StoreRefused does not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, unquote

from noetl.core.errors import StoreRefused
from noetl.ports.data.payloads import StoredObject

READ_BYTES = 1024 * 1024
PLAIN = ""
SEGMENT_CHARS_MAX = 240
_NOTHING = "%"
_HEX = frozenset("0123456789abcdef")
Pieces = Callable[[], Sequence[bytes]]
"""Makes the bytes of an object.  Called only when they are needed, in a thread."""


@dataclass(frozen=True, slots=True)
class Owner:
    tenant_id: str
    organization_id: str


@dataclass(frozen=True, slots=True)
class Place:
    """One object: a payload of an owner, in plain or in a sealed form."""

    owner: Owner
    sha256: str
    form: str = PLAIN

    def __post_init__(self) -> None:
        assert is_digest(self.sha256), "a payload is named by its lower-case SHA-256"


def is_digest(text: str) -> bool:
    return len(text) == 64 and _HEX.issuperset(text)


def segment(text: str) -> str:
    """One folder of a path.  No folder of an owner begins with a dot: those that do are the store's own."""
    name = quote(text, safe="").replace(".", "%2E") or _NOTHING
    if len(name) > SEGMENT_CHARS_MAX:
        raise StoreRefused(f"the name of a tenant or organization has more than {SEGMENT_CHARS_MAX} encoded characters")
    return name


def text_of(name: str) -> str:
    return "" if name == _NOTHING else unquote(name)


class Incoming(Protocol):
    """Bytes whose name is not known yet.  `drop` it in any case: after `settle` it leaves the object alone."""

    async def write(self, pieces: Sequence[bytes]) -> None: ...

    async def settle(self, place: Place, *, size: int, head: bytes) -> None:
        """Give the bytes their name, with a head in the room that was reserved before them."""
        ...

    async def drop(self) -> None: ...


class Blobs(Protocol):
    doubted: set[Place]
    """Objects of which a reader found that they are damaged: the next who puts one writes it again."""

    async def put(self, place: Place, *, size: int, pieces: Pieces) -> None:
        """Durable when this returns.  An object of this place and size is not written again: its time is renewed."""
        ...

    async def incoming(self, owner: Owner, *, reserved: int) -> Incoming: ...

    async def read(self, place: Place, *, offset: int = 0, length: int | None = None) -> bytes:
        """Fewer bytes than asked for when there are no more."""
        ...

    def stream(self, place: Place) -> AsyncIterator[bytes]: ...

    async def size(self, place: Place) -> int | None: ...

    async def forms(self, owner: Owner, sha256: str) -> list[str]:
        """In which forms there is a payload."""
        ...

    def owners(self) -> AsyncIterator[tuple[str, str]]: ...

    def objects(self, owner: Owner) -> AsyncIterator[StoredObject]: ...

    async def delete(self, owner: Owner, sha256: str, *, renewed_before: float) -> bool: ...

    async def prepare(self) -> None:
        """Remove what ended processes left half-written long ago.  Raises StoreRefused when this store can never work
        as it is configured."""
        ...


class Sealing(Protocol):
    def seal(self, piece: bytes) -> bytes: ...

    def rest(self) -> bytes: ...

    def head(self, sha256: str) -> bytes: ...


class Opening(Protocol):
    size: int

    def span(self, offset: int, length: int) -> tuple[int, int]: ...

    def part(self, offset: int, length: int, sealed: bytes) -> bytes: ...

    def chunks(self, first: int, sealed: bytes) -> bytes: ...


class Seal(Protocol):
    """Encryption of whole objects, in chunks that can be opened one by one."""

    key_id: str
    head_bytes: int
    chunk_bytes: int
    """Of a sealed chunk."""

    def sealing(self, *, tenant_id: str, organization_id: str) -> Sealing: ...

    def opening(self, head: bytes, *, sha256: str, tenant_id: str, organization_id: str) -> Opening: ...

    def sealed_size(self, size: int) -> int: ...

    def plain_size(self, sealed: int) -> int: ...
