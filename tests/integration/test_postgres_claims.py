"""The claims of a cursor in a real Postgres: nothing is taken before the commit, and every fate can be told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from noetl.core.errors import ToolFailed
from noetl.core.secret import Secret
from noetl.ports.cursor import ClaimCall, Claims, TransactionStatus
from noetl.ports.secrets import Credential
from noetl.ports.tool import ToolSettings
from noetl.tools.postgres.tool import PostgresTool
from tests.support.aio import asynchronous
from tests.support.work import Work, work_database

TAKE = """
UPDATE queue SET status = 'claimed' WHERE id IN (
  SELECT id FROM queue WHERE status = 'pending' ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED) RETURNING id"""


@pytest.fixture(scope="module")
def work() -> Work:
    return work_database()


@asynccontextmanager
async def tool() -> AsyncIterator[PostgresTool]:
    made = PostgresTool(ToolSettings(python_children=1, python_memory_bytes=1))
    try:
        yield made
    finally:
        await made.close()


def call(work: Work, statement: str = TAKE, *, mark: str = "loop", frame: int = 1, **fields: object) -> ClaimCall:
    credential = Credential(name="pg", type="postgres", data=Secret({**work.login, **fields}))
    return ClaimCall(
        statement=statement,
        mark=mark,
        frame=frame,
        auth=credential,
        tenant_id="acme",
        organization_id="sales",
        timeout_seconds=10,
    )


@asynchronous
async def test_the_tool_is_a_driver_of_cursors(work: Work) -> None:
    async with tool() as claims:
        assert isinstance(claims, Claims)


@asynchronous
async def test_rows_are_taken_by_the_commit_and_not_before(work: Work) -> None:
    await work.fill(3)
    async with tool() as claims:
        async with claims.claim(call(work)) as claim:
            assert claim.rows == [{"id": 1}, {"id": 2}]
            assert await work.statuses() == {"pending": 3}
            assert await claims.status(call(work), claim.transaction_id, claim.place) is TransactionStatus.IN_PROGRESS
            await claim.commit()
        assert await work.statuses() == {"claimed": 2, "pending": 1}
        assert await claims.status(call(work), claim.transaction_id, claim.place) is TransactionStatus.COMMITTED


@asynchronous
async def test_whoever_leaves_without_a_commit_has_taken_nothing(work: Work) -> None:
    await work.fill(3)
    async with tool() as claims:
        async with claims.claim(call(work)) as claim:
            pass
        assert await work.statuses() == {"pending": 3}
        assert await claims.status(call(work), claim.transaction_id, None) is TransactionStatus.ABORTED
        with pytest.raises(asyncio.CancelledError):
            async with claims.claim(call(work)) as claim:
                raise asyncio.CancelledError
        assert await claims.status(call(work), claim.transaction_id, None) is TransactionStatus.ABORTED


@asynchronous
async def test_a_claim_that_finds_nothing_has_a_transaction_too(work: Work) -> None:
    await work.fill(0)
    async with tool() as claims:
        async with claims.claim(call(work)) as claim:
            assert claim.rows == []
            await claim.commit()
        assert await claims.status(call(work), claim.transaction_id, None) is TransactionStatus.COMMITTED


@asynchronous
async def test_open_claims_of_the_same_loop_know_each_other(work: Work) -> None:
    await work.fill(5)
    async with tool() as claims:
        assert await claims.others(call(work)) == set()
        async with claims.claim(call(work)), claims.claim(call(work)):
            assert len(await claims.others(call(work))) == 2
            assert await claims.others(call(work, mark="another")) == set()
        assert await claims.others(call(work)) == set()


@asynchronous
async def test_a_transaction_whose_worker_is_gone_can_be_ended(work: Work) -> None:
    await work.fill(3)
    async with tool() as gone, tool() as claims:
        async with gone.claim(call(work)) as claim:
            await claims.end(call(work, frame=11))
            await claims.end(call(work, mark="another"))
            assert await claims.status(call(work), claim.transaction_id, None) is TransactionStatus.IN_PROGRESS
            await claims.end(call(work))
            async with asyncio.timeout(60):
                while await claims.status(call(work), claim.transaction_id, None) is TransactionStatus.IN_PROGRESS:
                    await asyncio.sleep(0.01)
            with pytest.raises(ToolFailed) as failed:
                await claim.commit()
        assert failed.value.failure.kind == "db_connection"
        assert failed.value.failure.retryable
        assert await claims.status(call(work), claim.transaction_id, None) is TransactionStatus.ABORTED
        assert await work.statuses() == {"pending": 3}
        # Ending what has ended does nothing.
        await claims.end(call(work))


@asynchronous
async def test_a_claim_is_durable_and_does_not_stand_open_for_ever(work: Work) -> None:
    idle = "current_setting('idle_in_transaction_session_timeout') AS idle"
    settings = f"SELECT current_setting('synchronous_commit') AS sync, {idle}"
    async with tool() as claims:
        async with claims.claim(call(work, settings, options="-c synchronous_commit=off")) as claim:
            assert claim.rows == [{"sync": "on", "idle": "1min"}]
        async with claims.claim(call(work, settings, options="-c synchronous_commit=remote_apply")) as claim:
            assert claim.rows == [{"sync": "remote_apply", "idle": "1min"}]
        # Nothing of it stays behind in the connection.
        async with claims.claim(call(work, "SELECT 1 AS id")):
            pass
        names = await work.query(
            "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database()"
        )
    assert not [row for row in names if "claim" in row["application_name"]]


@asynchronous
async def test_a_number_that_the_server_has_not_given_out_was_never_committed(work: Work) -> None:
    """The database was restored to a time before the claim."""
    async with tool() as claims:
        assert await claims.status(call(work), str(2**40 + 5), None) is TransactionStatus.ABORTED


@asynchronous
async def test_a_number_from_the_dawn_of_time_is_forgotten(work: Work) -> None:
    async with tool() as claims:
        found = await claims.status(call(work), "3", None)
    assert found in (TransactionStatus.FORGOTTEN, TransactionStatus.COMMITTED)


@asynchronous
async def test_another_database_cannot_tell_the_fate_of_a_claim(work: Work) -> None:
    await work.fill(1)
    async with tool() as claims:
        async with claims.claim(call(work)) as claim:
            await claim.commit()
        elsewhere = call(work, db_name="postgres")
        with pytest.raises(ToolFailed) as failed:
            await claims.status(elsewhere, claim.transaction_id, claim.place)
    assert (failed.value.failure.kind, failed.value.failure.code) == ("config", "CURSOR_MOVED")


@asynchronous
async def test_a_claim_that_is_undone_by_a_constraint_says_so_at_the_commit(work: Work) -> None:
    await work.query("CREATE TABLE IF NOT EXISTS pairs (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    await work.query("TRUNCATE pairs")
    async with tool() as claims:
        with pytest.raises(ToolFailed) as failed:
            async with claims.claim(call(work, "INSERT INTO pairs VALUES (1), (1) RETURNING id")) as claim:
                await claim.commit()
        assert (failed.value.failure.kind, failed.value.failure.retryable) == ("db_constraint", False)
        assert await claims.status(call(work), claim.transaction_id, None) is TransactionStatus.ABORTED


@asynchronous
async def test_a_claim_keeps_its_time_limit(work: Work) -> None:
    slow = replace(call(work, "SELECT pg_sleep(30)"), timeout_seconds=0.2)
    async with tool() as claims:
        with pytest.raises(ToolFailed) as failed:
            async with claims.claim(slow):
                pass
    assert failed.value.failure.kind == "timeout"


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("BEGIN", "statement 0 of the claim is BEGIN"),
        ("SELECT 1; /* x */ rollback", "statement 1 of the claim is ROLLBACK"),
        ("TRUNCATE journal", "returns no rows"),
        ("", "no statement"),
    ],
)
@asynchronous
async def test_statements_that_are_no_claim_are_refused(work: Work, statement: str, says: str) -> None:
    async with tool() as claims:
        with pytest.raises(ToolFailed, match=says):
            async with claims.claim(call(work, statement)):
                pass


@asynchronous
async def test_settings_may_stand_before_the_claim(work: Work) -> None:
    await work.fill(2)
    async with tool() as claims, claims.claim(call(work, f"SET LOCAL lock_timeout = '1s'; {TAKE};")) as claim:
        assert len(claim.rows) == 2
