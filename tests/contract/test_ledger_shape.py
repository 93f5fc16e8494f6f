"""The ledger port: what goes in comes out, byte for byte, and what is damaged or malformed is refused."""

from __future__ import annotations

import hashlib
import json
import math
import re
from importlib.resources import files
from typing import Any

import asyncpg
import pytest

from noetl.adapters.postgres.shape import result_function_sql
from noetl.core import kinds
from noetl.core.codec import canonical_bytes, canonical_json
from noetl.core.errors import EnvelopeInvalid, LedgerCorrupt
from noetl.core.event import Event, envelope, seal
from noetl.core.kinds import KINDS
from noetl.core.limits import EVENT_RESULT_BYTES_MAX
from noetl.core.reference import Result
from tests.support.aio import asynchronous
from tests.support.backends import Backend, OpenBackend, appender
from tests.support.databases import connected
from tests.support.events import decision, offer

ERROR = {
    "kind": "python",
    "code": "E1",
    "status": 500,
    "retryable": True,
    "message": 'it broke: "quoted", \\ and a line\nend',
}


def samples(b: Backend, execution_id: int) -> list[Event]:
    """One event of every kind, failures included, with every optional field somewhere."""
    reference = b.make.payload(b"{}").reference
    ok = Result(
        status="ok",
        reference=reference,
        parent_ref=7,
        context={"atoms": {"k": {"v": [1, 2.5, None, True, "x"]}, "u": {"u": 1}}},
    ).to_json()
    failed = Result(status="error", context={"error": ERROR}).to_json()
    bare = Result(status="error", context={}).to_json()
    writes = [{"path": ["a", "b"], "v": {"n": 1}}, {"path": ["r"], "ref": reference.to_json(), "p": [0, "k"]}]
    start = b.make.initialized(
        execution_id,
        idempotency_key="key",
        parent_execution_id=5,
        meta={"path": "p", "playbook": reference.to_json(), "entry": "s", "workload": {"a": {"v": 1}}},
    )
    c = {"command_id": "s#1"}
    e = b.make.event
    return [
        start,
        e(execution_id, kinds.COMMAND_ISSUED, "command.issued/s#1", causation_id=start.event_id, **c),
        e(execution_id, kinds.COMMAND_CLAIMED, "command.claimed/s#1/1", meta={"attempt": 1}, **c),
        *job_samples(b, execution_id, reference=reference.to_json()),
        e(
            execution_id,
            kinds.TASK_WAITING,
            "task.waiting/s#1/1",
            meta={"n": 1, "delay_seconds": 2.5, "due_at": b.make.clock.now()},
            payload_ref=reference.to_json(),
            writes=writes,
            **c,
        ),
        e(execution_id, kinds.TIMER_FIRED, "timer.fired/retry/s#1/1", meta={"name": "retry/s#1/1"}),
        e(execution_id, kinds.COMMAND_COMPLETED, "command.terminal/s#1", result=ok, writes=writes, **c),
        e(execution_id, kinds.COMMAND_FAILED, "command.terminal/t#1", result=failed, command_id="t#1"),
        e(execution_id, kinds.COMMAND_FAILED, "command.terminal/u#1", result=bare, command_id="u#1"),
        e(
            execution_id,
            kinds.STEP_DECIDED,
            "step.decided/s#1",
            meta={"outcome": "failed", "error": ERROR, "arcs": [], "targets": ["x"]},
            parent_event_id=9,
        ),
        *loop_samples(b, execution_id, ok=ok, failed=failed, reference=reference.to_json()),
        *lifecycle_samples(b, execution_id, ok=ok),
        e(execution_id, kinds.PLAYBOOK_COMPLETED, "execution.terminal", result=ok, meta={"step": "s"}),
    ]


def content_of(event: Event) -> Event:
    """An event without what the ledger gives."""
    return event._replace(shard_id=0, position=0, stream_version=0, ingest_time="")


