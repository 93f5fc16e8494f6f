"""Rows ↔ events."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from noetl.core.codec import parse_json
from noetl.core.errors import EnvelopeInvalid, LedgerCorrupt
from noetl.core.event import Bodies, Event, Sealed, checksum_of


def iso(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _json(text: str | None) -> Any:
    return None if text is None else parse_json(text)


def event_of(row: Any) -> Event:
    """A stored row as an event, refused when its bytes do not have the recorded checksum."""
    bodies = Bodies(row["meta"], row["payload_ref"], row["result"], row["writes"])
    event = Event(
        execution_id=row["execution_id"],
        event_id=row["event_id"],
        tenant_id=row["tenant_id"],
        organization_id=row["organization_id"],
        event_type=row["event_type"],
        event_time=iso(row["event_time"]),
        producer=row["producer"],
        transition_key=row["transition_key"],
        correlation_id=row["correlation_id"],
        causation_id=row["causation_id"],
        idempotency_key=row["idempotency_key"],
        command_id=row["command_id"],
        stage_id=row["stage_id"],
        frame_id=row["frame_id"],
        parent_event_id=row["parent_event_id"],
        parent_execution_id=row["parent_execution_id"],
        payload_ref=_json(bodies.payload_ref),
        result=_json(bodies.result),
        writes=_json(bodies.writes),
        meta=_json(bodies.meta),
        schema_version=row["schema_version"],
        shard_id=row["shard_id"],
        position=row["position"],
        stream_version=row["stream_version"],
        ingest_time=iso(row["ingest_time"]),
    )
    if checksum_of(event, bodies) != row["checksum"]:
        raise LedgerCorrupt(f"event {event.event_id} of execution {event.execution_id} does not match its checksum")
    return event


def advance_document(events: Sequence[Sealed]) -> str:
    """The events of a decider as one JSON document.  The sealed bytes go in as they are."""
    rows = (
        f'{{"shard_id":{e.event.shard_id},"position":{e.event.position},'
        f'"stream_version":{e.event.stream_version},"checksum":"\\\\x{e.checksum}",{e.text[1:]}'
        for e in events
    )
    return f"[{','.join(rows)}]"


def append_row(sealed: Sealed, *, number: int, offer: int, ordinals: tuple[int, int], extra: str) -> str:
    """One event of an append: its numbers within the batch, its shard and its stream, then the sealed bytes."""
    return (
        f'{{"n":{number},"offer":{offer},"shard_ordinal":{ordinals[0]},"stream_ordinal":{ordinals[1]},{extra}'
        f'"checksum":"\\\\x{sealed.checksum}",{sealed.text[1:]}'
    )


# An escaped NUL: the escape itself is not escaped.
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_TEXT_COLUMNS = (
    "tenant_id",
    "organization_id",
    "event_time",
    "producer",
    "transition_key",
    "correlation_id",
    "idempotency_key",
    "command_id",
    "stage_id",
    "frame_id",
)


def nul_shielded(document: str) -> tuple[str, str | None]:
    """Postgres stores the escaped NUL as `json` but reads no document that has one.  It goes in as a mark
    that the document does not contain, and the statement turns it back; None when nothing had to be done."""
    if "\\u0000" not in document:
        return document, None
    marks = (f"\ue000{number}\ue001" for number in count())
    mark = next(mark for mark in marks if mark not in document)
    return _NUL.sub(lambda match: match.group(1) + mark, document), mark


def refuse_nul_in_text(events: Iterable[Event]) -> None:
    """A body may hold a NUL; a column of type text may not."""
    for event in events:
        for name in _TEXT_COLUMNS:
            if "\0" in (getattr(event, name) or ""):
                raise EnvelopeInvalid(f"{name} of {event.event_type} contains a NUL character")
