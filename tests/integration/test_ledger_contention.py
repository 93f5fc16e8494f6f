"""Many writers, one transition (reliability.md §3.2), and poison in a group commit (§3.5)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.pool import Writer
from noetl.core.errors import EnvelopeInvalid, LedgerUnavailable, TransitionConflict
from noetl.core.event import Event, seal
from noetl.core.reference import Result
from noetl.engine.append import GroupAppender
from noetl.ports.ledger import Appended, Offer
from tests.support.aio import asynchronous
from tests.support.backends import Backend, appender, postgres_backend
from tests.support.databases import fresh_database
from tests.support.events import offer, unchecked

WRITERS = 64
SHARD = 2


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


@asynccontextmanager
async def writers(address: str) -> AsyncIterator[list[GroupAppender]]:
    """As many processes would be: each with its own connection and its own group commit."""
    async with AsyncExitStack() as stack:
        groups = []
        for _ in range(WRITERS):
            writer = Writer(address)
            stack.push_async_callback(writer.close)
            ledger = PostgresLedger(writer, None)  # type: ignore[arg-type]
            groups.append(await stack.enter_async_context(appender(ledger)))
        yield groups


async def append(group: GroupAppender, one: Offer) -> Appended | TransitionConflict:
    """Append as a caller does: with the same key again when the outcome is unknown."""
    while True:
        try:
            return (await group.append(one))[0]
        except TransitionConflict as conflict:
            return conflict
        except LedgerUnavailable:
            await asyncio.sleep(0.01)


async def race(
    address: str, b: Backend, *, keys: int, event: Callable[[int, int, int], Event]
) -> tuple[int, list[list[Appended | TransitionConflict]]]:
    """Every writer appends every key.  Returns the execution and the answers by key."""
    execution = b.make.execution_id()
    await b.ledger.append([offer(SHARD, b.make.initialized(execution))])
    async with writers(address) as groups:
        answers = await asyncio.gather(
            *(
                append(group, offer(SHARD, event(execution, key, number)))
                for key in range(keys)
                for number, group in enumerate(groups)
            )
        )
    return execution, [answers[start : start + WRITERS] for start in range(0, len(answers), WRITERS)]


async def check_stored(b: Backend, execution: int, keys: int) -> dict[str, Event]:
    """One row per key, and no gap in the shard."""
    events = await b.ledger.read_execution(execution, limit=100_000)
    counts = Counter(event.transition_key for event in events)
    assert set(counts.values()) == {1}
    assert len(counts) == keys + 1
    assert [event.stream_version for event in events] == list(range(1, keys + 2))
    shard = await b.ledger.read_shard(SHARD, after_position=0, limit=100_000)
    assert [event.position for event in shard] == list(range(1, len(shard) + 1))
    assert (await b.heads())[SHARD].next_position == len(shard) + 1
    return {event.transition_key: event for event in events}


async def check_equal_content(address: str, keys: int) -> None:
    async with postgres_backend(address) as b:

        def event(execution: int, key: int, number: int) -> Event:
            del number
            return b.make.completed(execution, f"s#{key}")

        execution, answers = await race(address, b, keys=keys, event=event)
        stored = await check_stored(b, execution, keys)
        for key, told in enumerate(answers):
            position = stored[f"command.terminal/s#{key}"].position
            assert all(isinstance(one, Appended) and one.position == position for one in told)
            assert sum(one.is_duplicate for one in told if isinstance(one, Appended)) == WRITERS - 1


async def check_other_content(address: str, keys: int) -> None:
    async with postgres_backend(address) as b:

        def event(execution: int, key: int, number: int) -> Event:
            result = Result(status="ok", context={"writer": number}).to_json()
            return b.make.completed(execution, f"s#{key}", result=result)

        execution, answers = await race(address, b, keys=keys, event=event)
        stored = await check_stored(b, execution, keys)
        for key, told in enumerate(answers):
            (winner,) = [n for n, one in enumerate(told) if isinstance(one, Appended)]
            result = stored[f"command.terminal/s#{key}"].result
            assert result is not None
            assert result["context"] == {"writer": winner}
            assert sum(isinstance(one, TransitionConflict) for one in told) == WRITERS - 1


@asynchronous
async def test_one_of_64_equal_appends_writes_and_63_are_duplicates(address: str) -> None:
    await check_equal_content(address, 40)


@asynchronous
async def test_one_of_64_differing_appends_wins_and_63_are_conflicts(address: str) -> None:
    await check_other_content(address, 40)


@pytest.mark.long
@asynchronous
async def test_a_thousand_keys_are_written_once_by_64_writers(address: str) -> None:
    await check_equal_content(address, 1_000)
    await check_other_content(address, 1_000)


async def check_poison(address: str, count: int) -> None:
    """One offer in a hundred passes nobody's `seal` and reaches the database all the same."""
    async with postgres_backend(address) as b, appender(b.ledger) as group:
        clean = [offer(SHARD, b.make.initialized(b.make.execution_id())) for _ in range(count)]
        started = time.perf_counter()
        await asyncio.gather(*map(group.append, clean))
        clean_seconds = time.perf_counter() - started
        mixed = []
        for number in range(count):
            event = b.make.initialized(b.make.execution_id())
            is_poison = number % 100 == 37
            sealed = unchecked(event, result='{"status":"ok","error":{}}') if is_poison else seal(event)
            mixed.append(Offer(shard_id=SHARD, events=[sealed]))
        before = (await b.heads())[SHARD].next_position
        started = time.perf_counter()
        answers = await asyncio.gather(*map(group.append, mixed), return_exceptions=True)
        poisoned_seconds = time.perf_counter() - started
        failed = [number for number, one in enumerate(answers) if isinstance(one, BaseException)]
        assert failed == list(range(37, count, 100))
        assert all(isinstance(answers[number], EnvelopeInvalid) for number in failed)
        positions = [one[0].position for one in answers if not isinstance(one, BaseException)]
        assert sorted(positions) == list(range(before, before + count - len(failed)))
        assert not any(one[0].is_duplicate for one in answers if not isinstance(one, BaseException))
        print(f"poison: {clean_seconds:.2f} s clean, {poisoned_seconds:.2f} s with 1 %")


@asynchronous
async def test_exactly_the_poisoned_offers_fail(address: str) -> None:
    await check_poison(address, 3_000)


@pytest.mark.long
@asynchronous
async def test_exactly_the_poisoned_offers_of_a_hundred_thousand_fail(address: str) -> None:
    for _ in range(10):
        await check_poison(address, 10_000)
