"""Events: every kind seals, one cause has one key, and equal content is told from other content."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core import kinds
from noetl.core.codec import canonical_bytes
from noetl.core.errors import EnvelopeInvalid
from noetl.core.event import Event, envelope, same_content, seal
from noetl.core.kinds import KINDS, EventKind
from noetl.core.limits import EVENT_BODY_BYTES_MAX, EVENT_RESULT_BYTES_MAX
from noetl.core.reference import Result

OK = Result(status="ok").to_json()
PARTS = {
    "<command>": "load#1",
    "<step>#<run>": "load#1",
    "<stage>": "load#1",
    "<frame>": "load#1/4",
    "<attempt>": "2",
    "<n>": "3",
    "<name>": "retry/load#1/3",
    "<epoch>": "5",
    "<shard>": "4",
}
ALL = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def example(kind: EventKind, **changes: Any) -> Event:
    """The fullest event of a kind."""
    key = kind.transition_key
    for part, value in PARTS.items():
        key = key.replace(part, value)
    is_frame = kind.aggregate_type == "frame"
    fields: dict[str, Any] = {
        "execution_id": 77,
        "event_id": 78,
        "tenant_id": "acme",
        "organization_id": "sales",
        "event_type": kind.event_type,
        "event_time": "2026-01-01T00:00:00Z",
        "producer": "noetl://tenant/acme/org/sales/test/t",
        "transition_key": key,
        "correlation_id": "77",
        "causation_id": 76,
        "command_id": "load#1" if kind.aggregate_type == "command" else None,
        "stage_id": "load#1" if is_frame or kind.aggregate_type == "stage" else None,
        "frame_id": "load#1/4" if is_frame else None,
        "result": OK if kind.has_result else None,
        "writes": [{"path": ["a"], "v": 1}] if kind.has_writes else None,
        "meta": dict.fromkeys(kind.meta),
    }
    return Event(**{**fields, **changes})


@ALL
def test_every_kind_seals_and_its_text_is_what_was_hashed(kind: EventKind) -> None:
    event = example(kind)
    sealed = seal(event)
    assert sealed.event is event
    assert hashlib.sha256(sealed.text.encode()).hexdigest() == sealed.checksum
    document = json.loads(sealed.text)
    assert document == json.loads(canonical_bytes(envelope(event)))
    assert document["schema_name"] == f"noetl.{kind.event_type}"
    assert document["schema_version"] == kind.schema_version
    assert set(document["meta"]) == set(kind.meta)


@ALL
def test_an_envelope_names_tenant_stream_and_aggregate(kind: EventKind) -> None:
    document = envelope(example(kind))
    assert (document["tenant_id"], document["organization_id"]) == ("acme", "sales")
    assert document["stream_id"] == "execution/77"
    assert document["aggregate_type"] == kind.aggregate_type
    expected = {
        "execution": "execution/77",
        "command": "command/load#1",
        "step": "step/load#1",
        "stage": "stage/load#1",
        "frame": "frame/load#1/4",
    }
    assert document["aggregate_id"] == expected[kind.aggregate_type]


@ALL
def test_an_envelope_leaves_out_what_is_not_known_and_what_the_ledger_gives(kind: EventKind) -> None:
    document = envelope(example(kind))
    assert None not in document.values()
    assert not {"parent_event_id", "idempotency_key"} & set(document)
    assert ("stage_id" in document) == (kind.aggregate_type in ("stage", "frame"))
    assert ("frame_id" in document) == (kind.aggregate_type == "frame")
    assert not {"position", "stream_version", "shard_id", "ingest_time"} & set(document)


@ALL
def test_a_kind_has_a_name_a_meaning_and_a_key_of_its_cause(kind: EventKind) -> None:
    noun, _, verb = kind.event_type.partition(".")
    assert noun
    assert verb.endswith("ed") or verb.rpartition(".")[2] in {"waiting", "heartbeat", "done", "terminal"}
    assert kind.says.endswith(".")
    ends = {"command.terminal", "frame.terminal", "loop.shard.terminal", "execution.terminal"}
    assert kind.transition_key.split("/")[0] in {kind.event_type, *ends}


def test_keys_are_built_from_ordinals_as_the_kinds_say() -> None:
    command, stage, frame = "load#1", "load#1", "load#1/4"
    made = {
        kinds.COMMAND_ISSUED: kinds.issued_key(command),
        kinds.COMMAND_CLAIMED: kinds.claimed_key(command, 2),
        kinds.COMMAND_COMPLETED: kinds.terminal_key(command),
        kinds.COMMAND_FAILED: kinds.terminal_key(command),
        kinds.TASK_WAITING: kinds.waiting_key(command, 3),
        kinds.STEP_DECIDED: kinds.decided_key("load", 1),
        kinds.TIMER_FIRED: kinds.timer_key("retry/load#1/3"),
        kinds.STAGE_OPENED: kinds.stage_key(kinds.STAGE_OPENED, stage),
        kinds.EXECUTION_SEEDED: kinds.seeded_key(3),
        kinds.LOOP_STARTED: kinds.loop_started_key(stage),
        kinds.FANOUT_STARTED: kinds.stage_key(kinds.FANOUT_STARTED, stage),
        kinds.FRAME_DISPATCHED: kinds.frame_key(kinds.FRAME_DISPATCHED, frame, 2),
        kinds.FRAME_STARTED: kinds.frame_key(kinds.FRAME_STARTED, frame, 2),
        kinds.CURSOR_CLAIMED: kinds.cursor_claimed_key(frame, 2, 3),
        kinds.FRAME_HEARTBEAT: kinds.frame_heartbeat_key(frame, 2, 3),
        kinds.FRAME_ABANDONED: kinds.frame_key(kinds.FRAME_ABANDONED, frame, 2),
        kinds.FRAME_COMMITTED: kinds.frame_terminal_key(frame),
        kinds.FRAME_FAILED: kinds.frame_terminal_key(frame),
        kinds.LOOP_DONE: kinds.loop_done_key(stage),
        kinds.SHARD_DONE: kinds.shard_key(stage, 4),
        kinds.SHARD_FAILED: kinds.shard_key(stage, 4),
        kinds.FANIN_COMPLETED: kinds.stage_key(kinds.FANIN_COMPLETED, stage),
        kinds.STAGE_CLOSED: kinds.stage_key(kinds.STAGE_CLOSED, stage),
        kinds.CHILD_STARTED: kinds.child_key(kinds.CHILD_STARTED, command, 3),
        kinds.CHILD_TERMINAL: kinds.child_key(kinds.CHILD_TERMINAL, command, 3),
        kinds.JOB_INTENDED: kinds.job_key(kinds.JOB_INTENDED, command, 2, 3),
        kinds.JOB_PROGRESSED: kinds.job_key(kinds.JOB_PROGRESSED, command, 2, 3),
        kinds.CANCEL_REQUESTED: kinds.CANCEL_REQUESTED_KEY,
        kinds.PLAYBOOK_INITIALIZED: kinds.INITIALIZED_KEY,
        kinds.PLAYBOOK_COMPLETED: kinds.EXECUTION_TERMINAL_KEY,
        kinds.PLAYBOOK_FAILED: kinds.EXECUTION_TERMINAL_KEY,
        kinds.EXECUTION_CANCELLED: kinds.EXECUTION_TERMINAL_KEY,
        kinds.CHECKPOINT_COMMITTED: kinds.checkpoint_key(5),
    }
    for kind in KINDS.values():
        assert made.pop(kind.event_type) == example(kind).transition_key
    assert not made


def test_an_execution_a_command_and_a_frame_end_once() -> None:
    by_key: dict[str, set[str]] = {}
    for kind in KINDS.values():
        by_key.setdefault(kind.transition_key, set()).add(kind.event_type)
    assert by_key["execution.terminal"] == {kind.event_type for kind in KINDS.values() if kind.closes}
    assert by_key["command.terminal/<command>"] == {kinds.COMMAND_COMPLETED, kinds.COMMAND_FAILED}
    assert by_key["frame.terminal/<frame>"] == {kinds.FRAME_COMMITTED, kinds.FRAME_FAILED}


COMPLETED = KINDS[kinds.COMMAND_COMPLETED]
ISSUED = KINDS[kinds.COMMAND_ISSUED]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (example(COMPLETED, event_type="command.vanished"), "unknown event type 'command.vanished'"),
        (example(COMPLETED, tenant_id=""), "no tenant or organization"),
        (example(COMPLETED, organization_id=""), "no tenant or organization"),
        (example(COMPLETED, transition_key=""), "no transition key"),
        (example(COMPLETED, command_id=None), "names no command"),
        (example(KINDS[kinds.FRAME_COMMITTED], frame_id=None), "frame.committed names no frame"),
        (example(KINDS[kinds.LOOP_DONE], stage_id=None), "loop.done names no stage"),
        (example(COMPLETED, result={"rows": [1, 2]}), "exactly the members"),
        (example(COMPLETED, meta={"x": float("nan")}), "no canonical JSON form"),
        (example(COMPLETED, meta={"x": "\ud800"}), "no canonical JSON form"),
        (example(COMPLETED, producer="\ud800"), "no canonical JSON form"),
        (example(ISSUED, result=OK), "command.issued has no result"),
        (example(ISSUED, writes=[]), "command.issued writes nothing"),
        (example(COMPLETED, meta={"x": "a" * EVENT_BODY_BYTES_MAX}), "hand data over by reference"),
        (
            example(COMPLETED, result={**OK, "context": {"x": "a" * EVENT_RESULT_BYTES_MAX}}),
            "result has .* bytes, the limit is 8192",
        ),
    ],
)
def test_what_the_ledger_would_refuse_is_never_sealed(event: Event, message: str) -> None:
    with pytest.raises(EnvelopeInvalid, match=message):
        seal(event)


def test_a_large_envelope_around_a_small_result_is_fine() -> None:
    assert len(seal(example(COMPLETED, meta={"x": "a" * 20_000})).text) > 20_000


# --- content ---------------------------------------------------------------------------------------------


@given(
    st.fixed_dictionaries(
        {
            "event_id": st.integers(),
            "event_time": st.text(),
            "producer": st.text(),
            "position": st.integers(),
            "stream_version": st.integers(),
            "causation_id": st.integers(),
            "meta": st.dictionaries(st.text(), st.integers()),
        }
    )
)
def test_ids_times_position_and_producer_are_not_content(changes: dict[str, Any]) -> None:
    event = example(COMPLETED)
    assert same_content(event, event._replace(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"event_type": kinds.COMMAND_FAILED},
        {"transition_key": "command.terminal/load#2"},
        {"result": {**OK, "status": "error"}},
        {"result": None},
        {"writes": None},
        {"writes": [{"path": ["a"], "v": 1.0}]},
    ],
)
def test_type_key_result_and_writes_are_content(changes: dict[str, Any]) -> None:
    event = example(COMPLETED)
    assert not same_content(event, event._replace(**changes))
    assert not same_content(event._replace(**changes), event)
