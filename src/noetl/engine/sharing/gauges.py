"""How it stands: what only the database knows, asked for when somebody looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from noetl.core.errors import LedgerUnavailable
from noetl.engine.control.sessions import Sessions
from noetl.ports.clock import Clock
from noetl.ports.data.counters import Sample
from noetl.ports.durability.examination import Depth, Examination
from noetl.ports.serving.shards import OwnedShard, Shards

FRESH_SECONDS = 1.0
"""Several scrapers at once ask the database once."""


class ServerGauges:
    """When the database is away, what it would have said is left out: an old number is worse than none."""

    def __init__(self, examination: Examination, shards: Shards, sessions: Sessions, clock: Clock) -> None:
        self._examination = examination
        self._shards = shards
        self._sessions = sessions
        self._clock = clock
        self._asked_at = float("-inf")
        self._owned: Sequence[OwnedShard] = ()
        self._depths: Sequence[Depth] = ()
        self._due: int | None = None

    async def refresh(self) -> None:
        now = self._clock.monotonic()
        if now - self._asked_at < FRESH_SECONDS:
            return
        self._asked_at = now
        try:
            owned = await self._shards.look()
            depths, due = await self._examination.depths()
        except LedgerUnavailable:
            self._owned, self._depths, self._due = (), (), None
        else:
            self._owned, self._depths, self._due = owned, depths, due

    def samples(self) -> Iterator[Sample]:
        yield from self._of_sessions()
        for one in self._owned:
            labels = {"shard": str(one.head.shard_id)}
            if not one.is_free and one.owner_instance is not None:
                yield "noetl_shard_owner", {**labels, "instance": one.owner_instance}, 1
            undecided = one.head.next_position - 1 - one.head.decided_position
            yield "noetl_shard_undecided_events", labels, undecided
        for depth in self._depths:
            yield "noetl_queue_commands", {"pool": depth.pool, "state": "waiting"}, depth.waiting
            yield "noetl_queue_commands", {"pool": depth.pool, "state": "held"}, depth.held
        if self._due is not None:
            yield "noetl_timers_due", {}, self._due

    def _of_sessions(self) -> Iterator[Sample]:
        sessions, slots, free = Counter[str](), Counter[str](), Counter[str]()
        for held in self._sessions.connected.values():
            sessions[held.pool] += 1
            slots[held.pool] += held.slots
            free[held.pool] += held.free
        yield "noetl_sessions", {}, sessions.total()
        for pool in sorted(sessions):
            yield "noetl_session_slots", {"pool": pool, "state": "all"}, slots[pool]
            yield "noetl_session_slots", {"pool": pool, "state": "free"}, free[pool]