def loop_samples(
    b: Backend, execution_id: int, *, ok: dict[str, Any], failed: dict[str, Any], reference: dict[str, Any]
) -> list[Event]:
    """A loop of two frames: one is lost, taken over and committed, the other fails."""
    stage = {"stage_id": "s#1"}
    window = {"step": "s", "run": 1, "first": 0, "rows": 9, "concurrency": 4}
    taken_over = {"retry_mode": "behind_persisted_rows", "skipped": 3}
    policy = {"is_sequential": False, "max_in_flight": 4, "is_best_effort": True, "one_row_frames": False}
    counts = {"outcomes": {"success": 8, "failed": 1, "skipped": 0}, "profile": {"rows": 9, "wall_ms": 12.5}}

    def frame(event_type: str, number: int, attempt: int, **fields: Any) -> Event:
        frame_id = f"s#1/{number}"
        key = kinds.frame_key(event_type, frame_id, attempt)
        return b.make.event(execution_id, event_type, fields.pop("key", key), frame_id=frame_id, **stage, **fields)

    collection = {"ref": reference, "path": []}
    return [
        b.make.event(
            execution_id,
            kinds.LOOP_STARTED,
            kinds.loop_started_key("s#1"),
            meta={"step": "s", "run": 1, "total": 18, "collection": collection, "policy": policy, "parents": []},
            **stage,
        ),
        frame(kinds.FRAME_DISPATCHED, 1, 1, meta={**window, "number": 1, "attempt": 1}),
        frame(kinds.FRAME_STARTED, 1, 1, meta={"attempt": 1, "session": "7"}),
        frame(
            kinds.CURSOR_CLAIMED,
            1,
            1,
            key="cursor.claimed/s#1/1/1/1",
            meta={"step": "s", "attempt": 1, "n": 1, "rows": 9, "xid": "748", "place": "db"},
            payload_ref=reference,
        ),
        frame(
            kinds.FRAME_HEARTBEAT,
            1,
            1,
            key=kinds.frame_heartbeat_key("s#1/1", 1, 1),
            meta={"step": "s", "attempt": 1, "n": 1, "ranges": [[0, 2], [5, 6]], "failed": 1},
            payload_ref=reference,
        ),
        frame(kinds.FRAME_ABANDONED, 1, 1, meta={"step": "s", "attempt": 1, **taken_over}),
        frame(kinds.FRAME_DISPATCHED, 1, 2, meta={**window, "number": 1, "attempt": 2, **taken_over}),
        frame(kinds.FRAME_STARTED, 1, 2, meta={"attempt": 2, "session": "8"}),
        frame(
            kinds.FRAME_COMMITTED,
            1,
            2,
            key=kinds.frame_terminal_key("s#1/1"),
            meta={"step": "s", "attempt": 2, **counts},
            result=ok,
            writes=[{"path": ["a"], "v": 1}],
        ),
        frame(
            kinds.FRAME_FAILED,
            2,
            1,
            key=kinds.frame_terminal_key("s#1/2"),
            meta={"step": "s", "attempt": 1, "outcomes": {"success": 0, "failed": 9, "skipped": 0}},
            result=failed,
        ),
        b.make.event(
            execution_id,
            kinds.LOOP_DONE,
            kinds.loop_done_key("s#1"),
            meta={"step": "s", "run": 1, "total": 18, "done": 18, "failed": 10, "frames": 2, "status": "ok"},
            **stage,
        ),
        *stage_samples(b, execution_id),
    ]


def stage_samples(b: Backend, execution_id: int) -> list[Event]:
    """What is told about a stage and its shards."""
    told: dict[str, dict[str, Any]] = {
        kinds.STAGE_OPENED: {"parents": [], "stage_kind": "fanout", "source": "collection"},
        kinds.FANOUT_STARTED: {"total": 18, "total_shards": 2, "shard_size": 9},
        kinds.FANIN_COMPLETED: {"fanin": {"status": "partial", "total": 2, "succeeded": 1, "failed": 1}},
        kinds.STAGE_CLOSED: {"status": "ok", "total": 18, "done": 18, "failed": 10, "frames": 2},
    }
    about = {"step": "s", "run": 1}
    shards = ((kinds.SHARD_DONE, 0), (kinds.SHARD_FAILED, 1))
    return [
        *(
            b.make.event(execution_id, name, kinds.stage_key(name, "s#1"), meta={**about, **more}, stage_id="s#1")
            for name, more in told.items()
        ),
        *(
            b.make.event(
                execution_id,
                name,
                kinds.shard_key("s#1", shard),
                meta={**about, "shard_index": shard, "first": 9 * shard, "rows": 9, "tries": 0},
                stage_id="s#1",
                frame_id=f"s#1/{shard + 1}",
            )
            for name, shard in shards
        ),
    ]


