"""The two halves of the worker protocol mean the same: what one end writes the other reads, whatever the values are."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.adapters.session import http_stream_wire as worker
from noetl.core import kinds
from noetl.core.codec import canonical_bytes
from noetl.core.errors import EnvelopeInvalid, LeaseLost
from noetl.core.reference import MEDIA_JSON, Payload, Result, address
from noetl.engine.sessions.keeper import Told
from noetl.engine.sessions.remote import Profile, RemoteSession
from noetl.ports.session import CommandMessage, Fact, Stop
from noetl.processes.server import wire as server

TENANT = {"tenant_id": "größe/x", "organization_id": "sales"}
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
NUMBERS = st.integers(min_value=-(2**200), max_value=2**200) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
MAPPING = st.dictionaries(TEXT, JSON, max_size=4)


def command(body: dict[str, Any] | None = None, attempt: int = 3) -> CommandMessage:
    return CommandMessage(execution_id=2**62, command_id="s#1/eval/2", attempt=attempt, body=body or {}, **TENANT)


def holding(message: CommandMessage) -> RemoteSession:
    session = RemoteSession(7, Profile(worker_id="w", slots=1), now=0.0)
    session.deliver(message)
    return session


def fact(message: CommandMessage, **fields: Any) -> Fact:
    fields = {"event_type": kinds.COMMAND_COMPLETED, **fields}
    return Fact(execution_id=message.execution_id, command_id=message.command_id, attempt=message.attempt, **fields)


def passed(given_fact: Fact, message: CommandMessage) -> Told:
    """A fact after its way through both halves."""
    body = worker.batch_bytes("7", [worker.fact_bytes(given_fact, "one")])
    session_id, raws = server.read_batch(body)
    assert session_id == "7"
    return server.told_of(server.read_fact(raws[0]), holding(message))


def payload(content: bytes) -> Payload:
    return address(content, media_type=MEDIA_JSON, store="db", **TENANT)


@given(MAPPING)
def test_a_command_arrives_as_it_was_given(body: dict[str, Any]) -> None:
    message = command(body)
    (line, rest) = server.line_of(message).split(b"\n")
    assert rest == b""
    assert worker.word_of(line) == message
    assert canonical_bytes(worker.word_of(line).body) == canonical_bytes(body)  # type: ignore[union-attr]


@given(MAPPING, st.lists(MAPPING, max_size=2), st.binary(max_size=200))
def test_a_fact_arrives_with_the_meaning_it_has_in_one_process(
    meta: dict[str, Any], writes: list[dict[str, Any]], content: bytes
) -> None:
    message, kept = command(), payload(content)
    writes = [{key: value for key, value in write.items() if key != "ref"} for write in writes]
    result = Result(status="ok", reference=kept.reference, context={"atoms": meta}).to_json()
    sent = fact(message, result=result, writes=writes, meta=meta, payloads=[kept])
    told = passed(sent, message)
    assert told.fact_id == "one"
    assert canonical_bytes(_plain(told.fact)) == canonical_bytes(_plain(sent))
    assert told.fact.payloads == sent.payloads


@given(st.dictionaries(TEXT, TEXT, max_size=3), st.integers(1, 2**31), st.binary(max_size=100))
def test_a_word_about_a_job_arrives_as_it_was_said(conf: dict[str, str], number: int, content: bytes) -> None:
    message, kept = command(), payload(content)
    intent = {"task": "t", "job_group": "g", "ui": "http://ui", "conf": conf, "n": number}
    large = fact(
        message,
        event_type=kinds.JOB_INTENDED,
        meta=intent,
        payload_ref=kept.reference.to_json(),
        payloads=[kept],
    )
    progress = {"job": 1, "jobs": [0, 1], "stages": 3, "tasks_done": 2, "stage": "größe", "n": number}
    for sent in (large, fact(message, event_type=kinds.JOB_PROGRESSED, meta=progress)):
        told = passed(sent, message).fact
        assert _plain(told) == _plain(sent)
        assert (told.payload_ref, list(told.payloads)) == (sent.payload_ref, list(sent.payloads))


def _plain(one: Fact) -> list[object]:
    return [one.execution_id, one.command_id, one.attempt, one.event_type, one.result, one.writes, one.meta]


@pytest.mark.parametrize("stop", [Stop(1, "a#1", 2), Stop(2**62, "a#1/3", 1, drain=True)])
def test_a_stop_arrives_as_it_was_given(stop: Stop) -> None:
    assert worker.word_of(server.line_of(stop).strip()) == stop


def test_the_other_lines_are_known() -> None:
    assert worker.word_of(server.KEEP_ALIVE.strip()) is None
    assert worker.word_of(server.end_line(LeaseLost("gone")).strip()) == "lease_lost"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {1: 1, "1": 2}, object()])
def test_what_the_ledger_would_refuse_is_refused_before_it_is_sent(value: object) -> None:
    with pytest.raises(EnvelopeInvalid):
        worker.fact_bytes(fact(command(), meta={"x": value}), "one")


def test_a_payload_belongs_to_the_owner_of_the_command_whatever_a_worker_says() -> None:
    message = command()
    foreign = address(b"1", media_type=MEDIA_JSON, store="db", tenant_id="other", organization_id="sales")
    told = passed(fact(message, payloads=[foreign]), message)
    assert told.fact.payloads == [payload(b"1")]
    named = fact(message, result=Result(status="ok", reference=foreign.reference).to_json(), payloads=[foreign])
    with pytest.raises(EnvelopeInvalid, match="uri"):
        passed(named, message)


def test_a_large_payload_does_not_travel_with_its_fact() -> None:
    message = command()
    large = address(b"x" * 100_000, media_type=MEDIA_JSON, store="file", **TENANT)
    told = passed(fact(message, payloads=[large]), message)
    assert told.fact.payloads == []
    document = json.loads(worker.fact_bytes(fact(message), "one"))
    document["payloads"] = [{"media_type": "x", "content": "QUFB" * 30_000}]
    forced = server.read_fact(json.dumps(document).encode())
    with pytest.raises(EnvelopeInvalid, match="PUT"):
        server.told_of(forced, holding(message))


BAD_REFERENCES: list[Any] = [
    1,
    [],
    {},
    {"sha256": "0" * 64},
    {**payload(b"1").reference.to_json(), "sha256": "0" * 63},
    {**payload(b"1").reference.to_json(), "sha256": "G" * 64},
    {**payload(b"1").reference.to_json(), "bytes": -1},
    {**payload(b"1").reference.to_json(), "bytes": "1"},
    {**payload(b"1").reference.to_json(), "extra": 1},
    {**payload(b"1").reference.to_json(), "sha256": "0" * 64},
]


@pytest.mark.parametrize("reference", BAD_REFERENCES)
@pytest.mark.parametrize("place", ["result", "payload_ref", "writes"])
def test_a_reference_that_nobody_could_open_is_refused(place: str, reference: Any) -> None:
    message = command()
    if place == "payload_ref" and not isinstance(reference, dict):
        return
    fields: dict[str, Any] = {
        "result": {"result": {"status": "ok", "reference": reference, "parent_ref": None, "context": {}}},
        "payload_ref": {"payload_ref": reference},
        "writes": {"writes": [{"path": ["x"], "ref": reference, "at": []}]},
    }[place]
    with pytest.raises(EnvelopeInvalid):
        passed(fact(message, **fields), message)


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": "3"},
        {"execution_id": 1},
        {"execution_id": "x"},
        {"unknown": 1},
        {"fact_id": ""},
        {"meta": []},
        {"writes": {}},
        {"result": "ok"},
        {"payloads": [{"content": "AA=="}]},
        {"payloads": [{"media_type": "x", "content": "no base64!"}]},
        {"payloads": [{"media_type": "x\r\nSet-Cookie: y", "content": "AA=="}]},
        {"payloads": [{"media_type": "", "content": "AA=="}]},
    ],
)
def test_a_fact_of_another_shape_is_refused_alone(change: dict[str, Any]) -> None:
    message = command()
    document = {**json.loads(worker.fact_bytes(fact(message), "one")), **change}
    body = {"session_id": "7", "facts": [document, json.loads(worker.fact_bytes(fact(message), "two"))]}
    _, raws = server.read_batch(msgspec.json.encode(body))
    with pytest.raises(EnvelopeInvalid):
        server.told_of(server.read_fact(raws[0]), holding(message))
    assert server.told_of(server.read_fact(raws[1]), holding(message)).fact_id == "two"


def test_a_fact_about_what_is_not_held_is_refused() -> None:
    message = command()
    for other in (message._replace(attempt=2), message._replace(command_id="x#1"), message._replace(execution_id=5)):
        with pytest.raises(LeaseLost):
            passed(fact(other), message)
