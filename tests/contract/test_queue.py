"""The queue port and the executions port: reads of what is derived from events."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from noetl.core.codec import canonical_json
from noetl.ports.ledger import ExecutionRow, IdempotencyRow, QueuedCommand
from tests.support.aio import asynchronous
from tests.support.backends import Backend, OpenBackend
from tests.support.events import ORGANIZATION, TENANT, decision

OWNER = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
LONG_AGO = "2024-02-01T00:00:00.000000Z"
FAR_AWAY = "2124-02-01T00:00:00.000000Z"


def command(execution_id: int, command_id: str, **fields: Any) -> QueuedCommand:
    fields = {"shard_id": 2, "tool_kind": "noop", "body": "{}", **fields}
    return QueuedCommand(execution_id=execution_id, command_id=command_id, **OWNER, **fields)


async def commit(b: Backend, **parts: Any) -> None:
    head = next(head for head in await b.own() if head.shard_id == 2)
    assert await b.ledger.advance(decision([head], **parts)) == {2}


@asynchronous
async def test_the_longest_waiting_commands_of_a_pool_come_first(backend: OpenBackend) -> None:
    async with backend() as b:
        execution, pool = b.make.execution_id(), f"pool{b.make.execution_id()}"
        rows = [command(execution, f"s{n}#1", pool=pool) for n in (2, 0, 1)]
        for row in rows:
            await commit(b, queue=[row])
            await b.wait(0.001)
        await commit(b, queue=[command(execution, "elsewhere#1", pool="elsewhere")])
        await commit(b, queue=[command(execution, "held#1", pool=pool, session_id=4, attempt=1)])
        assert await b.queue.waiting(pool=pool, limit=10) == rows
        assert await b.queue.waiting(pool=pool, limit=2) == rows[:2]
        assert await b.queue.waiting(pool="nobody", limit=10) == []


@asynchronous
async def test_a_row_says_where_its_command_would_best_run(backend: OpenBackend) -> None:
    async with backend() as b:
        execution, pool = b.make.execution_id(), f"pool{b.make.execution_id()}"
        wish = '{"max_distance":"zone","source":{"node":"n1"}}'
        # Alone, and together with others: each has its own form of the statement.
        placed = command(execution, "s1#1", pool=pool, locality=wish)
        await commit(b, queue=[placed])
        assert await b.queue.waiting(pool=pool, limit=10) == [placed]
        more = [command(execution, f"t{n}#1", pool=pool, locality=wish if n else None) for n in range(2)]
        await commit(b, queue=more)
        assert {row.command_id: row.locality for row in await b.queue.commands_of(execution)} == {
            "s1#1": wish,
            "t0#1": None,
            "t1#1": wish,
        }
        await commit(b, queue=[command(execution, "s1#1", pool=pool)])
        assert (await b.queue.commands_of(execution))[0].locality is None, "the ledger says what it must be"


@asynchronous
async def test_a_claim_takes_a_command_out_of_the_waiting_ones(backend: OpenBackend) -> None:
    async with backend() as b:
        execution, pool = b.make.execution_id(), f"pool{b.make.execution_id()}"
        row = command(execution, "s#1", pool=pool, body='{"kept":true}')
        await commit(b, queue=[row])
        await commit(b, claims=[command(execution, "s#1", pool=pool, attempt=1, session_id=77)])
        assert await b.queue.waiting(pool=pool, limit=10) == []
        (held,) = await b.queue.commands_of(execution)
        assert (held.attempt, held.session_id, held.body) == (1, 77, '{"kept":true}')
        # A claim of a row that is gone makes no row.
        await commit(b, dequeue=[(execution, "s#1")])
        await commit(b, claims=[command(execution, "s#1", pool=pool, attempt=2, session_id=78)])
        assert await b.queue.commands_of(execution) == []


@asynchronous
async def test_a_rebuilt_row_replaces_the_old_one(backend: OpenBackend) -> None:
    async with backend() as b:
        execution, pool = b.make.execution_id(), f"pool{b.make.execution_id()}"
        await commit(b, queue=[command(execution, "s#1", pool=pool, session_id=5, attempt=1)])
        again = command(execution, "s#1", pool=pool, attempt=1, body='{"resume":1}')
        await commit(b, queue=[again])
        assert await b.queue.waiting(pool=pool, limit=10) == [again]


@pytest.mark.parametrize("count", [1, 2])
@asynchronous
async def test_a_rebuilt_row_is_in_the_pool_that_the_ledger_says(backend: OpenBackend, count: int) -> None:
    async with backend() as b:
        execution, pool = b.make.execution_id(), f"pool{b.make.execution_id()}"
        await commit(b, queue=[command(execution, f"s{n}#1", pool=f"not {pool}") for n in range(count)])
        again = [command(execution, f"s{n}#1", pool=pool, tool_kind="spark") for n in range(count)]
        await commit(b, queue=again)
        assert await b.queue.waiting(pool=f"not {pool}", limit=10) == []
        found = await b.queue.waiting(pool=pool, limit=10, kinds=["spark"])
        assert sorted(found, key=lambda row: row.command_id) == again


@asynchronous
async def test_what_dead_sessions_hold_is_given_back(backend: OpenBackend) -> None:
    async with backend() as b:
        await b.queue.release_all(except_sessions=[])
        execution, pool = b.make.execution_id(), f"pool{b.make.execution_id()}"
        rows = [command(execution, f"s{session}#1", pool=pool, session_id=session, attempt=1) for session in (1, 2, 3)]
        await commit(b, queue=rows)
        assert await b.queue.release_all(except_sessions=[2]) == 2
        waiting = await b.queue.waiting(pool=pool, limit=10)
        assert sorted(row.command_id for row in waiting) == ["s1#1", "s3#1"]
        assert {row.attempt for row in waiting} == {1}
        assert await b.queue.release_all(except_sessions=[2]) == 0


@asynchronous
async def test_one_session_gives_back_all_that_it_holds_or_some_of_it(backend: OpenBackend) -> None:
    async with backend() as b:
        execution, pool = b.make.execution_id(), f"pool{b.make.execution_id()}"
        dead, alive = b.make.execution_id(), b.make.execution_id()
        held = [command(execution, f"s{n}#1", pool=pool, session_id=dead, attempt=1) for n in range(4)]
        await commit(b, queue=[*held, command(execution, "kept#1", pool=pool, session_id=alive, attempt=1)])
        assert await b.queue.release(dead, commands=[(execution, "s2#1"), (execution, "kept#1"), (1, "s1#1")]) == 1
        assert [row.command_id for row in await b.queue.waiting(pool=pool, limit=10)] == ["s2#1"]
        assert await b.queue.release(dead, commands=[]) == 0
        assert await b.queue.release(dead) == 3
        waiting = await b.queue.waiting(pool=pool, limit=10)
        assert sorted(row.command_id for row in waiting) == ["s0#1", "s1#1", "s2#1", "s3#1"]
        assert await b.queue.release(dead) == 0
        assert await b.queue.release(alive) == 1


@asynchronous
async def test_with_kinds_only_those_wait_that_need_no_other_tools(backend: OpenBackend) -> None:
    async with backend() as b:
        execution, pool = b.make.execution_id(), f"pool{b.make.execution_id()}"
        for name, kind in (("a#1", "python"), ("b#1", "noop"), ("c#1", "http+noop"), ("d#1", "evaluate")):
            await commit(b, queue=[command(execution, name, pool=pool, tool_kind=kind)])
            await b.wait(0.001)

        async def found(*kinds: str) -> list[str]:
            return [row.command_id for row in await b.queue.waiting(pool=pool, limit=10, kinds=kinds)]

        assert await found("noop") == ["b#1"]
        assert await found("noop", "http") == ["b#1", "c#1"]
        assert await found("http") == []
        assert await found() == []
        assert [row.command_id for row in await b.queue.waiting(pool=pool, limit=1, kinds=["noop"])] == ["b#1"]


@asynchronous
async def test_a_body_is_kept_as_it_is(backend: OpenBackend) -> None:
    async with backend() as b:
        execution = b.make.execution_id()
        body = canonical_json({"text": 'nul \0, escaped \\u0000, quote " and 🎈', "big": 10**30, "f": 1e22})
        await commit(b, queue=[command(execution, "s#1", body=body)])
        assert [row.body for row in await b.queue.commands_of(execution)] == [body]


@asynchronous
async def test_due_timers_come_in_the_order_of_their_time(backend: OpenBackend) -> None:
    async with backend() as b:
        execution = b.make.execution_id()
        times = {"later": LONG_AGO.replace("02-01", "02-02"), "first": LONG_AGO, "future": FAR_AWAY}
        await commit(b, timers=[(execution, name, 2, due) for name, due in times.items()])
        due = await b.queue.due_timers(limit=10)
        assert [(timer.execution_id, timer.name, timer.shard_id) for timer in due] == [
            (execution, "first", 2),
            (execution, "later", 2),
        ]
        assert [timer.name for timer in await b.queue.due_timers(limit=1)] == ["first"]
        seconds = await b.queue.next_due_in()
        assert seconds is not None
        assert seconds < 0
        await commit(b, timers_gone=[(execution, "first"), (execution, "later")])
        assert await b.queue.due_timers(limit=10) == []
        seconds = await b.queue.next_due_in()
        assert seconds is not None
        assert seconds > 86_400
        await commit(b, timers_gone=[(execution, "future")])
        assert await b.queue.next_due_in() is None


@asynchronous
async def test_a_timer_that_is_there_stays_as_it_is(backend: OpenBackend) -> None:
    async with backend() as b:
        execution = b.make.execution_id()
        await commit(b, timers=[(execution, "one", 2, FAR_AWAY)])
        await commit(b, timers=[(execution, "one", 2, LONG_AGO)])
        assert await b.queue.due_timers(limit=10) == []
        await commit(b, timers_gone=[(execution, "one")])


@asynchronous
async def test_a_timer_is_due_when_its_time_comes(backend: OpenBackend) -> None:
    async with backend() as b:
        execution = b.make.execution_id()
        head = next(head for head in await b.own() if head.shard_id == 2)
        soon = _plus(b.make.clock.now(), 0.05)
        await b.ledger.advance(decision([head], timers=[(execution, "soon", 2, soon)]))
        seconds = await b.queue.next_due_in()
        assert seconds is not None
        assert seconds <= 0.05
        await b.wait(0.06)
        assert [timer.name for timer in await b.queue.due_timers(limit=10)] == ["soon"]
        await commit(b, timers_gone=[(execution, "soon")])


def _plus(moment: str, seconds: float) -> str:
    later = datetime.datetime.fromisoformat(moment) + datetime.timedelta(seconds=seconds)
    return later.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def shown(execution_id: int, *, tenant_id: str = TENANT) -> ExecutionRow:
    return ExecutionRow(
        execution_id=execution_id,
        tenant_id=tenant_id,
        organization_id=ORGANIZATION,
        shard_id=2,
        path="examples/one",
        playbook_digest="0" * 64,
        status="RUNNING",
        started_at=LONG_AGO,
        ended_at=None,
        last_step="start",
        last_event_id=execution_id,
        applied_position=1,
        parent_execution_id=None,
    )


@asynchronous
async def test_executions_of_other_tenants_do_not_exist(backend: OpenBackend) -> None:
    async with backend() as b:
        mine = [b.make.execution_id() for _ in range(3)]
        theirs = b.make.execution_id()
        rows = [shown(execution) for execution in mine]
        await commit(b, executions=[*rows, shown(theirs, tenant_id="other")])
        assert await b.executions.find(mine[0], **OWNER) == rows[0]
        assert await b.executions.find(theirs, **OWNER) is None
        assert await b.executions.find(mine[0], tenant_id=TENANT, organization_id="other") is None
        newest = await b.executions.newest(**OWNER, limit=2)
        assert newest == [rows[2], rows[1]]
        assert theirs not in {row.execution_id for row in await b.executions.newest(**OWNER, limit=1000)}
        assert await b.executions.newest(**OWNER, limit=2, before=mine[2]) == [rows[1], rows[0]]
        assert rows[0] not in await b.executions.newest(**OWNER, limit=1000, before=mine[0])
        assert await b.executions.newest(**OWNER, limit=1, status=rows[2].status) == [rows[2]]
        assert await b.executions.newest(**OWNER, limit=1000, status="NO SUCH") == []


@asynchronous
async def test_open_executions_are_those_whose_stream_has_no_end(backend: OpenBackend) -> None:
    async with backend() as b:
        still_open, ended = b.make.execution_id(), b.make.execution_id()
        head = next(head for head in await b.own() if head.shard_id == 2)
        events = [
            b.make.initialized(still_open)._replace(shard_id=2, stream_version=1),
            b.make.initialized(ended)._replace(shard_id=2, stream_version=1),
            b.make.ended(ended)._replace(shard_id=2, stream_version=2),
            # The system's own executions have small ids and are nobody's to resume.
            b.make.initialized(7)._replace(shard_id=2, stream_version=1),
        ]
        try:
            await b.ledger.advance(decision([head], *events))
            found = await b.executions.open_ids()
            assert still_open in found
            assert {ended, 7}.isdisjoint(found)
            assert found == sorted(found)
        finally:
            head = (await b.heads())[2]
            end = b.make.ended(7)._replace(shard_id=2, stream_version=2)
            await b.ledger.advance(decision([head], end))


@asynchronous
async def test_an_idempotency_key_is_found_by_its_owner(backend: OpenBackend) -> None:
    async with backend() as b:
        execution = b.make.execution_id()
        head = next(head for head in await b.own() if head.shard_id == 2)
        row = IdempotencyRow(**OWNER, idempotency_key=f"k{execution}", request_digest="digest", execution_id=execution)
        event = b.make.initialized(execution)._replace(shard_id=2, stream_version=1)
        await b.ledger.advance(decision([head], event, idempotency=[row]))
        assert await b.executions.idempotent(**OWNER, idempotency_key=f"k{execution}") == row
        assert await b.executions.idempotent(**OWNER, idempotency_key="unknown") is None
        for other in (
            {"tenant_id": "other", "organization_id": ORGANIZATION},
            {"tenant_id": TENANT, "organization_id": "other"},
        ):
            assert await b.executions.idempotent(**other, idempotency_key=f"k{execution}") is None


@pytest.mark.parametrize("missing", ["dequeue", "timers_gone"])
@asynchronous
async def test_taking_away_what_is_not_there_is_no_error(backend: OpenBackend, missing: str) -> None:
    async with backend() as b:
        await commit(b, **{missing: [(b.make.execution_id(), "nothing#1")]})