def job_samples(b: Backend, execution_id: int, *, reference: dict[str, Any]) -> list[Event]:
    """A job of Spark's: what is about to run, and how far it came."""
    place = {"job_group": "g", "application": "local-1", "ui": "http://127.0.0.1:4040", "started": b.make.clock.now()}
    count = {"jobs": [0, 1], "stages": 3, "stages_done": 1, "tasks": 9, "tasks_done": 4, "tasks_failed": 0}
    held = {"step": "s", "attempt": 1}
    return [
        b.make.event(
            execution_id,
            kinds.JOB_INTENDED,
            kinds.job_key(kinds.JOB_INTENDED, "s#1", 1, 1),
            meta={**held, "n": 1, "task": "t", **place},
            payload_ref=reference,
            command_id="s#1",
        ),
        b.make.event(
            execution_id,
            kinds.JOB_PROGRESSED,
            kinds.job_key(kinds.JOB_PROGRESSED, "s#1", 1, 2),
            meta={**held, "n": 2, **count},
            command_id="s#1",
        ),
    ]


def lifecycle_samples(b: Backend, execution_id: int, *, ok: dict[str, Any]) -> list[Event]:
    """A child that is waited for, and a wish to end early."""
    e, c = b.make.event, {"command_id": "s#2"}
    link = {"step": "s", "n": 1, "child_execution_id": "9", "path": "p"}
    return [
        e(execution_id, kinds.CHILD_STARTED, kinds.child_key(kinds.CHILD_STARTED, "s#2", 1), meta=link, **c),
        e(
            execution_id,
            kinds.CHILD_TERMINAL,
            kinds.child_key(kinds.CHILD_TERMINAL, "s#2", 1),
            meta={**link, "status": "completed"},
            result=ok,
            **c,
        ),
        e(execution_id, kinds.CANCEL_REQUESTED, kinds.CANCEL_REQUESTED_KEY, meta={"reason": "enough"}),
        e(execution_id, kinds.EXECUTION_SEEDED, kinds.seeded_key(1), meta={"n": 1, "state": {"runs": [["s", 1]]}}),
        # Of a reserved execution in truth; the table makes no difference.
        e(
            execution_id,
            kinds.CHECKPOINT_COMMITTED,
            kinds.checkpoint_key(7),
            meta={"epoch": 7, "shard": 3, "position": 9, "last_event_id": "8"},
        ),
    ]


@pytest.mark.parametrize("way", ["append", "advance"])
@pytest.mark.parametrize("end", sorted(kind.event_type for kind in KINDS.values() if kind.closes))
@asynchronous
async def test_every_kind_of_event_comes_back_as_it_was(backend: OpenBackend, way: str, end: str) -> None:
    async with backend() as b:
        execution = b.make.execution_id()
        events = samples(b, execution)
        events[-1] = events[-1]._replace(event_type=end)
        ends = {kind.event_type for kind in KINDS.values() if kind.closes}
        assert {event.event_type for event in events} == set(KINDS) - (ends - {end})
        if way == "append":
            await b.ledger.append([offer(3, *events)])
        else:
            head = next(head for head in await b.own() if head.shard_id == 3)
            placed = [e._replace(shard_id=3, stream_version=n) for n, e in enumerate(events, start=1)]
            assert await b.ledger.advance(decision([head], *placed)) == {3}
        stored = await b.ledger.read_execution(execution)
        assert [content_of(event) for event in stored] == events
        assert [event.stream_version for event in stored] == list(range(1, len(events) + 1))
        for old, new in zip(events, stored, strict=True):
            assert hashlib.sha256(canonical_bytes(envelope(new))).hexdigest() == seal(old).checksum
            assert new.ingest_time


CORNERS: dict[str, Any] = {
    "large float": 1e22,
    "negative zero": -0.0,
    "small float": 5e-324,
    "shortest repr": 0.1 + 0.2,
    "big integer": 10**40,
    "negative integer": -(2**63) - 1,
    "NUL": "a\0b\0\0",
    "NUL alone": "\0",
    "not a NUL": "\\u0000 \\\\u0000",
    "both": "\\\0 \\\\\0 \\u0000\0",
    "emoji": "🎈 and 👩‍👩‍👧",
    "separators": "\u2028\u2029\x7f\x1f\t\r\n",
    "private use": "\ue000\ue0010\ue001 \uffff",
    "mark beside NUL": "\ue0000\ue001\0\ue0001\ue001",
    "quotes": "\"\\/'; DROP TABLE noetl.event; --",
    "empty key": {"": {"": []}},
    "key order": {"é": 1, "z": 2, "Z": 3, "\U0001f388": 4, "\uffff": 5, "a\0": 6},
    "nested": [[[[{"a": [None, True, False]}]]]],
}


