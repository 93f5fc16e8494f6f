"""What once broke the engine: commits that are tried again, inputs that poison, stores that race."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from noetl.adapters.objects.filesystem import FilePayloads
from noetl.core.errors import LedgerUnavailable, SettingsInvalid, TransitionConflict
from noetl.core.execution.state import Status
from noetl.core.reference import MEDIA_TEXT
from noetl.core.reference import address as address_of
from noetl.ports.ledger import Advance
from noetl.settings import read_settings
from noetl.wiring.engine import Engine
from tests.support.aio import asynchronous
from tests.support.databases import empty_database
from tests.support.engine import Running, running_engine


@pytest.fixture(scope="module")
def address() -> str:
    return empty_database()


Failing = Callable[[int, Advance], None]


def disturb(engine: Running, *, before: Failing, after: Failing) -> None:
    """Let commits fail by their number: `before` one is sent, or `after` it is stored and the reply is lost."""
    ledger, numbers = engine.engine.ledger, iter(range(1_000_000))
    advance = ledger.advance

    async def disturbed(one: Advance) -> frozenset[int]:
        number = next(numbers)
        await asyncio.sleep(0.01)  # the worker prepares meanwhile what was announced
        before(number, one)
        held = await advance(one)
        after(number, one)
        return held

    ledger.advance = disturbed  # type: ignore[method-assign]


def nothing(_number: int, _advance: Advance) -> None:
    return


def lost(number: int, _advance: Advance) -> None:
    if number % 3 == 0:
        raise LedgerUnavailable("lost on the way")


def refused(_number: int, advance: Advance) -> None:
    if len({sealed.event.execution_id for sealed in advance.events}) > 1:
        raise TransitionConflict("somebody else in this commit")


@pytest.mark.parametrize(
    ("before", "after"), [(lost, nothing), (refused, nothing), (nothing, lost)], ids=["unsent", "refused", "unheard"]
)
@asynchronous
async def test_commits_that_are_tried_again_end_well(
    address: str, tmp_path: Path, before: Failing, after: Failing
) -> None:
    log = tmp_path / "log"
    body = f"""
    workflow:
      - step: start
        tool: {{kind: python, code: 'open("{log}", "a").write("x"); result = 1'}}
        next: end
      - step: end
        tool: {{kind: noop}}
    """
    async with running_engine(address, tmp_path) as engine:
        disturb(engine, before=before, after=after)
        started = await asyncio.gather(*(engine.start(body, key=f"{before} {after} {n}") for n in range(6)))
        told = [await engine.finish(execution_id) for execution_id in started]
        free = engine.engine.sessions.pools.free_in("default")
    assert [one.state.status for one in told] == [Status.COMPLETED] * 6
    assert log.read_text() == "x" * 6
    assert free == 16


@asynchronous
async def test_many_may_store_the_same_large_content_at_once(tmp_path: Path) -> None:
    store = FilePayloads(tmp_path)
    owner = {"tenant_id": "t", "organization_id": "o"}
    for number in range(10):
        content = bytes([number]) * 300_000
        payload = address_of(content, media_type=MEDIA_TEXT, store="file", **owner)
        await asyncio.gather(*(store.put(payload) for _ in range(8)))
        assert await store.get(payload.reference, **owner) == content
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]


@pytest.fixture
def own_address() -> str:
    return empty_database()


@asynchronous
async def test_fewer_shards_than_before_keep_open_executions_going(own_address: str, tmp_path: Path) -> None:
    address = own_address
    settings = read_settings({"NOETL_HOME": str(tmp_path)})
    body = """
    workflow:
      - step: start
        tool: {kind: python, code: 'import time; time.sleep(0.4); result = 1'}
    """
    async with running_engine(address, tmp_path) as engine:
        started = [await engine.start(body) for _ in range(8)]
    fewer = Engine(replace(settings, shard_count=1), address, instance="fewer")
    await fewer.open()
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(fewer.run())
            told = [await Running(fewer).finish(execution_id) for execution_id in started]
            running.cancel()
    finally:
        await fewer.close()
    assert [one.state.status for one in told] == [Status.COMPLETED] * 8
    more = Engine(replace(settings, shard_count=64), address, instance="more")
    try:
        with pytest.raises(SettingsInvalid, match="noetl migrate"):
            await more.open()
    finally:
        await more.close()
