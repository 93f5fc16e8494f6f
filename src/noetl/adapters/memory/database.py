"""The two statements that change the tables, `append` and `advance`.  Each call is one transaction: it is
applied whole, or it raises and nothing has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.memory.derived import derive, requests
from noetl.adapters.memory.tables import StoredEvent, Stream, Tables, check_row, same_content
from noetl.core import limits
from noetl.core.errors import EnvelopeInvalid, LedgerBusy, LedgerUnavailable, TransitionConflict
from noetl.core.event import Sealed
from noetl.core.kinds import KINDS
from noetl.core.reference import Payload
from noetl.ports.durability.checkpoints import Checkpoint
from noetl.ports.ledger import Advance, AppendOutcome, Fence, LeftOut, Offer, ShardHead

Observer = Callable[[Sequence[StoredEvent]], None]


class MemoryDatabase:
    """What survives a crash: the tables, and nothing that a process knows."""

    def __init__(self, *, clock: VirtualClock, shard_count: int) -> None:
        self.clock = clock
        self.tables = Tables(
            heads={shard: ShardHead(shard, 1, 0, 0) for shard in range(shard_count)},
            locked=frozenset(),
            held={},
            shards={shard: [] for shard in range(shard_count)},
        )
        # Called after every commit with the new rows: a checker sees each of them and not only the end.
        self.observers: list[Observer] = []

    def own_shards(self) -> list[ShardHead]:
        """Take every shard: the epoch rises, and whatever an earlier owner still tries fails on the fence."""
        heads = self.tables.heads
        for shard_id, head in heads.items():
            heads[shard_id] = replace(head, epoch=head.epoch + 1)
        return [heads[shard_id] for shard_id in sorted(heads)]

    # --- append ------------------------------------------------------------------------------------------

    def append(self, offers: Sequence[Offer]) -> AppendOutcome:
        """Append what is new of every offer, leaving out what is stored; an offer is refused as a whole."""
        heads = self.tables.heads
        self.refuse_locked(offer.shard_id for offer in offers)
        for offer in offers:
            if offer.shard_id not in heads:
                raise EnvelopeInvalid(f"there is no shard {offer.shard_id}: nothing was appended to it")
        first = {offer.shard_id: heads[offer.shard_id].next_position for offer in offers}
        left_out: dict[int, LeftOut] = {}
        fresh: list[tuple[Sealed, int]] = []
        payloads: list[Payload] = []
        number = 0
        for offer in offers:
            found = [self._judged(offer, sealed, number + n) for n, sealed in enumerate(offer.events)]
            number += len(found)
            left_out.update({one.number: one for one in found if one is not None})
            if any(one is not None and not one.is_same for one in found):
                continue
            new = [sealed for sealed, one in zip(offer.events, found, strict=True) if one is None]
            fresh.extend((sealed, offer.shard_id) for sealed in new)
            payloads.extend(offer.payloads if new else ())
        self._check_new([sealed for sealed, _ in fresh])
        self._store_payloads(payloads)
        rows = [self._append_one(sealed, shard_id) for sealed, shard_id in fresh]
        self._observe(rows)
        return AppendOutcome(first_positions=first, left_out=left_out)

    def _judged(self, offer: Offer, sealed: Sealed, number: int) -> LeftOut | None:
        """Why an event is left out; None when it may be appended."""
        event = sealed.event
        stream = self.tables.streams.get(event.execution_id, Stream(offer.shard_id, 0, False))
        stored = self.tables.transitions.get((event.execution_id, event.transition_key))
        is_expected = offer.expects(event.execution_id) in (None, stream.version)
        if stored is None and not stream.closed and is_expected:
            return None
        return LeftOut(
            number=number,
            position=stored.position if stored else None,
            is_same=stored is not None and same_content(stored, sealed),
            is_closed=stream.closed,
            version=stream.version,
        )

    def _append_one(self, sealed: Sealed, shard_id: int) -> StoredEvent:
        """The next event of its shard and of its stream."""
        head = self.tables.heads[shard_id]
        stream = self.tables.streams.get(sealed.event.execution_id)
        self.tables.heads[shard_id] = replace(head, next_position=head.next_position + 1)
        version = stream.version + 1 if stream else 1
        return self._insert(sealed, shard_id=shard_id, position=head.next_position, version=version)

    # --- advance -----------------------------------------------------------------------------------------

    def advance(self, advance: Advance) -> frozenset[int]:
        """Commit a decision for the shards whose fence holds."""
        self.refuse_locked(fence.shard_id for fence in advance.fences)
        held = frozenset(fence.shard_id for fence in advance.fences if self.holds(fence)) - self._stale(advance)
        fresh = [sealed for sealed in advance.events if sealed.event.shard_id in held]
        self._check_new(fresh)
        for request in requests(advance, held):
            if request.key in self.tables.idempotency:
                raise TransitionConflict(f"the idempotency key {request.key} is taken")
        if held:
            self._store_payloads(advance.payloads)
        rows = []
        for sealed in fresh:
            event = sealed.event
            rows.append(
                self._insert(sealed, shard_id=event.shard_id, position=event.position, version=event.stream_version)
            )
        for fence in advance.fences:
            if fence.shard_id in held:
                following = fence.next_position + sum(row.shard_id == fence.shard_id for row in rows)
                self.tables.heads[fence.shard_id] = ShardHead(
                    fence.shard_id, following, fence.decided_position, fence.epoch
                )
        derive(self.tables, advance, held, now=self.clock.now())
        self._observe(rows)
        return held

    def locked(self) -> frozenset[int]:
        """The shards that whoever asks cannot write to."""
        if not self.tables.held:
            return self.tables.locked
        own, now = asyncio.current_task(), self.clock.monotonic()
        others = {shard for shard, hold in self.tables.held.items() if hold.holder is not own and now < hold.until}
        return self.tables.locked | others

    def refuse_locked(self, shards: Iterable[int]) -> None:
        wanted = set(shards)
        if not self.locked().isdisjoint(wanted):
            raise LedgerBusy("somebody holds a lock on a shard")
        own, now = asyncio.current_task(), self.clock.monotonic()
        for hold in (self.tables.held[shard] for shard in wanted & self.tables.held.keys()):
            if hold.holder is own and now >= hold.until:
                raise LedgerUnavailable("the transaction stood still for too long")

    def _stale(self, advance: Advance) -> set[int]:
        """The shards of streams that are at another version than whoever decides thinks."""
        streams = self.tables.streams
        return {shard for shard, one, version in advance.versions_seen if streams[one].version != version}

    def holds(self, fence: Fence) -> bool:
        """The right owner, who has seen every event."""
        head = self.tables.heads.get(fence.shard_id)
        return head is not None and (head.epoch, head.next_position) == (fence.epoch, fence.next_position)

    # --- checkpoints -------------------------------------------------------------------------------------

    def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Append the events of checkpoints with their rows.  Where everything was decided, everything still is."""
        for one in checkpoints:
            kept = self.tables.checkpoints.get(one.event.event.execution_id, [])
            if any(known.epoch == one.epoch for known in kept):
                raise TransitionConflict(f"checkpoint {one.epoch} of shard {one.shard_id} is stored")
        rows = []
        for one in checkpoints:
            head = self.tables.heads[one.shard_id]
            decided = head.decided_position + (head.decided_position == head.next_position - 1)
            rows.append(self._insert(one.event, shard_id=one.shard_id, position=head.next_position, version=one.epoch))
            self.tables.heads[one.shard_id] = replace(
                head, next_position=head.next_position + 1, decided_position=decided
            )
            kept = [*self.tables.checkpoints.get(one.event.event.execution_id, []), one]
            self.tables.checkpoints[one.event.event.execution_id] = kept[-limits.CHECKPOINT_ROWS_MAX :]
        self._observe(rows)

    # --- both --------------------------------------------------------------------------------------------

    def _check_new(self, events: Sequence[Sealed]) -> None:
        """The constraints of the table: shape, one transition once, one stream once."""
        seen: set[tuple[int, str]] = set()
        for sealed in events:
            check_row(sealed)
            event = sealed.event
            key = (event.execution_id, event.transition_key)
            if key in seen or key in self.tables.transitions:
                raise TransitionConflict(f"{event.transition_key} of {event.execution_id} is stored")
            if event.stream_version == 1 and event.execution_id in self.tables.streams:
                raise TransitionConflict(f"the stream {event.execution_id} is there")
            seen.add(key)

    def _insert(self, sealed: Sealed, *, shard_id: int, position: int, version: int) -> StoredEvent:
        event = sealed.event
        row = StoredEvent(
            text=sealed.text,
            checksum=sealed.checksum,
            event_type=event.event_type,
            transition_key=event.transition_key,
            shard_id=shard_id,
            position=position,
            stream_version=version,
            ingest_time=self.clock.now(),
        )
        self.tables.insert(event.execution_id, row)
        self.tables.streams[event.execution_id] = Stream(shard_id, version, KINDS[event.event_type].closes)
        return row

    def _store_payloads(self, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            key = (payload.tenant_id, payload.organization_id, payload.reference.sha256)
            self.tables.payloads.setdefault(key, payload.content)
            self.tables.payload_times[key] = self.clock.moment().timestamp()

    def _observe(self, rows: Sequence[StoredEvent]) -> None:
        if rows:
            for observer in self.observers:
                observer(rows)
