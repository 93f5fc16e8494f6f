"""The ledger port: the decider's commit.  Events and what is derived from them arrive together or not at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.errors import EnvelopeInvalid, ExecutionClosed, LedgerBusy, PayloadMissing, TransitionConflict
from noetl.core.event import Event
from noetl.ports.ledger import Advance, ExecutionRow, IdempotencyRow, QueuedCommand, ShardHead
from tests.support.aio import asynchronous
from tests.support.backends import Backend, OpenBackend, appender
from tests.support.events import ORGANIZATION, TENANT, decision, offer, unchecked

OWNER = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
IDLE = 11
DUE = "2026-01-01T00:00:00.000000Z"


def queued(execution_id: int, command_id: str = "start#1", **fields: Any) -> QueuedCommand:
    fields = {"shard_id": 3, "tool_kind": "python", "body": '{"step":"start"}', **fields}
    return QueuedCommand(execution_id=execution_id, command_id=command_id, **OWNER, **fields)


def shown(execution_id: int, **fields: Any) -> ExecutionRow:
    values: dict[str, Any] = {
        "shard_id": 3,
        "path": "examples/one",
        "playbook_digest": "0" * 64,
        "status": "RUNNING",
        "started_at": DUE,
        "ended_at": None,
        "last_step": None,
        "last_event_id": execution_id,
        "applied_position": 1,
        **fields,
    }
    return ExecutionRow(execution_id=execution_id, **OWNER, **values)


def opening(b: Backend, execution_id: int, shard_id: int = 3) -> list[Event]:
    return [
        b.make.initialized(execution_id)._replace(shard_id=shard_id, stream_version=1),
        b.make.issued(execution_id)._replace(shard_id=shard_id, stream_version=2),
    ]


def everything(b: Backend, head: ShardHead, execution_id: int) -> Advance:
    """A commit with all its parts."""
    return decision(
        [head],
        *opening(b, execution_id, head.shard_id),
        payloads=[b.make.payload(f"of {execution_id}".encode())],
        queue=[queued(execution_id, shard_id=head.shard_id)],
        timers=[(execution_id, "retry/start#1/1", head.shard_id, DUE)],
        executions=[shown(execution_id, shard_id=head.shard_id)],
        idempotency=[
            IdempotencyRow(**OWNER, idempotency_key=f"k{execution_id}", request_digest="d", execution_id=execution_id)
        ],
    )


async def traces(b: Backend, execution_id: int) -> dict[str, object]:
    """Every place where a commit of `everything` leaves something; empty when it left nothing."""
    payload = b.make.payload(f"of {execution_id}".encode())
    found: dict[str, object] = {
        "events": await b.ledger.read_execution(execution_id),
        "queue": await b.queue.commands_of(execution_id),
        "timers": [t for t in await b.queue.due_timers(limit=1000) if t.execution_id == execution_id],
        "execution": await b.executions.find(execution_id, **OWNER),
        "request": await b.executions.idempotent(**OWNER, idempotency_key=f"k{execution_id}"),
        "open": execution_id in await b.executions.open_ids(),
    }
    try:
        found["payload"] = await b.payloads.get(payload.reference, **OWNER)
    except PayloadMissing:
        found["payload"] = None
    return {name: value for name, value in found.items() if value}


@pytest.fixture(params=[False, True], ids=["one-shard", "two-shards"])
def wide(request: pytest.FixtureRequest) -> bool:
    """Whether the commit has the fence of a second shard, in which nothing happens: statements have a short form for
    one shard, and both must do the same."""
    return bool(request.param)


async def commit(b: Backend, advance: Advance, wide: bool) -> frozenset[int]:
    """The shards whose fence held, without the idle one."""
    if not wide:
        return await b.ledger.advance(advance)
    idle = decision([(await b.heads())[IDLE]]).fences
    held = await b.ledger.advance(replace(advance, fences=[*advance.fences, *idle]))
    assert IDLE in held
    return held - {IDLE}


async def owned(b: Backend, shard_id: int) -> ShardHead:
    return next(head for head in await b.own() if head.shard_id == shard_id)


@asynchronous
async def test_events_and_all_that_is_derived_arrive_with_one_commit(backend: OpenBackend, wide: bool) -> None:
    async with backend() as b:
        head, execution = await owned(b, 3), b.make.execution_id()
        advance = everything(b, head, execution)
        assert await commit(b, advance, wide) == {3}
        found = await traces(b, execution)
        events = found.pop("events")
        assert isinstance(events, list)
        assert [(e.position, e.stream_version) for e in events] == [
            (head.next_position, 1),
            (head.next_position + 1, 2),
        ]
        assert found.pop("queue") == list(advance.queue)
        assert found.pop("execution") == advance.executions[0]
        assert found.pop("request") == advance.idempotency[0]
        assert found.pop("payload", None) == f"of {execution}".encode()
        assert set(found) == {"timers", "open"}
        after = (await b.heads())[3]
        assert after == ShardHead(3, head.next_position + 2, head.next_position + 1, head.epoch)


@pytest.mark.parametrize("wrong", [{"epoch": -1}, {"epoch": 1}, {"next_position": -1}, {"next_position": 1}])
@asynchronous
async def test_a_fence_that_misses_writes_nothing(backend: OpenBackend, wide: bool, wrong: dict[str, int]) -> None:
    async with backend() as b:
        head, execution = await owned(b, 3), b.make.execution_id()
        advance = everything(b, head, execution)
        fence = replace(
            advance.fences[0],
            **{name: getattr(advance.fences[0], name) + change for name, change in wrong.items()},
        )
        assert await commit(b, replace(advance, fences=[fence]), wide) == frozenset()
        # With a fence that held the payload may stay: too many is garbage, too few would be a dangling reference.
        assert set(await traces(b, execution)) <= ({"payload"} if wide else set())
        assert (await b.heads())[3] == head
        # The same commit with the right fence is not hindered by the attempt.
        assert await commit(b, advance, wide) == {3}


@asynchronous
async def test_only_the_shards_whose_fence_holds_are_written(backend: OpenBackend, wide: bool) -> None:
    async with backend() as b:
        heads = [await owned(b, 3), await owned(b, 5)]
        heads[0] = (await b.heads())[3]
        one, two = b.make.execution_id(), b.make.execution_id()
        advances = [everything(b, heads[0], one), everything(b, heads[1], two)]
        merged = Advance(
            fences=[advances[0].fences[0], replace(advances[1].fences[0], epoch=heads[1].epoch - 1)],
            **{
                name: [*getattr(advances[0], name), *getattr(advances[1], name)]
                for name in ("events", "queue", "timers", "executions", "idempotency")
            },
        )
        assert await commit(b, merged, wide) == {3}
        assert set(await traces(b, one)) == {"events", "queue", "timers", "execution", "request", "open"}
        assert await traces(b, two) == {}
        assert (await b.heads())[5] == heads[1]


@asynchronous
async def test_a_former_owner_takes_nothing_away(backend: OpenBackend, wide: bool) -> None:
    async with backend() as b:
        stale, execution = await owned(b, 3), b.make.execution_id()
        await commit(b, everything(b, stale, execution), wide)
        now = await owned(b, 3)
        late = decision(
            [replace(now, epoch=stale.epoch)],
            dequeue=[(execution, "start#1")],
            timers_gone=[(execution, "retry/start#1/1")],
            claims=[queued(execution, attempt=7, session_id=7)],
        )
        assert await commit(b, late, wide) == frozenset()
        found = await traces(b, execution)
        assert {"queue", "timers"} <= set(found)
        assert (await b.queue.commands_of(execution))[0].session_id is None
        assert await commit(b, replace(late, fences=decision([now]).fences, claims=[]), wide) == {3}
        assert {"queue", "timers"}.isdisjoint(await traces(b, execution))


@asynchronous
async def test_a_stored_transition_makes_the_whole_commit_fail(backend: OpenBackend, wide: bool) -> None:
    async with backend() as b:
        head, stored, execution = await owned(b, 3), b.make.execution_id(), b.make.execution_id()
        await commit(b, decision([head], *opening(b, stored)), wide)
        head = (await b.heads())[3]
        advance = everything(b, head, execution)
        again = b.make.issued(stored)._replace(shard_id=3, stream_version=3)
        events = decision([head], *opening(b, execution), again).events
        with pytest.raises(TransitionConflict):
            await commit(b, replace(advance, events=events), wide)
        assert await traces(b, execution) == {}
        assert (await b.heads())[3] == head


@asynchronous
async def test_a_taken_idempotency_key_makes_the_whole_commit_fail(backend: OpenBackend, wide: bool) -> None:
    async with backend() as b:
        head, first, second = await owned(b, 3), b.make.execution_id(), b.make.execution_id()
        await commit(b, everything(b, head, first), wide)
        head = (await b.heads())[3]
        advance = everything(b, head, second)
        row = replace(advance.idempotency[0], idempotency_key=f"k{first}")
        with pytest.raises(TransitionConflict):
            await commit(b, replace(advance, idempotency=[row]), wide)
        assert await traces(b, second) == {}
        known = await b.executions.idempotent(**OWNER, idempotency_key=f"k{first}")
        assert known is not None
        assert known.execution_id == first
        # Another tenant's key is another key.
        other = replace(row, tenant_id="other")
        assert await commit(b, replace(advance, idempotency=[other]), wide) == {3}


@asynchronous
async def test_a_row_that_the_database_refuses_makes_the_whole_commit_fail(backend: OpenBackend, wide: bool) -> None:
    async with backend() as b:
        head, execution = await owned(b, 3), b.make.execution_id()
        advance = everything(b, head, execution)
        bad = unchecked(advance.events[1].event, result='{"status":"ok"}')
        with pytest.raises(EnvelopeInvalid):
            await commit(b, replace(advance, events=[advance.events[0], bad]), wide)
        assert await traces(b, execution) == {}
        assert (await b.heads())[3] == head


@asynchronous
async def test_an_advance_after_a_foreign_append_misses_until_it_has_seen_it(backend: OpenBackend, wide: bool) -> None:
    async with backend() as b, appender(b.ledger) as group:
        head, execution = await owned(b, 3), b.make.execution_id()
        await commit(b, decision([head], *opening(b, execution)), wide)
        head = (await b.heads())[3]
        foreign = await group.append(offer(3, b.make.completed(execution)))
        assert foreign[0].position == head.next_position
        claim = b.make.issued(execution, "next#1")._replace(shard_id=3, stream_version=3)
        assert await commit(b, decision([head], claim), wide) == frozenset()
        seen = (await b.heads())[3]
        assert (seen.next_position, seen.decided_position) == (head.next_position + 1, head.decided_position)
        undecided = await b.ledger.read_shard(3, after_position=seen.decided_position)
        assert [event.event_type for event in undecided] == ["command.completed"]
        again = claim._replace(stream_version=4)
        assert await commit(b, decision([seen], again), wide) == {3}
        versions = [e.stream_version for e in await b.ledger.read_execution(execution)]
        assert versions == [1, 2, 3, 4]


@asynchronous
async def test_one_of_many_concurrent_decisions_holds_the_fence(backend: OpenBackend, wide: bool) -> None:
    async with backend() as b:
        head = await owned(b, 3)
        ids = [b.make.execution_id() for _ in range(8)]
        outcomes = await asyncio.gather(
            *(commit(b, decision([head], *opening(b, execution)), wide) for execution in ids)
        )
        assert sorted(map(len, outcomes)) == [0] * 7 + [1]
        assert (await b.heads())[3].next_position == head.next_position + 2


@asynchronous
async def test_the_end_of_an_execution_closes_its_stream(backend: OpenBackend, wide: bool) -> None:
    async with backend() as b, appender(b.ledger) as group:
        head, execution = await owned(b, 3), b.make.execution_id()
        end = b.make.ended(execution)._replace(shard_id=3, stream_version=3)
        await commit(b, decision([head], *opening(b, execution), end), wide)
        assert execution not in await b.executions.open_ids()
        with pytest.raises(ExecutionClosed):
            await group.append(offer(3, b.make.completed(execution)))


@asynchronous
async def test_a_decision_writes_the_first_row_of_an_execution_and_no_later_one(
    backend: OpenBackend, wide: bool
) -> None:
    async with backend() as b:
        head, execution = await owned(b, 3), b.make.execution_id()
        first = shown(execution, applied_position=5, version=2)
        for row in (first, shown(execution, status="COMPLETED", applied_position=9, ended_at=DUE)):
            assert await commit(b, decision([head], executions=[row]), wide) == {3}
            assert await b.executions.find(execution, **OWNER) == first


@asynchronous
async def test_the_decided_position_is_kept_without_events(backend: OpenBackend, wide: bool) -> None:
    async with backend() as b, appender(b.ledger) as group:
        head = await owned(b, 4)
        await group.append(offer(4, b.make.initialized(b.make.execution_id())))
        seen = (await b.heads())[4]
        assert seen.decided_position == head.decided_position
        assert await commit(b, decision([seen]), wide) == {4}
        assert (await b.heads())[4].decided_position == seen.next_position - 1


@asynchronous
async def test_taking_a_shard_raises_its_epoch(backend: OpenBackend) -> None:
    async with backend() as b:
        before = {head.shard_id: head.epoch for head in await b.own()}
        after = {head.shard_id: head.epoch for head in await b.own()}
        assert after == {shard_id: epoch + 1 for shard_id, epoch in before.items()}


@asynchronous
async def test_a_stream_that_is_at_another_version_is_not_written_to(backend: OpenBackend, wide: bool) -> None:
    """Whoever has seen every position of a shard may still hold a state that is not as of them."""
    async with backend() as b:
        head, execution, other = await owned(b, 3), b.make.execution_id(), b.make.execution_id()
        assert await commit(b, decision([head], *opening(b, execution), *opening(b, other)), wide) == {3}
        for version, alone in ((2, True), (4, True), (4, False), (2, False)):
            head = (await b.heads())[3]
            late = b.make.event(
                execution,
                kinds.TIMER_FIRED,
                f"timer.fired/late{version}{alone}",
                meta={"name": "x"},
                shard_id=3,
                stream_version=version,
            )
            good = b.make.event(
                other,
                kinds.TIMER_FIRED,
                f"timer.fired/good{version}{alone}",
                meta={"name": "x"},
                shard_id=3,
                stream_version=3,
            )
            assert await commit(b, decision([head], late, *(() if alone else (good,))), wide) == frozenset()
            assert (await b.heads())[3] == head
        # Also one that gets no event: what is written about it beside the ledger would be wrong too.
        gone = decision([head], versions=[(3, execution, 1)], dequeue=[(execution, "start#1")])
        assert await commit(b, gone, wide) == frozenset()
        assert [len(await b.ledger.read_execution(one)) for one in (execution, other)] == [2, 2]
        assert await commit(b, replace(gone, versions=[(3, execution, 2)]), wide) == {3}
        last = b.make.event(
            execution, kinds.TIMER_FIRED, "timer.fired/last", meta={"name": "x"}, shard_id=3, stream_version=3
        )
        assert await commit(b, decision([head], last), wide) == {3}


@asynchronous
async def test_nobody_appends_to_a_shard_that_is_held_and_its_holder_commits(backend: OpenBackend, wide: bool) -> None:
    async with backend() as b:
        head, execution, other = await owned(b, 3), b.make.execution_id(), b.make.execution_id()
        async with b.ledger.hold([3]):
            appending = asyncio.ensure_future(b.ledger.append([offer(3, b.make.initialized(other))]))
            await asyncio.sleep(0.05)
            assert (await b.heads())[3] == head
            assert await commit(b, everything(b, head, execution), wide) == {3}
        try:
            await appending
        except LedgerBusy:  # it was told to come again
            await b.ledger.append([offer(3, b.make.initialized(other))])
        positions = [(await b.ledger.read_execution(one))[0].position for one in (execution, other)]
        assert positions == [head.next_position, head.next_position + 2]


@asynchronous
async def test_a_shard_is_free_when_its_holder_gives_up(backend: OpenBackend) -> None:
    async with backend() as b:
        await owned(b, 3)
        with pytest.raises(ZeroDivisionError):
            async with b.ledger.hold([3]):
                raise ZeroDivisionError
        outcome = await b.ledger.append([offer(3, b.make.initialized(b.make.execution_id()))])
        assert not outcome.left_out