@pytest.mark.parametrize("name", CORNERS)
@asynchronous
async def test_every_corner_of_json_comes_back_with_the_same_bytes(backend: OpenBackend, name: str) -> None:
    value = CORNERS[name]
    async with backend() as b, appender(b.ledger) as group:
        execution = b.make.execution_id()
        result = Result(status="ok", context={"atoms": {"x": {"v": value}}}).to_json()
        writes = [{"path": ["x"], "v": value}]
        first = b.make.initialized(execution, meta={"workload": {"x": {"v": value}}})
        second = b.make.completed(execution, result=result, writes=writes, payload_ref={"x": value})
        await group.append(offer(3, first))
        head = next(head for head in await b.own() if head.shard_id == 3)
        await b.ledger.advance(decision([head], second._replace(shard_id=3, stream_version=2)))
        stored = await b.ledger.read_execution(execution)
        assert [canonical_json(envelope(event)) for event in stored] == [seal(first).text, seal(second).text]
        # And what is stored is found equal when it is offered again.
        again = await group.append(offer(3, second._replace(event_id=1)))
        assert again[0].is_duplicate


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, "\ud800", {"\udfff": 1}, b"bytes", {1, 2}, {(1, 2): 3}, 10**5000],
    ids=["nan", "inf", "-inf", "surrogate", "surrogate key", "bytes", "set", "tuple key", "endless integer"],
)
def test_what_has_no_canonical_form_is_not_sealed(value: object) -> None:
    event = Event(1, 1, "t", "o", kinds.STEP_DECIDED, "", "p", "k", "c", meta={"x": value})
    with pytest.raises(EnvelopeInvalid, match="canonical"):
        seal(event)


@pytest.mark.parametrize("field", ["transition_key", "command_id", "producer", "tenant_id"])
@asynchronous
async def test_a_nul_outside_the_bodies_is_refused(backend: OpenBackend, field: str) -> None:
    async with backend() as b:
        execution = b.make.execution_id()
        event = b.make.issued(execution)._replace(**{field: "a\0b"})
        with pytest.raises(EnvelopeInvalid):
            await b.ledger.append([offer(3, event)])
        head = next(head for head in await b.own() if head.shard_id == 3)
        with pytest.raises(EnvelopeInvalid):
            await b.ledger.advance(decision([head], event._replace(shard_id=3, stream_version=1)))
        assert await b.ledger.read_execution(execution) == []


@asynchronous
async def test_a_damaged_row_is_found_when_it_is_read(backend: OpenBackend) -> None:
    async with backend() as b:
        execution = b.make.execution_id()
        await b.ledger.append([offer(13, b.make.initialized(execution))])
        await b.tamper(execution)
        with pytest.raises(LedgerCorrupt):
            await b.ledger.read_execution(execution)


# --- the shape of a result --------------------------------------------------------------------------------

