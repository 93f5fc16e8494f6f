"""Several servers on one ledger: three engines in this process over one real Postgres.

Whoever owns the shard of an execution decides it; workers, cancels and children may be anybody's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from noetl.core import kinds
from noetl.core.errors import LedgerUnavailable, ShardMoved
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import Status
from noetl.ports.ledger import AppendOutcome, Ledger, Offer
from tests.support.aio import asynchronous
from tests.support.databases import connected, empty_database
from tests.support.engine import Running, Told, completed, running_engine

QUICK = {"NOETL_SHARD_LEASE_SEC": "1.5", "NOETL_SHARD_HEARTBEAT_SEC": "0.3"}
SHARDS = 16
SIMPLE = """
    workflow:
      - {step: start, tool: {kind: python, code: "result = {'n': 4}"}, next: {arcs: [{step: end}]}}
      - {step: end, tool: {kind: python, input: {n: "{{ start.n }}"}, code: "result = {'n': n + 1}"}}
"""
LOOP = """
    workflow:
      - step: each
        loop:
          in: "{{ range(60) | list }}"
          iterator: item
          spec: {mode: parallel, max_in_flight: 8, frame: {max_rows: 4}}
        tool: {kind: python, input: {n: "{{ item }}"}, code: "result = {'n': n}"}
        next: {arcs: [{step: end}]}
      - step: end
        tool: {kind: python, input: {all: "{{ each.results }}"}, code: "result = [row['n'] for row in all]"}
"""
SLOW = """
    workflow:
      - {step: start, tool: {kind: python, code: "import time; time.sleep(60)"}}
"""


@pytest.fixture(scope="module")
def address() -> str:
    return empty_database()


@asynccontextmanager
async def servers(address: str, home: Path, *workers: bool) -> AsyncIterator[list[Running]]:
    """One server for each word, which says whether it works itself; each has its share when this is entered."""
    async with AsyncExitStack() as stack:
        found = [
            await stack.enter_async_context(running_engine(address, home, QUICK, has_worker=works)) for works in workers
        ]
        await shared(found)
        yield found


async def until(holds: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)
    assert holds(), what


async def shared(found: list[Running]) -> None:
    share = -(-SHARDS // len(found))
    await until(
        lambda: (
            sum(len(one.engine.decider.heads) for one in found) == SHARDS
            and all(0 < len(one.engine.decider.heads) <= share for one in found)
        ),
        "every server has its share",
    )


def one_story(told: Told) -> None:
    """Whoever recorded and decided it, it is one story in which nothing happens twice."""
    assert fold_all(told.events) == told.state
    keys = Counter(event.transition_key for event in told.events)
    assert set(keys.values()) == {1}


@asynchronous
async def test_every_server_runs_what_it_is_given(address: str, tmp_path: Path) -> None:
    async with servers(address, tmp_path, True, True, True) as found:
        heads = [set(one.engine.decider.heads) for one in found]
        assert not heads[0] & heads[1]
        assert set().union(*heads) == set(range(SHARDS))
        for told in await asyncio.gather(*(one.run(SIMPLE) for one in found for _ in range(4))):
            assert completed(told) == {"n": 5}
            one_story(told)


@asynchronous
async def test_workers_of_one_server_work_for_all(address: str, tmp_path: Path) -> None:
    async with servers(address, tmp_path, False, True, False) as (first, _working, last):
        told = await asyncio.gather(first.run(SIMPLE), last.run(SIMPLE), first.run(LOOP), last.run(LOOP))
        assert [completed(one) for one in told] == [{"n": 5}, {"n": 5}, list(range(60)), list(range(60))]
        for one in told:
            one_story(one)


@asynchronous
async def test_a_server_that_joins_gets_its_share_and_the_runs_go_on(address: str, tmp_path: Path) -> None:
    async with servers(address, tmp_path, True, True, True) as found:
        before = {shard: one.engine.decider.heads[shard].epoch for one in found for shard in one.engine.decider.heads}
        runs = [asyncio.ensure_future(one.run(LOOP)) for one in found]
        async with running_engine(address, tmp_path, QUICK, has_worker=False) as fourth:
            await shared([*found, fourth])
            for shard, head in fourth.engine.decider.heads.items():
                assert head.epoch > before[shard]
            assert completed(await fourth.run(SIMPLE)) == {"n": 5}
            for told in await asyncio.gather(*runs):
                assert completed(told) == list(range(60))
                one_story(told)
        # It has left: what it owned is shared again.
        await shared(found)


@asynchronous
async def test_a_run_is_cancelled_through_any_server(address: str, tmp_path: Path) -> None:
    async with servers(address, tmp_path, False, True, False) as (first, _working, last):
        execution_id = await first.start(SLOW)
        await last.until(execution_id, lambda state: any(c.attempt for c in state.commands.values()))
        await last.cancel(execution_id)
        told = await last.finish(execution_id)
        assert told.state.status is Status.CANCELLED
        assert len(told.of_type(kinds.CANCEL_REQUESTED)) == 1
        one_story(told)


CHILD = """
    workflow:
      - {step: start, tool: {kind: python, code: "result = {'n': 7}"}}
