"""What the collector needs, in memory: roots, books, a turn, and a store whose objects have times."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence

from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults
from noetl.adapters.memory.payloads import Contents, MemoryPayloads
from noetl.core.codec import parse_json
from noetl.core.reference import Payload
from noetl.ports.data.collection import Owner, RootText
from noetl.ports.data.payloads import StoredObject

Times = dict[tuple[str, str, str], float]
ROWS = 10


class MemoryRoots:
    """The ledger and the queue, some rows at a time: what is appended between two pages may be missed."""

    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._tables = database.tables
        self._faults = faults or Faults()

    async def pages(self) -> AsyncIterator[Sequence[RootText]]:
        texts = [
            RootText(Owner(row.command.tenant_id, row.command.organization_id), row.command.body.encode())
            for row in self._tables.commands.values()
        ]
        yield await self._faults.around("read_roots", lambda: texts)
        execution_ids = sorted(self._tables.events)
        for start in range(0, len(execution_ids), ROWS):
            chosen = execution_ids[start : start + ROWS]
            yield await self._faults.around("read_roots", lambda chosen=chosen: self._events(chosen))  # type: ignore[misc]

    def _events(self, execution_ids: Sequence[int]) -> list[RootText]:
        found = []
        for execution_id in execution_ids:
            for row in self._tables.events.get(execution_id, ()):
                document = parse_json(row.text)
                assert isinstance(document, dict)
                owner = Owner(document["tenant_id"], document["organization_id"])
                found.append(RootText(owner, row.text.encode()))
        return found


class TimedPayloads(MemoryPayloads):
    """Payloads with the time of their last put.  One that is younger than `renewal_seconds` is not renewed."""

    is_local = False

    def __init__(
        self,
        contents: Contents,
        times: Times,
        *,
        name: str,
        clock: VirtualClock,
        faults: Faults | None = None,
        renewal_seconds: float = 0.0,
    ) -> None:
        super().__init__(contents, faults)
        self.name = name
        self._times = times
        self._clock = clock
        self._renewal_seconds = renewal_seconds

    async def put(self, payload: Payload) -> None:
        await self._faults.around("put", lambda: self._put(payload))

    def _put(self, payload: Payload) -> None:
        key = (payload.tenant_id, payload.organization_id, payload.reference.sha256)
        now = self._clock.moment().timestamp()
        if key not in self._contents or self._times[key] < now - self._renewal_seconds:
            self._times[key] = now
        self._contents.setdefault(key, payload.content)

    async def owners(self) -> AsyncIterator[tuple[str, str]]:
        for owner in sorted({key[:2] for key in self._contents}):
            yield owner

    async def objects(self, *, tenant_id: str, organization_id: str) -> AsyncIterator[StoredObject]:
        for key in sorted(self._contents):
            if key[:2] == (tenant_id, organization_id) and key in self._contents:
                found = StoredObject(key[2], len(self._contents[key]), self._times[key])
                yield await self._faults.around("list", lambda found=found: found)  # type: ignore[misc]

    async def delete(self, sha256: str, *, renewed_before: float, tenant_id: str, organization_id: str) -> bool:
        key = (tenant_id, organization_id, sha256)
        return await self._faults.around("delete", lambda: self._delete(key, renewed_before))

    def _delete(self, key: tuple[str, str, str], renewed_before: float) -> bool:
        if key in self._contents and self._times[key] < renewed_before:
            del self._contents[key], self._times[key]
        return key not in self._contents

    async def contents(
        self, digests: Sequence[str], *, owner: Owner
    ) -> AsyncIterator[tuple[str, AsyncGenerator[bytes, None]]]:
        for sha256 in digests:
            if (*owner, sha256) in self._contents:
                yield sha256, _once(self._contents[(*owner, sha256)])


async def _once(content: bytes) -> AsyncGenerator[bytes, None]:
    yield content


class MemoryBooks:
    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._candidates: dict[tuple[str, Owner, str], tuple[float, float]] = {}
        self._names: dict[str, Sequence[str]] = {}

    async def now(self) -> float:
        return self._clock.moment().timestamp()

    async def working_since(self) -> float | None:
        return None

    async def candidates(self, store: str, owner: Owner, digests: Sequence[str]) -> Mapping[str, float]:
        keys = {sha256: (store, owner, sha256) for sha256 in digests}
        return {sha256: self._candidates[key][0] for sha256, key in keys.items() if key in self._candidates}

    async def record(self, store: str, owner: Owner, candidates: Mapping[str, float], *, now: float) -> None:
        self._candidates.update({(store, owner, sha256): (since, now) for sha256, since in candidates.items()})

    async def forget(self, stores: Collection[str], *, before: float) -> None:
        for key, (_, confirmed_at) in list(self._candidates.items()):
            if key[0] in stores and confirmed_at < before:
                del self._candidates[key]

    async def names(self, digests: Sequence[str]) -> Mapping[str, Sequence[str]]:
        return {sha256: self._names[sha256] for sha256 in digests if sha256 in self._names}

    async def remember(self, names: Mapping[str, Sequence[str]]) -> None:
        self._names.update(names)

    async def forget_names(self, digests: Sequence[str]) -> None:
        for sha256 in digests:
            self._names.pop(sha256, None)


class MemoryTurn:
    async def check(self) -> None:
        """Nobody else is there."""
