"""Checkpoints and snapshots of a running engine: they come with activity, stop with it, and a restart uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noetl.adapters.postgres.durability.checkpoints import PostgresCheckpoints
from noetl.adapters.postgres.durability.snapshots import PostgresSnapshots
from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.core import kinds
from noetl.core.event import Event
from noetl.core.ids import system_execution_of
from noetl.core.snapshot.snapshot import restore
from noetl.engine.control.states import FIRST_PAGE_EVENTS
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.durability import sql
from tests.support.engine import Running, completed, running_engine

CYCLE = """
    workflow:
      - step: start
        tool: {kind: noop}
        next: [{step: turn}]
      - step: turn
        tool: {kind: noop}
        next:
          arcs:
            - {step: turn, when: "{{ (ctx.n | default(0)) < %d }}", set: {"ctx.n": "{{ (ctx.n | default(0)) + 1 }}"}}
            - {step: end, when: "{{ (ctx.n | default(0)) >= %d }}"}
      - step: end
        tool: {kind: noop}
    """
SHORT = {"NOETL_CHECKPOINT_INTERVAL_MS": "50", "NOETL_SNAPSHOT_INTERVAL_EVENTS": "200"}


@pytest.fixture
def address() -> str:
    return fresh_database()


def cycle(turns: int) -> str:
    return CYCLE % (turns, turns)


async def until(holds: Callable[[], Any], seconds: float = 20.0) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := await holds()):
            await asyncio.sleep(0.02)
        return found


def checkpoints(running: Running) -> PostgresCheckpoints:
    return PostgresCheckpoints(running.engine.durability.pool)


async def covered(running: Running) -> bool:
    return all(one.uncovered_ms is None for one in await checkpoints(running).barriers())


@asynchronous
async def test_activity_is_covered_by_checkpoints_and_an_idle_system_appends_nothing(
    address: str, tmp_path: Path
) -> None:
    async with running_engine(address, tmp_path, SHORT) as running:
        for _ in range(3):
            completed(await running.run(cycle(20)))
        await until(lambda: covered(running))
        heads = await running.engine.ledger.heads()
        rows = await sql(address, "SELECT * FROM noetl.checkpoint ORDER BY shard_id, epoch")
        assert rows
        for row in rows:
            events = await running.engine.ledger.read_execution(system_execution_of(row["shard_id"]))
            (told,) = [event for event in events if event.meta["epoch"] == row["epoch"]]
            assert (told.event_type, told.meta["position"]) == (kinds.CHECKPOINT_COMMITTED, row["position"])
            assert row["position"] < told.position
        await asyncio.sleep(1.0)
        assert await running.engine.ledger.heads() == heads
        # And deciding goes on as if nothing had been there.
        completed(await running.run(cycle(3)))


@asynchronous
async def test_a_restart_goes_on_from_a_snapshot(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    reading = PostgresLedger.read_execution

    async def counted(self: PostgresLedger, execution_id: int, **options: Any) -> list[Event]:
        found = await reading(self, execution_id, **options)
        read.append(len(found))
        return found

    async with running_engine(address, tmp_path, SHORT) as running:
        execution_id = await running.start(cycle(1_000_000))
        snapshots = PostgresSnapshots(running.engine.durability.pool)

        async def is_far() -> Any:
            return [one for one in await snapshots.newest(execution_id) if one.stream_version >= 1_200]

        (newest, *_) = await until(is_far, 60)
        assert restore(newest) is not None
    monkeypatch.setattr(PostgresLedger, "read_execution", counted)
    async with running_engine(address, tmp_path, SHORT) as running:
        state = (await running.engine.states.load(execution_id)).state
        assert state.version >= 1_200
        # The decider and the projector fold it, each from the snapshot.
        assert sum(read) <= 2 * (FIRST_PAGE_EVENTS + 200 + 300), read


@asynchronous
async def test_the_end_of_an_execution_has_a_snapshot_that_is_its_state(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path, SHORT) as running:
        told = await running.run(cycle(2))
        snapshots = PostgresSnapshots(running.engine.durability.pool)
        (snapshot,) = await until(lambda: snapshots.newest(told.state.execution_id))
        assert restore(snapshot) == told.state
        assert snapshot.position == told.events[-1].position


@asynchronous
async def test_the_metrics_of_recovery_are_shown(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path, SHORT) as running:
        completed(await running.run(cycle(2)))
        await until(lambda: covered(running))

        async def shown() -> Any:
            samples = [sample for counted in running.engine.durability.counted for sample in counted.samples()]
            totals = {name: value for name, _, value in samples}
            # The commit is in the database before its answer is here.
            return samples if totals.get("noetl_checkpoints_total") and "noetl_checkpoint_age_ms" in totals else None

        samples = await until(shown)
        roles = {labels["role"]: value for name, labels, value in samples if name == "noetl_role_held"}
        assert roles["checkpointer"] == roles["partition_keeper"] == 1.0
        assert {labels["shard"] for name, labels, _ in samples if name == "noetl_checkpoint_age_ms"} == {
            str(shard) for shard in range(16)
        }
        assert ("noetl_partitions_ahead", {}, 5) in samples
