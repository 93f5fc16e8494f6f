"""The ledger port on Postgres: every append and every decision is one statement."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.postgres.rows import advance_document, append_row, event_of
from noetl.adapters.postgres.statements import composed, query
from noetl.core.codec import canonical_json
from noetl.core.event import KINDS, Event
from noetl.core.reference import Payload
from noetl.ports.ledger import (
    Advance,
    AppendOutcome,
    ExecutionRow,
    IdempotencyRow,
    LeftOut,
    Offer,
    QueuedCommand,
    ShardHead,
)


class PostgresLedger:
    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def append(self, offers: Sequence[Offer]) -> AppendOutcome:
        rows, number = [], 0
        payloads: list[Payload] = []
        for place, offer in enumerate(offers):
            payloads.extend(offer.payloads)
            for sealed in offer.events:
                extra = (
                    "" if offer.expected_version is None else f'"expected_version":{offer.expected_version},'
                )
                if KINDS[sealed.event.event_type].closes:
                    extra += '"closes":true,'
                rows.append(
                    append_row(sealed, number=number, offer=place, shard_id=offer.shard_id, extra=extra)
                )
                number += 1
        values: dict[str, object] = {
            "events": f"[{','.join(rows)}]",
            "shards": sorted({offer.shard_id for offer in offers}),
            "streams": sorted({sealed.event.execution_id for offer in offers for sealed in offer.events}),
            **_payload_values(payloads),
        }
        found = await self._writer.fetch(composed("append.sql", ("payloads",) if payloads else ()), values)
        return AppendOutcome(
            first_positions={
                row["shard_id"]: row["next_position"] for row in found if row["shard_id"] is not None
            },
            left_out={
                row["n"]: LeftOut(
                    number=row["n"],
                    position=row["position"],
                    is_same=row["is_same"] is True,
                    is_closed=row["closed"],
                    version=row["version"],
                )
                for row in found
                if row["n"] is not None
            },
        )

    async def advance(self, advance: Advance) -> frozenset[int]:
        values: dict[str, object] = {"fences": _fences(advance)}
        parts = []
        for part, fill in _PARTS:
            found = fill(advance)
            if found:
                parts.append(part)
                values.update(found)
        rows = await self._writer.fetch(composed("advance.sql", tuple(parts)), values)
        return frozenset(row["shard_id"] for row in rows)

    async def read_execution(
        self, execution_id: int, *, after_position: int = 0, limit: int = 10_000
    ) -> list[Event]:
        rows = await self._reader.fetch(
            query("reads.sql", "execution_events"),
            execution_id=execution_id,
            after_position=after_position,
            rows=limit,
        )
        return [event_of(row) for row in rows]

    async def read_shard(self, shard_id: int, *, after_position: int, limit: int = 10_000) -> list[Event]:
        rows = await self._reader.fetch(
            query("reads.sql", "shard_events"), shard_id=shard_id, after_position=after_position, rows=limit
        )
        return [event_of(row) for row in rows]

    async def heads(self) -> list[ShardHead]:
        rows = await self._reader.fetch(query("reads.sql", "heads"))
        return [ShardHead(r["shard_id"], r["next_position"], r["decided_position"], r["epoch"]) for r in rows]

    async def incarnation(self) -> str:
        rows = await self._reader.fetch(query("reads.sql", "incarnation"))
        return str(rows[0]["ledger_incarnation"])


def _fences(advance: Advance) -> str:
    counts: dict[int, int] = {}
    for sealed in advance.events:
        counts[sealed.event.shard_id] = counts.get(sealed.event.shard_id, 0) + 1
    fences = sorted(advance.fences, key=lambda fence: fence.shard_id)
    return canonical_json(
        [
            {
                "shard_id": fence.shard_id,
                "epoch": fence.epoch,
                "seen": fence.next_position,
                "next": fence.next_position + counts.get(fence.shard_id, 0),
                "decided": fence.decided_position,
            }
            for fence in fences
        ]
    )


def _event_values(advance: Advance) -> dict[str, object]:
    return {"events": advance_document(advance.events)} if advance.events else {}


def _streams(advance: Advance, *, opened: bool) -> list[dict[str, object]]:
    last: dict[int, dict[str, object]] = {}
    for sealed in advance.events:
        event = sealed.event
        known = last.get(event.execution_id)
        is_new = event.stream_version == 1 or (known is not None and known["is_new"] is True)
        last[event.execution_id] = {
            "execution_id": event.execution_id,
            "shard_id": event.shard_id,
            "tenant_id": event.tenant_id,
            "organization_id": event.organization_id,
            "version": event.stream_version,
            "closed": KINDS[event.event_type].closes,
            "is_new": is_new,
        }
    return [row for row in last.values() if row["is_new"] is opened]


def _stream_values(advance: Advance) -> dict[str, object]:
    rows = _streams(advance, opened=False)
    return {"streams": canonical_json(rows)} if rows else {}


def _opened_values(advance: Advance) -> dict[str, object]:
    rows = _streams(advance, opened=True)
    return {"opened": canonical_json(rows)} if rows else {}


def _payload_values(payloads: Sequence[Payload]) -> dict[str, object]:
    """Payloads by column.  Their tenant is in the locator of the reference."""
    if not payloads:
        return {}
    # One object per address: the same content twice in one INSERT would be two rows for one key.
    unique = {payload.reference.uri: payload for payload in payloads}
    return {
        "payload_tenants": [payload.tenant_id for payload in unique.values()],
        "payload_organizations": [payload.organization_id for payload in unique.values()],
        "payload_digests": [payload.reference.sha256 for payload in unique.values()],
        "payload_media_types": [payload.reference.media_type for payload in unique.values()],
        "payload_contents": [payload.content for payload in unique.values()],
    }


def _queue_row(command: QueuedCommand) -> str:
    head = canonical_json(
        {
            "execution_id": command.execution_id,
            "command_id": command.command_id,
            "shard_id": command.shard_id,
            "tenant_id": command.tenant_id,
            "organization_id": command.organization_id,
            "pool": command.pool,
            "tool_kind": command.tool_kind,
            "attempt": command.attempt,
            "session_id": command.session_id,
        }
    )
    return f'{head[:-1]},"body":{command.body}}}'


def _queue_values(advance: Advance) -> dict[str, object]:
    return {"queue": f"[{','.join(map(_queue_row, advance.queue))}]"} if advance.queue else {}


def _claim_values(advance: Advance) -> dict[str, object]:
    return {"claims": f"[{','.join(map(_queue_row, advance.claims))}]"} if advance.claims else {}


def _dequeue_values(advance: Advance) -> dict[str, object]:
    if not advance.dequeue:
        return {}
    return {
        "dequeue_executions": [execution_id for execution_id, _ in advance.dequeue],
        "dequeue_commands": [command_id for _, command_id in advance.dequeue],
    }


def _timer_values(advance: Advance) -> dict[str, object]:
    rows = [
        {"execution_id": execution_id, "name": name, "shard_id": shard_id, "due_at": due_at}
        for execution_id, name, shard_id, due_at in advance.timers
    ]
    return {"timers": canonical_json(rows)} if rows else {}


def _timer_gone_values(advance: Advance) -> dict[str, object]:
    if not advance.timers_gone:
        return {}
    return {
        "gone_executions": [execution_id for execution_id, _ in advance.timers_gone],
        "gone_names": [name for _, name in advance.timers_gone],
    }


def _execution_values(advance: Advance) -> dict[str, object]:
    rows = [_fields(row) for row in advance.executions]
    return {"executions": canonical_json(rows)} if rows else {}


def _idempotency_values(advance: Advance) -> dict[str, object]:
    rows = [_fields(row) for row in advance.idempotency]
    return {"idempotency": canonical_json(rows)} if rows else {}


def _fields(row: ExecutionRow | IdempotencyRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


_PARTS = (
    ("events", _event_values),
    ("streams", _stream_values),
    ("opened", _opened_values),
    ("payloads", lambda advance: _payload_values(advance.payloads)),
    ("queue", _queue_values),
    ("claims", _claim_values),
    ("dequeue", _dequeue_values),
    ("timers", _timer_values),
    ("timers_gone", _timer_gone_values),
    ("executions", _execution_values),
    ("idempotency", _idempotency_values),
)
