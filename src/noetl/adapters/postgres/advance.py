"""A decider's commit as one statement with its arguments: which parts it needs and what is bound to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from noetl.adapters.postgres.rows import advance_document, nul_shielded, refuse_nul_in_text
from noetl.adapters.postgres.statements import Statement, composed
from noetl.core.codec import canonical_json
from noetl.core.kinds import KINDS
from noetl.core.reference import Payload
from noetl.ports.ledger import Advance, ExecutionRow, IdempotencyRow, QueuedCommand

Values = dict[str, object]


def statement_of(advance: Advance) -> tuple[Statement, Values]:
    """The statement for this commit.  A commit in one shard has shorter forms of the parts with one row."""
    is_single = len(advance.fences) == 1
    values: Values = {**_versions_seen(advance), **(_fence_of_one(advance) if is_single else _fences(advance))}
    parts = []
    for part, fill, fill_one in _PARTS:
        found = fill_one(advance) if is_single and fill_one is not None else None
        if found:
            parts.append(f"{part}_one")
        else:
            found = fill(advance)
            if not found:
                continue
            parts.append(part)
        values.update(found)
    return composed("advance.sql", tuple(parts), begin="begin_one" if is_single else "begin"), values


def _versions_seen(advance: Advance) -> Values:
    known = advance.versions_seen
    return {
        "stream_shards": [shard_id for shard_id, _, _ in known],
        "stream_ids": [execution_id for _, execution_id, _ in known],
        "stream_seen": [version for _, _, version in known],
    }


def _fence_of_one(advance: Advance) -> Values:
    fence = advance.fences[0]
    return {
        "shard_id": fence.shard_id,
        "epoch": fence.epoch,
        "seen": fence.next_position,
        "next": fence.next_position + len(advance.events),
        "decided": fence.decided_position,
    }


def _events_of_one(advance: Advance) -> Values:
    values = _event_values(advance)
    # The short form does not know how to give a NUL back.
    return values if values.pop("nul", None) is None else {}


def _one_stream(advance: Advance) -> Values:
    if not advance.events:
        return {}
    first, last = advance.events[0].event, advance.events[-1].event
    if first.stream_version == 1 or any(s.event.execution_id != last.execution_id for s in advance.events):
        return {}
    return {
        "stream_execution": last.execution_id,
        "stream_version": last.stream_version,
        "stream_closed": KINDS[last.event_type].closes,
    }


def _one_payload(advance: Advance) -> Values:
    if len(advance.payloads) != 1:
        return {}
    payload = advance.payloads[0]
    return {
        "payload_tenant": payload.tenant_id,
        "payload_organization": payload.organization_id,
        "payload_digest": payload.reference.sha256,
        "payload_media_type": payload.reference.media_type,
        "payload_content": payload.content,
    }


def _one_queued(advance: Advance) -> Values:
    if len(advance.queue) != 1:
        return {}
    command = advance.queue[0]
    return {
        "queue_execution": command.execution_id,
        "queue_command": command.command_id,
        "queue_tenant": command.tenant_id,
        "queue_organization": command.organization_id,
        "queue_pool": command.pool,
        "queue_kind": command.tool_kind,
        "queue_attempt": command.attempt,
        "queue_session": command.session_id,
        "queue_locality": command.locality,
        "queue_body": command.body,
    }


def _one_dequeued(advance: Advance) -> Values:
    if len(advance.dequeue) != 1:
        return {}
    execution_id, command_id = advance.dequeue[0]
    return {"dequeue_execution": execution_id, "dequeue_command": command_id}


def _fences(advance: Advance) -> Values:
    counts: dict[int, int] = {}
    for sealed in advance.events:
        counts[sealed.event.shard_id] = counts.get(sealed.event.shard_id, 0) + 1
    fences = sorted(advance.fences, key=lambda fence: fence.shard_id)
    rows = (
        f'{{"shard_id":{fence.shard_id},"epoch":{fence.epoch},"seen":{fence.next_position},'
        f'"next":{fence.next_position + counts.get(fence.shard_id, 0)},"decided":{fence.decided_position}}}'
        for fence in fences
    )
    return {"fences": f"[{','.join(rows)}]"}


def _event_values(advance: Advance) -> dict[str, object]:
    if not advance.events:
        return {}
    document, nul = nul_shielded(advance_document(advance.events))
    if nul is not None:
        refuse_nul_in_text(sealed.event for sealed in advance.events)
    return {"events": document, "nul": nul}


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


def _payload_values(advance: Advance) -> dict[str, object]:
    # One row per address, all writers in the same order: two that store the same contents cannot deadlock.
    unique = {payload.reference.uri: payload for payload in advance.payloads}
    return payload_columns([unique[uri] for uri in sorted(unique)]) if unique else {}


def payload_columns(payloads: Sequence[Payload]) -> dict[str, object]:
    return {
        "payload_tenants": [payload.tenant_id for payload in payloads],
        "payload_organizations": [payload.organization_id for payload in payloads],
        "payload_digests": [payload.reference.sha256 for payload in payloads],
        "payload_media_types": [payload.reference.media_type for payload in payloads],
        "payload_contents": [payload.content for payload in payloads],
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
            "locality": command.locality,
        }
    )
    return f'{head[:-1]},"body":{command.body}}}'


def _queue_values(advance: Advance) -> dict[str, object]:
    if not advance.queue:
        return {}
    document, nul = nul_shielded(f"[{','.join(map(_queue_row, advance.queue))}]")
    return {"queue": document, "queue_nul": nul}


def _claim_values(advance: Advance) -> dict[str, object]:
    # A claim changes who holds the row and nothing of the body.
    rows = [_queue_row(replace(claim, body="null")) for claim in advance.claims]
    return {"claims": f"[{','.join(rows)}]"} if rows else {}


def _dequeue_values(advance: Advance) -> dict[str, object]:
    if not advance.dequeue:
        return {}
    return {
        "dequeue_executions": [execution_id for execution_id, _ in advance.dequeue],
        "dequeue_commands": [command_id for _, command_id in advance.dequeue],
    }


def _stop_values(advance: Advance) -> dict[str, object]:
    if not advance.stops:
        return {}
    return {
        "stop_executions": [stop.execution_id for stop in advance.stops],
        "stop_commands": [stop.command_id for stop in advance.stops],
        "stop_attempts": [stop.attempt for stop in advance.stops],
        "stop_words": [stop.word for stop in advance.stops],
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
    rows = [_execution_row(row) for row in advance.executions]
    return {"executions": f"[{','.join(rows)}]"} if rows else {}


def _execution_row(row: ExecutionRow) -> str:
    fields = _fields(row)
    state = fields.pop("state")
    # A document with an escaped NUL cannot be read here; the projector writes it a moment later.
    document = state if isinstance(state, str) and "\\u0000" not in state else "null"
    return f'{canonical_json(fields)[:-1]},"state":{document}}}'


def _idempotency_values(advance: Advance) -> dict[str, object]:
    shards = {sealed.event.execution_id: sealed.event.shard_id for sealed in advance.events}
    rows = [{**_fields(row), "shard_id": shards[row.execution_id]} for row in advance.idempotency]
    return {"idempotency": canonical_json(rows)} if rows else {}


def _fields(row: ExecutionRow | IdempotencyRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


Fill = Callable[[Advance], Values]
_PARTS: tuple[tuple[str, Fill, Fill | None], ...] = (
    ("events", _event_values, _events_of_one),
    ("streams", _stream_values, _one_stream),
    ("opened", _opened_values, None),
    ("payloads", _payload_values, _one_payload),
    ("queue", _queue_values, _one_queued),
    ("claims", _claim_values, None),
    ("stops", _stop_values, None),
    ("dequeue", _dequeue_values, _one_dequeued),
    ("timers", _timer_values, None),
    ("timers_gone", _timer_gone_values, None),
    ("executions", _execution_values, None),
    ("idempotency", _idempotency_values, None),
)
