"""Everything that may name a payload keeps it, and nothing of the schema was forgotten."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from noetl.adapters.postgres.collecting.roots import SOURCES
from noetl.core.reference import Payload, Result
from noetl.engine.collecting.report import DELETED
from tests.support.aio import asynchronous
from tests.support.backends import postgres_backend
from tests.support.collecting import age, collect, small, stored
from tests.support.databases import connected, fresh_database
from tests.support.events import offer

# Column → how a payload is named there.
EVENT = ("payload_ref", "result.reference", "result.parent_ref", "result.context", "writes", "meta", "meta by locator")
COMMAND = ("body",)
CATALOG = ("sha256", "payload", "scripts", "warnings")
PLANTED = {
    "events": tuple(f"event {place}" for place in EVENT),
    "commands": tuple(f"command {place}" for place in COMMAND),
    "catalog": tuple(f"catalog {place}" for place in CATALOG),
    "executions": ("execution playbook_digest",),
    "idempotency": ("idempotency request_digest",),
    "logs": ("log_chunk reference",),
}
ORPHAN = small(b"named by nobody")


def planted(place: str) -> Payload:
    return small(f"named by {place}".encode())


def reference(place: str) -> dict[str, Any]:
    return planted(place).reference.to_json()


def digest(place: str) -> str:
    return planted(place).reference.sha256


async def plant(address: str) -> None:
    places = [place for found in PLANTED.values() for place in found]
    async with postgres_backend(address) as backend:
        make = backend.make
        for payload in (*map(planted, places), ORPHAN):
            await backend.payloads.put(payload)
        execution_id = make.execution_id()
        result = Result(status="ok", context={"deep": [{"stored": reference("event result.context")}]}).to_json()
        result["reference"] = reference("event result.reference")
        result["parent_ref"] = reference("event result.parent_ref")
        meta = {"stdout": reference("event meta"), "script": reference("event meta by locator")["uri"]}
        completed = make.completed(
            execution_id,
            result=result,
            writes=[{"name": "x", "value": {"ref": reference("event writes")}}],
            payload_ref=reference("event payload_ref"),
            meta=meta,
        )
        await backend.ledger.append([offer(0, make.initialized(execution_id), completed)])
    async with connected(address) as connection:
        await connection.execute(
            "INSERT INTO noetl.command (execution_id, command_id, shard_id, tenant_id, organization_id, pool, "
            "tool_kind, body) VALUES (1, 'a#1', 0, 'acme', 'sales', 'default', 'noop', $1)",
            json.dumps({"resume": reference("command body")}),
        )
        await connection.execute(
            "INSERT INTO noetl.catalog (tenant_id, organization_id, path, version, sha256, media_type, name, payload, "
            "scripts, warnings) VALUES ('acme', 'sales', 'a', 1, $1, 'text', 'a', $2, $3, $4)",
            digest("catalog sha256"),
            json.dumps(reference("catalog payload")),
            json.dumps({"clean.py": {"reference": reference("catalog scripts")}}),
            json.dumps([{"message": digest("catalog warnings")}]),
        )
        await connection.execute(
            "INSERT INTO noetl.execution (execution_id, tenant_id, organization_id, shard_id, path, playbook_digest, "
            "status, started_at, last_event_id) VALUES (1, 'acme', 'sales', 0, 'a', $1, 'RUNNING', now(), 1)",
            digest("execution playbook_digest"),
        )
        await connection.execute(
            "INSERT INTO noetl.idempotency (tenant_id, organization_id, idempotency_key, request_digest, execution_id) "
            "VALUES ('acme', 'sales', 'key', $1, 1)",
            digest("idempotency request_digest"),
        )
        await connection.execute(
            "INSERT INTO noetl.log_chunk (execution_id, tenant_id, organization_id, step, command_id, attempt, seq, "
            "first_at, last_at, lines, bytes, reference) "
            "VALUES (1, 'acme', 'sales', 'a', 'a#1', 1, 1, now(), now(), 1, 1, $1)",
            json.dumps(reference("log_chunk reference")),
        )
    await age(address, hours=24 * 100)


@pytest.fixture(scope="module")
def address() -> str:
    """Old enough for everything that nothing names to go at once."""
    address = fresh_database(shards=2)
    asyncio.run(plant(address))
    return address


@pytest.mark.parametrize("dropped", SOURCES, ids=lambda source: source.name)
@asynchronous
async def test_each_source_keeps_what_only_it_names(address: str, dropped: Any) -> None:
    without = [source for source in SOURCES if source is not dropped]
    report = await collect(address, sources=without, is_dry_run=True)
    assert report.total([DELETED]).count == len(PLANTED[dropped.name]) + 1


@asynchronous
async def test_what_any_place_names_is_kept(address: str) -> None:
    report = await collect(address)
    assert report.total([DELETED]).count == 1
    assert await stored(address) == {digest(place) for found in PLANTED.values() for place in found}


# Columns that can hold text, of tables that are not read, or beside the ones that are.
NO_PAYLOADS = {
    "payload_candidate": "the books of the collector itself",
    "payload_names": "the books of the collector itself",
    "payload": "what is collected; its content is read when it is reachable",
    "result_ref": "derived from events that have the same reference, and dropped with their quarter",
    "credential": "sealed in the row itself",
    "migration": "names of migrations",
    "ledger": "one row about this ledger",
    "stream": "counters",
    "timer": "names of timers, made of commands",
    "runtime": "processes",
    "execution_shard": "owners of shards",
    "runtime_role": "who has which role",
    "session": "sessions of workers",
    "shared_limit": "rates and numbers of limits, by their names",
    "limit_lease": "who holds permits of them",
    "projector": "processes that keep projections",
    "projection_snapshot": "states folded from events that have the same references, and dropped with their quarter",
}
# Names, keys and states, which are never a digest of a payload.
PLAIN = {
    "event": {
        *("tenant_id", "organization_id", "stream_id", "aggregate_type", "aggregate_id", "event_type", "schema_name"),
        *("producer", "correlation_id", "idempotency_key", "transition_key", "command_id", "stage_id", "frame_id"),
        "checksum",
    },
    "command": {"command_id", "tenant_id", "organization_id", "pool", "tool_kind", "stop", "locality"},
    "catalog": {"tenant_id", "organization_id", "path", "media_type", "name"},
    # What is shown of a state was folded from events that have the same references.
    "execution": {"tenant_id", "organization_id", "path", "status", "last_step", "state", "quarantine"},
    "idempotency": {"tenant_id", "organization_id", "idempotency_key"},
    # What a program prints is no reference, even if it looks like one.
    "log_chunk": {"tenant_id", "organization_id", "step", "command_id", "content"},
}
READ = {
    "event": {"payload_ref", "result", "writes", "meta"},
    "command": {"body"},
    "catalog": {"sha256", "payload", "scripts", "scripts_sha256", "warnings"},
    "execution": {"playbook_digest"},
    "idempotency": {"request_digest"},
    "log_chunk": {"reference"},
}


@asynchronous
async def test_every_column_that_could_name_a_payload_is_read_or_explained(address: str) -> None:
    async with connected(address) as connection:
        rows = await connection.fetch(
            "SELECT c.relname AS table_name, a.attname AS column_name FROM pg_attribute AS a "
            "JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE n.nspname = 'noetl' AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND a.attnum > 0 "
            "AND NOT a.attisdropped AND format_type(a.atttypid, NULL) = ANY (ARRAY['text', 'text[]', 'json', 'jsonb', "
            "'bytea', 'character varying'])"
        )
    open_questions = sorted(
        f"{row['table_name']}.{row['column_name']}"
        for row in rows
        if row["table_name"] not in NO_PAYLOADS
        and row["column_name"] not in PLAIN.get(row["table_name"], set()) | READ.get(row["table_name"], set())
    )
    assert open_questions == [], "can it name a payload?  Then the collector must read it (collecting/roots.py)"