"""
PARENT = """
    workflow:
      - {step: call, tool: {kind: playbook, path: lib/child, return_step: start}, next: {arcs: [{step: end}]}}
      - {step: end, tool: {kind: python, input: {got: "{{ call }}"}, code: "result = got"}}
"""


@asynchronous
async def test_children_are_started_by_workers_of_other_servers(address: str, tmp_path: Path) -> None:
    async with servers(address, tmp_path, False, True, False) as (first, _working, last):
        await first.register("lib/child", CHILD)
        for told in await asyncio.gather(*(one.run(PARENT) for one in (first, last) for _ in range(3))):
            assert completed(told)["n"] == 7
            one_story(told)
            (started,) = told.of_type(kinds.CHILD_STARTED)
            child = await first.finish(int(str(started.meta["child_execution_id"])))
            assert child.events[0].shard_id == told.events[0].shard_id
            one_story(child)


WAITING = """
    workflow:
      - step: start
        tool:
          kind: python
          input: {attempt: "{{ _attempt }}"}
          code: |
            if attempt < 2:
                raise ValueError("not yet")
            result = {"attempt": attempt}
          spec:
            policy:
              rules:
                - {when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 3, delay: 2.2}}
                - {else: {then: {do: continue}}}
"""


@asynchronous
async def test_timers_fire_at_the_owner(address: str, tmp_path: Path) -> None:
    async with servers(address, tmp_path, False, True, False) as (first, _working, last):
        for told in await asyncio.gather(first.run(WAITING), last.run(WAITING)):
            assert completed(told) == {"attempt": 2}
            assert len(told.of_type(kinds.TIMER_FIRED)) == 1
            one_story(told)


class LosesReplies:
    """The real ledger of a server for shards of others, which breaks its connection after every other append."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.appends = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._ledger, name)

    async def append(self, offers: Sequence[Offer]) -> AppendOutcome:
        outcome = await self._ledger.append(offers)
        self.appends += 1
        if self.appends % 2:
            raise LedgerUnavailable("the connection broke after the commit")
        return outcome


@asynchronous
async def test_what_is_recorded_for_others_is_there_once_when_every_other_reply_is_lost(
    address: str, tmp_path: Path
) -> None:
    async with servers(address, tmp_path, False, True, False) as (first, working, last):
        await first.register("lib/child", CHILD)
        lossy = LosesReplies(working.engine.serving.recorder._ledger)
        working.engine.serving.recorder._ledger = lossy  # type: ignore[assignment]
        bodies = (SIMPLE, LOOP, PARENT)
        told = await asyncio.gather(*(one.run(body) for one in (first, last) for body in bodies))
        assert lossy.appends > 10
        for one in told:
            completed(one)
            one_story(one)


