"""Appends that had to wait for another one are judged by what it left, and not by what they saw before."""

from __future__ import annotations

import asyncio

import pytest

from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.ports.ledger import AppendOutcome, Offer
from tests.integration.test_ledger_order import _blocked, _Inside
from tests.support.aio import asynchronous
from tests.support.backends import Backend, postgres_backend
from tests.support.databases import connected, fresh_database
from tests.support.events import offer

SHARD = 2


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


async def behind(address: str, b: Backend, first: Offer, second: Offer) -> AppendOutcome:
    """What becomes of an append that waited while another one was committed."""
    async with connected(address) as intruder:
        ledger = PostgresLedger(_Inside(intruder), None)  # type: ignore[arg-type]
        async with intruder.transaction():
            assert (await ledger.append([first])).left_out == {}
            waiting = asyncio.ensure_future(b.ledger.append([second]))
            await _blocked(address)
        return await waiting


async def begun(b: Backend) -> int:
    execution = b.make.execution_id()
    await b.ledger.append([offer(SHARD, b.make.initialized(execution), b.make.issued(execution))])
    return execution


@asynchronous
async def test_an_append_that_waited_is_judged_by_what_it_waited_for(address: str) -> None:
    async with postgres_backend(address) as b:
        execution = await begun(b)
        first, second = (
            offer(SHARD, b.make.issued(execution, f"{name}#1"), expected_version=2) for name in ("one", "other")
        )
        outcome = await behind(address, b, first, second)
        assert [(one.position, one.version) for one in outcome.left_out.values()] == [(None, 3)]
        assert [event.stream_version for event in await b.ledger.read_execution(execution)] == [1, 2, 3]


@pytest.mark.parametrize("expected_version", [None, 2])
@asynchronous
async def test_an_append_that_waited_for_the_end_is_refused(address: str, expected_version: int | None) -> None:
    async with postgres_backend(address) as b:
        execution = await begun(b)
        end = offer(SHARD, b.make.ended(execution))
        late = offer(SHARD, b.make.completed(execution), expected_version=expected_version)
        outcome = await behind(address, b, end, late)
        assert [one.is_closed for one in outcome.left_out.values()] == [True]
        assert len(await b.ledger.read_execution(execution)) == 3


@asynchronous
async def test_an_append_without_an_expectation_goes_on_behind(address: str) -> None:
    async with postgres_backend(address) as b:
        execution = await begun(b)
        first, second = (offer(SHARD, b.make.issued(execution, f"{name}#1")) for name in ("one", "other"))
        assert (await behind(address, b, first, second)).left_out == {}
        assert [event.stream_version for event in await b.ledger.read_execution(execution)] == [1, 2, 3, 4]
