"""How it stands: what only the database knows, asked for when somebody looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from noetl.core.errors import LedgerUnavailable
from noetl.engine.control.sessions import Sessions
from noetl.ports.clock import Clock
from noetl.ports.data.counters import Sample
from noetl.ports.durability.examination import Depths, Examination, FrameDepth
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
        self._depths: Depths | None = None

    async def refresh(self) -> None:
        now = self._clock.monotonic()
        if now - self._asked_at < FRESH_SECONDS:
            return
        self._asked_at = now
        try:
            owned = await self._shards.look()
            depths = await self._examination.depths()
        except LedgerUnavailable:
            self._owned, self._depths = (), None
        else:
            self._owned, self._depths = owned, depths

    def samples(self) -> Iterator[Sample]:
        yield from self._of_sessions()
        for one in self._owned:
            labels = {"shard": str(one.head.shard_id)}
            if not one.is_free and one.owner_instance is not None:
                yield "noetl_shard_owner", {**labels, "instance": one.owner_instance}, 1
            undecided = one.head.next_position - 1 - one.head.decided_position
            yield "noetl_shard_undecided_events", labels, undecided
        if self._depths is None:
            return
        for depth in self._depths.pools:
            yield "noetl_queue_commands", {"pool": depth.pool, "state": "waiting"}, depth.waiting
            yield "noetl_queue_commands", {"pool": depth.pool, "state": "held"}, depth.held
        yield "noetl_timers_due", {}, self._depths.timers_due
        yield from _backlog(self._depths.frames)

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


def _backlog(frames: Sequence[FrameDepth]) -> Iterator[Sample]:
    """By kind and state; the series for all of it is there when there is none, so that whoever scales by it sees a
    zero.  Tenants are in a metric of their own: they may be many."""
    total: Counter[tuple[str, str]] = Counter()
    for one in frames:
        owner = {"tenant_id": one.tenant_id, "organization_id": one.organization_id}
        for status, count in (("waiting", one.waiting), ("held", one.held)):
            total[one.stage_kind, status] += count
            labels = {**owner, "stage_kind": one.stage_kind, "status": status}
            yield "noetl_frame_backlog_detail_total", labels, count
    for (stage_kind, status), count in sorted(total.items()):
        yield "noetl_frame_backlog_total", {"stage_kind": stage_kind, "status": status}, count
    yield "noetl_frame_backlog_total", {"stage_kind": "all", "status": "all"}, total.total()
