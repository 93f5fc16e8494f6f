"""What the collector of unreachable payloads needs: everything that names payloads, a place for long lists, and books
that outlast a run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from noetl.ports.data.payloads import CollectableStore, StoredObject


class Owner(NamedTuple):
    tenant_id: str
    organization_id: str


class RootText(NamedTuple):
    """Something that is never collected itself, and the texts of it that may name payloads of the same owner."""

    owner: Owner
    text: bytes


class Roots(Protocol):
    """Where reachability begins: the ledger, the catalog, the queue, the logs."""

    def pages(self) -> AsyncIterator[Sequence[RootText]]:
        """All of them, a bounded number at a time.  What is committed before the first page is asked for is in one of
        the pages; what comes later may be missing."""
        ...


class CollectedStore(CollectableStore, Protocol):
    """A store that is collected."""

    @property
    def name(self) -> str:
        """As references call it."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether reading costs so little that what was read need not be remembered."""
        ...

    def contents(
        self, digests: Sequence[str], *, owner: Owner
    ) -> AsyncIterator[tuple[str, AsyncGenerator[bytes, None]]]:
        """The bytes of payloads, piece by piece; one that is gone may be left out.  Each stream is closed before the
        next one is asked for, and raises PayloadMissing and PayloadCorrupt."""
        ...


class Held(NamedTuple):
    """An object in a store."""

    store: str
    owner: Owner
    object: StoredObject


class Named(NamedTuple):
    """A payload that is reachable and in a store, and whose own names are not known yet."""

    store: str
    owner: Owner
    sha256: str


class Holdings(Protocol):
    """Lists that are too long for memory: what the stores hold, and what is reachable.  They end with the run."""

    def hold(self, store: str, owner: Owner, objects: Iterable[StoredObject]) -> None: ...

    def mark(self, owner: Owner, digests: Iterable[str]) -> None:
        """These are reachable, whether any store holds them or not."""
        ...

    def expect(self, owner: Owner, references: Mapping[str, str]) -> None:
        """These are referred to, each in a store; to be told by `missing` if no store holds them."""
        ...

    def missing(self, limit: int) -> list[Named]:
        """Expected ones that nobody holds and that were never given out here before."""
        ...

    def unread(self, limit: int) -> list[Named]:
        """Reachable ones that were never given out here before."""
        ...

    def unreachable(self, size: int) -> Iterator[list[Held]]:
        """What is held and not marked, in pages of one store and owner each."""
        ...

    def counts(self) -> tuple[int, int]:
        """How many objects are held, and how many of them are marked."""
        ...


class Books(Protocol):
    """What a run knows of earlier runs."""

    async def now(self) -> float:
        """The clock that decides, in seconds since 1970."""
        ...

    async def working_since(self) -> float | None:
        """When the oldest command that is being worked on was issued; None when nobody works."""
        ...

    async def candidates(self, store: str, owner: Owner, digests: Sequence[str]) -> Mapping[str, float]:
        """Since when they are candidates, as far as they are."""
        ...

    async def record(self, store: str, owner: Owner, candidates: Mapping[str, float], *, now: float) -> None:
        """These are candidates, each since its time; seen again now."""
        ...

    async def forget(self, stores: Collection[str], *, before: float) -> None:
        """Candidates of these stores that were not seen again are none."""
        ...

    async def names(self, digests: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """What payloads name, as far as it was remembered: their bytes never change."""
        ...

    async def remember(self, names: Mapping[str, Sequence[str]]) -> None: ...

    async def forget_names(self, digests: Sequence[str]) -> None: ...


class Turn(Protocol):
    """The right to be the one collector."""

    async def check(self) -> None:
        """Raises LeaseLost when somebody else may be collecting by now."""
        ...


class Control(NamedTuple):
    """What a collector has in the database of the control plane, while it is its turn."""

    roots: Roots
    small: CollectedStore
    books: Books
    turn: Turn


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file that a process which ended too early left behind."""

    path: str
    bytes: int
    changed_at: float


class Leftovers(Protocol):
    """Unfinished uploads."""

    def find(self, *, before: float) -> Iterator[Leftover]: ...

    def remove(self, leftover: Leftover) -> None: ...
