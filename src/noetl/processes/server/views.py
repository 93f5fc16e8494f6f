"""What the API shows: executions, list rows and events as JSON documents.  Ids of 64 bits are strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from noetl.core import kinds
from noetl.core.event import Event, envelope
from noetl.engine.executions import Unserved
from noetl.ports.ledger import ExecutionRow
from noetl.ports.projections import ShownExecution

EXACT_INTEGERS = 2**53
_IDS = ("execution_id", "event_id", "causation_id", "parent_event_id", "parent_execution_id")


# Of an execution that nobody has projected since this version came: there is a row, but no document.
_UNKNOWN: Mapping[str, Any] = {
    "steps": {},
    "progress": {},
    "commands": [],
    "catalog": None,
    "warnings": [],
    "error": None,
    "cancelling": None,
    "outcome": None,
    "left_out": {},
}


def document_of(shown: ShownExecution) -> dict[str, Any]:
    """What the projection holds beside the columns of its row."""
    document: dict[str, Any] = {} if shown.row.state is None else msgspec.json.decode(shown.row.state)
    return {**_UNKNOWN, **document}


def execution_document(
    shown: ShownExecution, document: Mapping[str, Any], unserved: Sequence[Unserved] = (), result: object = None
) -> dict[str, Any]:
    """The answer about one execution: its row, its document, and what only this server knows."""
    row = shown.row
    outcome = document["outcome"]
    return {
        **row_view(row),
        "parent_execution_id": None if row.parent_execution_id is None else str(row.parent_execution_id),
        "version": row.version,
        "position": shown.position,
        "steps": document["steps"],
        "progress": document["progress"],
        "commands": document["commands"],
        "catalog": document["catalog"],
        "warnings": document["warnings"],
        "unserved": [one.to_json() for one in unserved],
        "cancelling": document["cancelling"],
        "error": document["error"],
        "left_out": document["left_out"],
        "result_ref": None if outcome is None else outcome["reference"],
        "result": result,
    }


def row_view(row: ExecutionRow) -> dict[str, object]:
    return {
        "execution_id": str(row.execution_id),
        "path": row.path,
        "status": row.status,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "last_step": row.last_step,
        "retry_of": None if row.retry_of is None else str(row.retry_of),
        "quarantine": None if row.quarantine is None else msgspec.json.decode(row.quarantine),
    }


def event_view(event: Event) -> dict[str, object]:
    view = envelope(event)
    for name in _IDS:
        if view.get(name) is not None:
            view[name] = str(view[name])
    result: Any = view.get("result")
    if result is not None and result["parent_ref"] is not None:
        view["result"] = {**result, "parent_ref": _readable(result["parent_ref"])}
    if event.event_type == kinds.EXECUTION_SEEDED:
        view["meta"] = _with_text_ids(event.meta)
    if "inputs" in event.meta:
        inputs: Any = event.meta["inputs"]
        view["meta"] = {**event.meta, "inputs": [_readable(one) for one in inputs]}
    view |= {
        "shard_id": event.shard_id,
        "position": event.position,
        "stream_version": event.stream_version,
        "ingest_time": event.ingest_time,
    }
    return view


def _with_text_ids(value: Any) -> Any:
    """A document with numbers that are no exact number for everybody as text: ids of events and executions."""
    if isinstance(value, Mapping):
        return {name: _with_text_ids(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_with_text_ids(member) for member in value]
    is_long = isinstance(value, int) and not isinstance(value, bool) and abs(value) >= EXACT_INTEGERS
    return str(value) if is_long else value


def _readable(named: Mapping[str, object]) -> dict[str, object]:
    """What names a result, with its id as text."""
    return {name: str(value) if name == "ref_id" else value for name, value in named.items()}