GOOD = {"status": "ok", "reference": None, "parent_ref": None, "context": {}}
BAD_SHAPES: dict[str, Any] = {
    "extra key": {**GOOD, "error": {}},
    "extra key before": {**GOOD, "a": 1},
    "extra key after": {**GOOD, "z": 1},
    "no status": {key: value for key, value in GOOD.items() if key != "status"},
    "no reference": {key: value for key, value in GOOD.items() if key != "reference"},
    "no parent_ref": {key: value for key, value in GOOD.items() if key != "parent_ref"},
    "no context": {key: value for key, value in GOOD.items() if key != "context"},
    "status null": {**GOOD, "status": None},
    "status number": {**GOOD, "status": 1},
    "status object": {**GOOD, "status": {}},
    "reference text": {**GOOD, "reference": "noetl://"},
    "reference list": {**GOOD, "reference": []},
    "parent_ref true": {**GOOD, "parent_ref": True},
    "context null": {**GOOD, "context": None},
    "context list": {**GOOD, "context": []},
    "context text": {**GOOD, "context": "x"},
    "empty": {},
    "list": [GOOD],
    "text": "ok",
    "number": 1,
    "too large": {**GOOD, "context": {"x": "y" * EVENT_RESULT_BYTES_MAX}},
    "too large by one": {**GOOD, "context": {"x": "y" * (EVENT_RESULT_BYTES_MAX - 68)}},
    "extra key with NUL": {**GOOD, "context": {"x": "\0"}, "z": 1},
    "wrong type with NUL": {**GOOD, "context": {"x": "\0"}, "status": {}},
    "too large with NUL": {**GOOD, "context": {"x": "\0" * (EVENT_RESULT_BYTES_MAX // 6)}},
}
BAD_TEXTS = {
    "space": '{"context":{}, "parent_ref":null,"reference":null,"status":"ok"}',
    "space after": '{"context":{},"parent_ref":null,"reference":null,"status":"ok"} ',
    "space before a value": '{"context": {},"parent_ref":null,"reference":null,"status":"ok"}',
    "newline": '{"context":{},"parent_ref":null,"reference":null,"status":"ok"\n}',
    "other order": '{"status":"ok","context":{},"parent_ref":null,"reference":null}',
    "twice": '{"context":{},"parent_ref":null,"reference":null,"status":"ok","status":"ok"}',
    "json null": "null",
}


def completed(result: Any) -> Event:
    return Event(1, 1, "t", "o", kinds.COMMAND_COMPLETED, "", "p", "k", "c", command_id="s#1", result=result, meta={})


def insert_sql(result: str) -> tuple[str, list[object]]:
    columns: dict[str, object] = {
        "execution_id": 1,
        "position": 1,
        "shard_id": 0,
        "event_id": 1,
        "stream_version": 1,
        "schema_version": 1,
        "checksum": bytes(32),
        "meta": "{}",
        "result": result,
    }
    texts = "tenant_id organization_id stream_id aggregate_type aggregate_id event_type schema_name producer"
    columns |= dict.fromkeys((*texts.split(), "correlation_id", "transition_key"), "x")
    names = ", ".join(columns)
    values = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
    return (
        f"INSERT INTO noetl.event ({names}, event_time, ingest_time) VALUES ({values}, now(), now())",
        list(columns.values()),
    )


async def insert(address: str, result: str) -> None:
    """Straight into the table, and back out of it."""
    statement, values = insert_sql(result)
    async with connected(address) as connection:
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute(statement, *values)
        finally:
            await transaction.rollback()


@pytest.mark.parametrize("name", BAD_SHAPES)
def test_seal_refuses_every_other_shape_of_a_result(name: str) -> None:
    with pytest.raises(EnvelopeInvalid, match="result"):
        seal(completed(BAD_SHAPES[name]))


@pytest.mark.parametrize("name", [*BAD_SHAPES, *BAD_TEXTS])
@asynchronous
async def test_the_table_refuses_every_other_shape_of_a_result(address: str, name: str) -> None:
    text = BAD_TEXTS[name] if name in BAD_TEXTS else canonical_json(BAD_SHAPES[name])
    with pytest.raises(asyncpg.CheckViolationError, match="chk_event_result_shape"):
        await insert(address, text)


@pytest.mark.parametrize(
    "result",
    [
        GOOD,
        {**GOOD, "reference": {"a": 1}, "parent_ref": {}, "context": {"deep": [{"a": "}"}]}},
        {**GOOD, "context": {"x": "y" * (EVENT_RESULT_BYTES_MAX - 69)}},
        {**GOOD, "status": '","context":{}', "context": {'","status":"': "\\"}},
        {**GOOD, "context": {"\0": "\0", "x": "\\u0000\\"}, "status": "\0"},
        {**GOOD, "context": {"x": "\0" * 1353}},
    ],
    ids=["plain", "nested", "largest", "quotes", "NUL", "largest with NUL"],
)
@asynchronous
async def test_the_table_takes_what_seal_takes(address: str, result: dict[str, object]) -> None:
    seal(completed(result))
    await insert(address, canonical_json(result))


def test_the_migration_has_the_generated_check() -> None:
    migration = files("noetl.adapters.postgres").joinpath("migrations", "0001_pre_ledger.sql").read_text()
    assert _packed(result_function_sql()) in _packed(migration)
    assert "CONSTRAINT chk_event_result_shape CHECK (noetl.is_result(result))" in migration


def _packed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@asynchronous
async def test_the_database_has_the_generated_check(address: str) -> None:
    definition = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = $1 AND conrelid = $2::regclass"
    async with connected(address) as connection:
        body = await connection.fetchval("SELECT prosrc FROM pg_proc WHERE oid = 'noetl.is_result(json)'::regprocedure")
        assert _packed(body) in _packed(result_function_sql())
        rows = await connection.fetch(
            "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'noetl.event'::regclass"
        )
        for table in ("noetl.event", *(row["name"] for row in rows)):
            found = await connection.fetchval(definition, "chk_event_result_shape", table)
            assert found.replace("noetl.", "") == "CHECK (is_result(result))"


def test_bodies_are_json_and_not_jsonb() -> None:
    """jsonb changes `1e+22` and `-0.0` and refuses NUL: the hashed bytes would not be the stored ones."""
    migration = files("noetl.adapters.postgres").joinpath("migrations", "0001_pre_ledger.sql").read_text()
    assert "jsonb" not in re.sub(r"--.*", "", migration)
    assert json.loads("1e+22") == 1e22
