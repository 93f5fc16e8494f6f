"""The collector on Postgres: what is kept, what becomes a candidate, what is deleted and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.memory.collecting import TimedPayloads
from noetl.adapters.postgres.collecting.books import only_collector
from noetl.core.errors import CollectionBusy, LeaseLost
from noetl.core.reference import Payload, Result
from noetl.engine.collecting.report import DELETED, KEPT, NOMINATED, WAITING, YOUNG
from tests.support.aio import asynchronous
from tests.support.backends import Backend, postgres_backend
from tests.support.collecting import age, collect, small, stored, until_gone
from tests.support.databases import connected, fresh_database
from tests.support.events import decision, offer


@pytest.fixture
def address() -> str:
    return fresh_database(shards=2)


async def put(address: str, *payloads: Payload) -> None:
    async with postgres_backend(address) as backend:
        for payload in payloads:
            await backend.payloads.put(payload)


async def named(address: str, *payloads: Payload) -> None:
    """One event for each, which has it as its result."""
    async with postgres_backend(address) as backend:
        for payload in payloads:
            await append(backend, payload)


async def append(backend: Backend, payload: Payload, *, payloads: Sequence[Payload] | None = None) -> None:
    make = replace(backend.make, tenant_id=payload.tenant_id, organization_id=payload.organization_id)
    execution_id = make.execution_id()
    result = Result(status="ok", reference=payload.reference).to_json()
    events = (make.initialized(execution_id), make.completed(execution_id, result=result))
    await backend.ledger.append([offer(0, *events, payloads=[payload] if payloads is None else payloads)])


def naming(*payloads: Payload) -> Payload:
    """A document with references."""
    return small(json.dumps([payload.reference.to_json() for payload in payloads]).encode())


# --- the way of an orphan --------------------------------------------------------------------------------


@asynchronous
async def test_an_orphan_is_found_nominated_and_deleted_after_the_grace(address: str) -> None:
    orphan, kept = small(b"orphan"), small(b"kept")
    await put(address, orphan)
    await named(address, kept)
    fresh = await collect(address)
    assert (fresh.total([YOUNG]).count, fresh.held, fresh.reachable) == (1, 2, 1)

    await age(address, hours=30)
    looked = await collect(address, is_dry_run=True)
    assert (looked.total([NOMINATED]).count, looked.total([NOMINATED]).bytes) == (1, 6)
    ((kind, _),) = looked.heaps.items()
    assert (kind.owner, kind.store, kind.media_type) == (("acme", "sales"), "db", "application/json")

    assert (await collect(address)).total([NOMINATED]).count == 1  # a dry run nominates nobody
    await age(address, hours=23)
    assert (await collect(address)).total([WAITING]).count == 1
    await age(address, hours=1.1)
    assert (await collect(address, is_dry_run=True)).total([DELETED]).count == 1
    assert await stored(address) == {orphan.reference.sha256, kept.reference.sha256}
    assert (await collect(address)).total([DELETED]).count == 1
    assert await stored(address) == {kept.reference.sha256}
    after = await collect(address)
    assert (after.heaps, after.held) == ({}, 1)


@asynchronous
async def test_a_candidate_that_is_put_again_begins_anew(address: str) -> None:
    orphan = small(b"orphan")
    await put(address, orphan)
    await age(address, hours=30)
    assert (await collect(address)).total([NOMINATED]).count == 1
    await age(address, hours=30)
    await put(address, orphan)
    assert (await collect(address)).total([YOUNG]).count == 1
    await age(address, hours=30)
    assert (await collect(address)).total([NOMINATED]).count == 1
    assert await stored(address) == {orphan.reference.sha256}


@asynchronous
async def test_a_candidate_that_is_named_meanwhile_is_none_any_more(address: str) -> None:
    orphan = small(b"orphan")
    await put(address, orphan)
    await age(address, hours=30)
    await collect(address)
    await named(address, orphan)
    for _ in range(2):
        await age(address, hours=30)
        report = await collect(address)
        assert (report.heaps, report.reachable) == ({}, 1)
    async with connected(address) as connection:
        assert await connection.fetchval("SELECT count(*) FROM noetl.payload_candidate") == 0


@asynchronous
async def test_what_is_older_than_the_ttl_goes_without_having_been_a_candidate(address: str) -> None:
    orphan, kept = small(b"orphan"), small(b"kept")
    await put(address, orphan)
    await named(address, kept)
    await age(address, hours=89 * 24)
    assert (await collect(address, is_dry_run=True)).total([NOMINATED]).count == 1
    await age(address, hours=2 * 24)
    assert (await collect(address)).total([DELETED]).count == 1
    assert await stored(address) == {kept.reference.sha256}


@asynchronous
async def test_what_was_put_since_the_oldest_work_began_is_left_alone(address: str) -> None:
    """A task that takes longer than any grace stores first and is recorded days later."""
    await put(address, small(b"put before"))
    await age(address, hours=200)
    await put(address, small(b"put by the task"))
    async with connected(address) as connection:
        await connection.execute(
            "INSERT INTO noetl.command (execution_id, command_id, shard_id, tenant_id, organization_id, pool, "
            "tool_kind, available_at, session_id, body) VALUES (1, 'a#1', 0, 'acme', 'sales', 'default', 'noop', "
            "clock_timestamp() - interval '150 hours', 7, '{}')"
        )
    await until_gone(address)
    assert await stored(address) == {small(b"put by the task").reference.sha256}
    async with connected(address) as connection:
        await connection.execute("UPDATE noetl.command SET session_id = NULL")
    await until_gone(address)
    assert await stored(address) == set()


@asynchronous
async def test_a_dry_run_changes_nothing(address: str) -> None:
    await put(address, small(b"one"), small(b"two"))
    await age(address, hours=30)
    await collect(address)
    await age(address, hours=30)

    async def rows() -> list[object]:
        async with connected(address) as connection:
            tables = ("payload", "payload_candidate")
            return [await connection.fetch(f"SELECT * FROM noetl.{table} ORDER BY 1, 2, 3") for table in tables]

    before = await rows()
    assert (await collect(address, is_dry_run=True)).total([DELETED]).count == 2
    assert await rows() == before


@asynchronous
async def test_what_belongs_to_another_tenant_is_not_reachable_by_its_digest(address: str) -> None:
    ours, theirs = small(b"the same"), small(b"the same", tenant_id="other")
    await put(address, ours, theirs)
    await named(address, ours)
    await until_gone(address)
    async with connected(address) as connection:
        assert await connection.fetch("SELECT tenant_id FROM noetl.payload") == [("acme",)]


# --- payloads that name payloads -------------------------------------------------------------------------


@asynchronous
async def test_what_a_payload_names_is_reachable_through_it(address: str) -> None:
    leaf = small(b"leaf")
    chain = [leaf]
    for _ in range(6):
        chain.append(naming(chain[-1]))
    orphan = naming(small(b"named by an orphan"))
    await put(address, *chain[:-1], orphan, small(b"named by an orphan"))
    await named(address, chain[-1])
    await until_gone(address)
    assert await stored(address) == {payload.reference.sha256 for payload in chain}


@asynchronous
async def test_rows_in_columns_name_nothing(address: str) -> None:
    inner = small(b"inner")
    rows = small(b"\xff\xff\xff\xff" + inner.reference.sha256.encode())
    await put(address, inner)
    await named(address, rows)
    await until_gone(address)
    assert await stored(address) == {rows.reference.sha256}


@asynchronous
async def test_names_are_read_once_from_a_distant_store(address: str) -> None:
    contents: dict[tuple[str, str, str], bytes] = {}
    times: dict[tuple[str, str, str], float] = {}
    distant = TimedPayloads(contents, times, name="file", clock=VirtualClock())
    inner = replace(small(b"inner"), reference=replace(small(b"inner").reference, store="file"))
    outer, orphan = naming(inner), naming(small(b"nobody"))
    for payload in (inner, outer, orphan):
        await distant.put(payload)
    await named(address, naming(outer))
    first = await collect(address, stores=[distant])
    assert (first.payloads_read, first.reachable) == (3, 3)
    second = await collect(address, stores=[distant])
    assert (second.payloads_read, second.reachable) == (1, 3)  # the small one is read again, which costs nothing
    await collect(address, stores=[distant], is_dry_run=True)
    await until_gone(address, stores=[distant])
    assert {key[2] for key in contents} == {inner.reference.sha256, outer.reference.sha256}
    async with connected(address) as connection:
        found = {row["sha256"] for row in await connection.fetch("SELECT sha256 FROM noetl.payload_names")}
    assert found == {inner.reference.sha256, outer.reference.sha256}


@asynchronous
async def test_while_a_payload_is_damaged_nothing_of_its_owner_is_deleted(address: str) -> None:
    damaged, orphan = small(b"will be damaged"), small(b"orphan")
    other = small(b"orphan of another", tenant_id="other")
    await put(address, orphan, other)
    await named(address, damaged)
    async with connected(address) as connection:
        await connection.execute(
            "UPDATE noetl.payload SET content = 'damaged' WHERE sha256 = $1", damaged.reference.sha256
        )
    report = (await until_gone(address))[-1]
    assert (report.total([KEPT]).count, report.total([DELETED]).count) == (1, 1)
    assert damaged.reference.sha256 in report.damaged[0]
    assert await stored(address) == {damaged.reference.sha256, orphan.reference.sha256}


@pytest.mark.parametrize("store", ["s3", "file"])
@asynchronous
async def test_a_payload_that_is_named_and_nowhere_keeps_everything_of_its_owner(address: str, store: str) -> None:
    """It may be in a store that is not configured here, and what it names with it."""
    inner, other = small(b"inner"), small(b"orphan of another", tenant_id="other")
    elsewhere = naming(inner)
    elsewhere = replace(elsewhere, reference=replace(elsewhere.reference, store=store))
    await put(address, inner, other)
    async with postgres_backend(address) as backend:
        await append(backend, elsewhere, payloads=[])
    report = (await until_gone(address))[-1]
    assert (report.total([KEPT]).count, report.total([DELETED]).count, report.missing) == (1, 1, 1)
    assert elsewhere.reference.uri in report.damaged[0]
    assert await stored(address) == {inner.reference.sha256}
    report = await collect(address, forgets_missing=True)
    assert (report.total([DELETED]).count, report.missing, report.damaged) == (1, 1, [])
    assert await stored(address) == set()


class Unlisted(TimedPayloads):
    """Everything was put after it was listed."""

    async def owners(self) -> AsyncIterator[tuple[str, str]]:
        for owner in ():
            yield owner


@asynchronous
async def test_a_payload_that_was_put_after_the_listing_is_followed(address: str) -> None:
    inner, leaf = naming(small(b"leaf")), small(b"leaf")
    late = naming(inner)
    late = replace(late, reference=replace(late.reference, store="file"))
    store = Unlisted({}, {}, name="file", clock=VirtualClock())
    await store.put(late)
    await put(address, inner, leaf, small(b"orphan"))
    async with postgres_backend(address) as backend:
        await append(backend, late, payloads=[])
    report = (await until_gone(address, stores=[store]))[-1]
    assert (report.missing, report.total([DELETED]).count) == (0, 1)
    assert await stored(address) == {inner.reference.sha256, leaf.reference.sha256}


# --- renewal ---------------------------------------------------------------------------------------------


async def times(address: str) -> dict[str, tuple[object, object]]:
    async with connected(address) as connection:
        rows = await connection.fetch("SELECT sha256, renewed_at, ctid::text AS place FROM noetl.payload")
        return {row["sha256"]: (row["renewed_at"], row["place"]) for row in rows}


@pytest.mark.parametrize("way", ["append", "advance", "advance of several", "put"])
@asynchronous
async def test_reuse_renews_what_is_old_and_writes_nothing_when_it_is_not(address: str, way: str) -> None:
    one, two = small(b"one"), small(b"two")

    async def use() -> None:
        async with postgres_backend(address) as backend:
            make, execution_id = backend.make, backend.make.execution_id()
            if way == "append":
                # Two offers of one commit carry the same.
                other = make.execution_id()
                await backend.ledger.append(
                    [
                        offer(0, make.initialized(execution_id), payloads=[one, two]),
                        offer(1, make.initialized(other), payloads=[two, one]),
                    ]
                )
            elif way == "put":
                await backend.payloads.put(one)
                await backend.payloads.put(two)
            else:
                heads = [head for head in await backend.own() if head.shard_id == 0]
                payloads = [one, two, one] if way == "advance of several" else [one]
                event = make.initialized(execution_id)._replace(shard_id=0, stream_version=1)
                await backend.ledger.advance(decision(heads, event, payloads=payloads))
                if way == "advance":
                    await backend.payloads.put(two)

    await use()
    first = await times(address)
    assert set(first) == {one.reference.sha256, two.reference.sha256}
    await use()
    assert await times(address) == first
    await age(address, hours=0.9)
    aged = await times(address)
    await use()
    assert await times(address) == aged
    await age(address, hours=0.2)
    await use()
    renewed = await times(address)
    assert all(renewed[sha256][0] >= first[sha256][0] for sha256 in first)  # type: ignore[operator]


@asynchronous
async def test_an_append_waits_for_a_deletion_and_stores_anew(address: str) -> None:
    payload = small(b"used again at the last moment")
    await put(address, payload)
    await age(address, hours=60)
    async with postgres_backend(address) as backend, connected(address) as collector:
        async with asyncio.TaskGroup() as group, collector.transaction():
            await collector.execute("DELETE FROM noetl.payload")
            using = group.create_task(append(backend, payload))
            await _until_waiting(address)
            assert not using.done()
        assert await stored(address) == {payload.reference.sha256}


@asynchronous
async def test_a_deletion_waits_for_an_append_and_spares_what_it_renewed(address: str) -> None:
    payload = small(b"used again at the last moment")
    await put(address, payload)
    await age(address, hours=60)
    await collect(address)
    await age(address, hours=60)
    async with connected(address) as appender, asyncio.TaskGroup() as group:
        async with appender.transaction():
            await appender.execute("UPDATE noetl.payload SET renewed_at = clock_timestamp()")
            collecting = group.create_task(collect(address))
            await _until_waiting(address)
        report = await collecting
    assert report.total(["renewed"]).count == 1
    assert await stored(address) == {payload.reference.sha256}


async def _until_waiting(address: str) -> None:
    """Somebody waits for a lock."""
    async with connected(address) as watcher, asyncio.timeout(60):
        while not await watcher.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ):
            await asyncio.sleep(0.005)


# --- one at a time ---------------------------------------------------------------------------------------


@asynchronous
async def test_a_second_collector_is_refused_until_the_first_has_ended(address: str) -> None:
    async with only_collector(address):
        with pytest.raises(CollectionBusy, match="another `noetl gc`"):
            await collect(address)
    await collect(address)


@asynchronous
async def test_a_collector_whose_turn_was_lost_deletes_nothing(address: str) -> None:
    orphan = small(b"orphan")
    await put(address, orphan)
    async with only_collector(address) as turn:
        await turn.check()
        async with connected(address) as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction' "
                "AND datname = current_database()"
            )
        with pytest.raises(LeaseLost):
            await turn.check()


@asynchronous
async def test_a_turn_holds_back_no_vacuum(address: str) -> None:
    async with only_collector(address), connected(address) as connection:
        rows = await connection.fetch(
            "SELECT backend_xid, backend_xmin FROM pg_stat_activity WHERE state = 'idle in transaction' "
            "AND datname = current_database()"
        )
        assert [tuple(row) for row in rows] == [(None, None)]
