"""Events: the envelope, its canonical bytes and its checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from noetl.core.codec import canonical_bytes, canonical_json, quoted
from noetl.core.errors import EnvelopeInvalid
from noetl.core.kinds import KINDS, EventKind
from noetl.core.limits import EVENT_BODY_BYTES_MAX, EVENT_RESULT_BYTES_MAX
from noetl.core.reference import check_result, check_result_size


class Draft(NamedTuple):
    """An event as `decide` returns it: all that is decided, nothing that a clock or a generator gives."""

    event_type: str
    transition_key: str
    meta: Mapping[str, object]
    command_id: str | None = None
    result: Mapping[str, object] | None = None
    writes: Sequence[Mapping[str, object]] | None = None
    payload_ref: Mapping[str, object] | None = None
    stage_id: str | None = None
    frame_id: str | None = None


class Event(NamedTuple):
    """A sealed fact.  The fields after `meta` are given by the ledger; zero means not yet appended."""

    execution_id: int
    event_id: int
    tenant_id: str
    organization_id: str
    event_type: str
    event_time: str
    producer: str
    transition_key: str
    correlation_id: str
    causation_id: int | None = None
    idempotency_key: str | None = None
    command_id: str | None = None
    stage_id: str | None = None
    frame_id: str | None = None
    parent_event_id: int | None = None
    parent_execution_id: int | None = None
    payload_ref: Mapping[str, object] | None = None
    result: Mapping[str, object] | None = None
    writes: Sequence[Mapping[str, object]] | None = None
    meta: Mapping[str, object] = {}
    schema_version: int = 1
    shard_id: int = 0
    position: int = 0
    stream_version: int = 0
    ingest_time: str = ""


_OPTIONAL = (
    "causation_id",
    "idempotency_key",
    "command_id",
    "stage_id",
    "frame_id",
    "parent_event_id",
    "parent_execution_id",
    "payload_ref",
    "result",
    "writes",
)


def kind_of(event: Event) -> EventKind:
    kind = KINDS.get(event.event_type)
    if kind is None:
        raise EnvelopeInvalid(f"unknown event type {event.event_type!r}")
    return kind


def _aggregate_id(kind: EventKind, event: Event) -> str:
    if kind.aggregate_type == "command":
        return f"command/{event.command_id}"
    if kind.aggregate_type == "frame":
        return f"frame/{event.frame_id}"
    if kind.aggregate_type == "stage":
        return f"stage/{event.stage_id}"
    if kind.aggregate_type == "step":
        return f"step/{event.transition_key.partition('/')[2]}"
    return f"execution/{event.execution_id}"


def envelope(event: Event) -> dict[str, object]:
    """The members that the producer fixed; what the checksum covers."""
    kind = kind_of(event)
    document: dict[str, object] = {
        "execution_id": event.execution_id,
        "event_id": event.event_id,
        "tenant_id": event.tenant_id,
        "organization_id": event.organization_id,
        "stream_id": f"execution/{event.execution_id}",
        "aggregate_type": kind.aggregate_type,
        "aggregate_id": _aggregate_id(kind, event),
        "event_type": event.event_type,
        "schema_name": kind.schema_name,
        "schema_version": event.schema_version,
        "event_time": event.event_time,
        "producer": event.producer,
        "correlation_id": event.correlation_id,
        "transition_key": event.transition_key,
        "meta": event.meta,
    }
    for name in _OPTIONAL:
        value = getattr(event, name)
        if value is not None:
            document[name] = value
    return document


class Bodies(NamedTuple):
    """The canonical JSON of the members of an event that are documents: the texts that are hashed and stored."""

    meta: str
    payload_ref: str | None = None
    result: str | None = None
    writes: str | None = None


def checksum_of(event: Event, bodies: Bodies) -> bytes:
    """The checksum of an event whose documents were stored as these texts."""
    return hashlib.sha256(_envelope_text(kind_of(event), event, bodies).encode("utf-8")).digest()


def _envelope_text(kind: EventKind, event: Event, bodies: Bodies) -> str:
    """The canonical JSON of `envelope(event)`, written member by member: three times as fast as the general encoder,
    and every event of every commit and of every read passes here.  A property test holds the two together."""
    q, identity = quoted, event.execution_id
    parts = [f'{{"aggregate_id":{q(_aggregate_id(kind, event))},"aggregate_type":"{kind.aggregate_type}"']
    if event.causation_id is not None:
        parts.append(f',"causation_id":{event.causation_id}')
    if event.command_id is not None:
        parts.append(f',"command_id":{q(event.command_id)}')
    parts.append(
        f',"correlation_id":{q(event.correlation_id)},"event_id":{event.event_id},'
        f'"event_time":{q(event.event_time)},"event_type":"{event.event_type}","execution_id":{identity}'
    )
    if event.frame_id is not None:
        parts.append(f',"frame_id":{q(event.frame_id)}')
    if event.idempotency_key is not None:
        parts.append(f',"idempotency_key":{q(event.idempotency_key)}')
    parts.append(f',"meta":{bodies.meta},"organization_id":{q(event.organization_id)}')
    if event.parent_event_id is not None:
        parts.append(f',"parent_event_id":{event.parent_event_id}')
    if event.parent_execution_id is not None:
        parts.append(f',"parent_execution_id":{event.parent_execution_id}')
    if bodies.payload_ref is not None:
        parts.append(f',"payload_ref":{bodies.payload_ref}')
    parts.append(f',"producer":{q(event.producer)}')
    if bodies.result is not None:
        parts.append(f',"result":{bodies.result}')
    parts.append(f',"schema_name":"{kind.schema_name}","schema_version":{event.schema_version}')
    if event.stage_id is not None:
        parts.append(f',"stage_id":{q(event.stage_id)}')
    parts.append(
        f',"stream_id":"execution/{identity}","tenant_id":{q(event.tenant_id)},'
        f'"transition_key":{q(event.transition_key)}'
    )
    if bodies.writes is not None:
        parts.append(f',"writes":{bodies.writes}')
    parts.append("}")
    return "".join(parts)


class Sealed(NamedTuple):
    """An event with the exact bytes that are hashed and stored."""

    event: Event
    text: str
    checksum: str
    result_bytes: int = 0
    """How large its result is."""


def seal(event: Event) -> Sealed:
    """Check an event against the shape of the ledger and fix its bytes."""
    kind = kind_of(event)
    if event.result is not None:
        if not kind.has_result:
            raise EnvelopeInvalid(f"{event.event_type} has no result")
        check_result(event.result)
    if event.writes is not None and not kind.has_writes:
        raise EnvelopeInvalid(f"{event.event_type} writes nothing")
    named = {"command": event.command_id, "stage": event.stage_id, "frame": event.frame_id}
    if not named.get(kind.aggregate_type, "-"):
        raise EnvelopeInvalid(f"{event.event_type} names no {kind.aggregate_type}")
    if not event.transition_key:
        raise EnvelopeInvalid(f"{event.event_type} has no transition key")
    if not event.tenant_id or not event.organization_id:
        raise EnvelopeInvalid(f"{event.event_type} has no tenant or organization")
    result = None if event.result is None else canonical_json(event.result)
    bodies = Bodies(
        meta=canonical_json(event.meta),
        payload_ref=None if event.payload_ref is None else canonical_json(event.payload_ref),
        result=result,
        writes=None if event.writes is None else canonical_json(event.writes),
    )
    text = _envelope_text(kind, event, bodies)
    try:
        content = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise EnvelopeInvalid(f"value has no canonical JSON form: {error}") from error
    if event.result is not None and len(content) > EVENT_RESULT_BYTES_MAX:
        # A result inside a smaller envelope needs no measuring of its own.
        check_result_size(event.result)
    if len(content) > EVENT_BODY_BYTES_MAX:
        raise EnvelopeInvalid(
            f"{event.transition_key} has {len(content)} bytes, the limit is {EVENT_BODY_BYTES_MAX}: "
            "hand data over by reference"
        )
    result_bytes = 0 if result is None else len(result) if len(content) == len(text) else len(result.encode("utf-8"))
    return Sealed(event, text, hashlib.sha256(content).hexdigest(), result_bytes)


def same_content(one: Event, other: Event) -> bool:
    """Whether two events say the same.  Ids, times, position and producer are not content."""
    return (one.event_type, one.transition_key) == (
        other.event_type,
        other.transition_key,
    ) and canonical_bytes([one.result, one.writes]) == canonical_bytes([other.result, other.writes])