@asynchronous
async def test_a_server_without_a_shard_refuses_new_runs_for_now(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path, QUICK) as owner:
        lonely = {**QUICK, "NOETL_SHARD_HEARTBEAT_SEC": "0.1"}
        async with running_engine(address, tmp_path, lonely, has_worker=False) as other:
            await shared([owner, other])
            await other.engine.decider.let_go(list(other.engine.decider.heads))
            with pytest.raises(ShardMoved, match="no shard yet"):
                await other.start(SIMPLE)
            await shared([owner, other])
            assert completed(await other.run(SIMPLE)) == {"n": 5}


@asynchronous
async def test_an_owner_whose_shards_were_taken_commits_nothing_there(address: str, tmp_path: Path) -> None:
    async with servers(address, tmp_path, True, False) as (first, second):
        thief = second.engine.serving.node
        assert thief is not None
        stolen = {shard: head.epoch for shard, head in first.engine.decider.heads.items()}
        async with connected(address) as connection:
            await connection.execute(
                "UPDATE noetl.execution_shard SET epoch = epoch + 1, owner_runtime_id = $1 WHERE shard_id = ANY ($2)",
                thief.runtime_id,
                list(stolen),
            )
        # It does not know yet: the fence refuses its commit, and the run is begun in no shard at all.
        with pytest.raises(ShardMoved):
            await first.start(SIMPLE)
        await shared([first, second])
        told = await first.run(SIMPLE)
        assert completed(told) == {"n": 5}
        one_story(told)
        async with connected(address) as connection:
            rows = await connection.fetch("SELECT shard_id, epoch FROM noetl.execution_shard")
        known = {head.shard_id: head.epoch for one in (first, second) for head in one.engine.decider.heads.values()}
        assert {row["shard_id"]: row["epoch"] for row in rows} == known
        assert all(known[shard] > epoch for shard, epoch in stolen.items())


# --- places ------------------------------------------------------------------------------------------------

GATED = """
    workflow:
      - step: make
        tool:
          kind: python
          code: |
            import os, time
            while not os.path.exists("{gate}"):
                time.sleep(0.02)
            result = [{{"n": n, "text": "x" * 100}} for n in range(60)]
        next: {{arcs: [{{step: each}}]}}
      - step: each
        loop:
          in: "{{{{ make }}}}"
          iterator: item
          spec: {{mode: parallel, max_in_flight: 4, frame: {{max_rows: 5}}}}
        tool: {{kind: noop, result: "{{{{ item.n }}}}"}}
"""


@asynchronous
async def test_a_server_leaves_frames_to_a_nearer_worker_of_another_one(address: str, tmp_path: Path) -> None:
    common = {**QUICK, "NOETL_LOCALITY_PREFERENCE": "zone"}
    here = {**common, "NOETL_ZONE": "here", "NOETL_WORKER_SLOTS": "1"}
    there = {**common, "NOETL_ZONE": "there", "NOETL_WORKER_SLOTS": "8"}
    busy, made = tmp_path / "busy", tmp_path / "made"
    async with (
        running_engine(address, tmp_path, here, has_worker=True) as owner,
        running_engine(address, tmp_path, there, has_worker=True) as other,
        asyncio.TaskGroup() as group,
    ):
        await shared([owner, other])
        blocker = group.create_task(owner.run(GATED.format(gate=busy)))
        await until(lambda: any(one.holds for one in owner.engine.sessions.connected.values()), "its worker is busy")
        placed = group.create_task(owner.run(GATED.format(gate=made)))
        await until(lambda: any(one.holds for one in other.engine.sessions.connected.values()), "it runs elsewhere")
        busy.touch()
        one_story(await blocker)
        made.touch()
        told = await placed
    one_story(told)
    claims = [event.meta for event in told.events if event.event_type == kinds.FRAME_STARTED]
    assert {str(meta["locality"]) for meta in claims} == {"{'zone': 'there'}"}, "although the owner's worker was free"
    near = {"distance": "zone", "max_distance": "zone", "within_max_distance": True}
    assert all(meta["placement"] == near for meta in claims)
