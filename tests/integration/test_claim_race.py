"""Two servers give out the same command at once: the row follows the ledger, whoever was there first."""

from __future__ import annotations

import asyncio

import pytest

from noetl.ports.ledger import QueuedCommand
from tests.support.aio import asynchronous
from tests.support.backends import postgres_backend
from tests.support.databases import connected, fresh_database
from tests.support.events import ORGANIZATION, TENANT, decision

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def address() -> str:
    return fresh_database()


@asynchronous
async def test_a_claim_that_is_committed_wins_over_a_row_that_was_taken_meanwhile(address: str) -> None:
    async with postgres_backend(address) as b:
        (head, *_) = [head for head in await b.own() if head.shard_id == 1]
        execution = b.make.execution_id()

        def row(attempt: int, session_id: int | None) -> QueuedCommand:
            return QueuedCommand(
                execution_id=execution,
                command_id="s#1",
                shard_id=1,
                tenant_id=TENANT,
                organization_id=ORGANIZATION,
                pool="default",
                tool_kind="noop",
                attempt=attempt,
                session_id=session_id,
                body="{}",
            )

        await b.ledger.advance(decision([head], queue=[row(0, None)]))
        async with connected(address) as other, connected(address) as looking:
            taking = other.transaction()
            await taking.start()
            await other.execute(
                "UPDATE noetl.command SET attempt = 1, session_id = 7 WHERE execution_id = $1", execution
            )
            committing = asyncio.ensure_future(b.ledger.advance(decision([head], claims=[row(1, 8)])))
            while not await looking.fetchval(WAITS):
                await asyncio.sleep(0.005)
            await taking.commit()
            assert await committing == {1}
        # The other one finds its claim refused by the ledger, and gives back what it holds: nothing.
        assert await b.queue.release(7, commands=[(execution, "s#1")], untaken=[1]) == 0
        (held,) = await b.queue.commands_of(execution)
        assert (held.attempt, held.session_id) == (1, 8)
