"""The port of cursor claims: the memory driver, which simulations use, keeps the promises of the real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from noetl.adapters.memory.claims import MemoryClaims, WorkTable
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
  SELECT id FROM queue WHERE status = 'pending' ORDER BY id FOR UPDATE SKIP LOCKED LIMIT {rows}) RETURNING id"""


@dataclass(slots=True)
class Cursor:
    """A driver over a table with rows 1 to n; `left` says which are pending."""

    claims: Claims
    left: Callable[[], Awaitable[list[object]]]
    statement: str
    auth: Credential | None = None

    def call(self, *, frame: int = 1, rows: int = 2) -> ClaimCall:
        return ClaimCall(
            statement=self.statement.format(rows=rows),
            mark="loop",
            frame=frame,
            auth=self.auth,
            tenant_id="acme",
            organization_id="sales",
            timeout_seconds=10,
        )

    async def settled(self, xid: str, place: str) -> TransactionStatus:
        """The fate of a transaction, when it has one."""
        async with asyncio.timeout(60):
            while (found := await self.claims.status(self.call(), xid, place)) is TransactionStatus.IN_PROGRESS:
                await asyncio.sleep(0.01)
        return found


OpenCursor = Callable[[int], AbstractAsyncContextManager[Cursor]]


@pytest.fixture(scope="module")
def work() -> Work:
    return work_database()


@pytest.fixture(params=["memory", "postgres"])
def cursor(request: pytest.FixtureRequest) -> OpenCursor:
    @asynccontextmanager
    async def memory(rows: int) -> AsyncIterator[Cursor]:
        table = WorkTable()
        table.add(*({"id": n} for n in range(1, rows + 1)))

        async def left() -> list[object]:
            return sorted(row["id"] for row in table.pending)  # type: ignore[type-var]

        yield Cursor(MemoryClaims(table), left, "take {rows}")

    @asynccontextmanager
    async def postgres(rows: int) -> AsyncIterator[Cursor]:
        await work.fill(rows)

        async def left() -> list[object]:
            found = await work.query("SELECT id FROM queue WHERE status = 'pending' ORDER BY id FOR UPDATE SKIP LOCKED")
            return [row["id"] for row in found]

        tool = PostgresTool(ToolSettings(python_children=1, python_memory_bytes=1))
        auth = Credential(name="pg", type="postgres", data=Secret(work.login))
        try:
            yield Cursor(tool, left, TAKE, auth)
        finally:
            await tool.close()

    if request.param == "memory":
        return memory
    work: Work = request.getfixturevalue("work")
    return postgres


@asynchronous
async def test_rows_are_locked_by_a_claim_and_taken_by_its_commit(cursor: OpenCursor) -> None:
    async with cursor(3) as c:
        async with c.claims.claim(c.call()) as claim:
            assert list(claim.rows) == [{"id": 1}, {"id": 2}]
            assert await c.left() == [3]
            assert await c.claims.status(c.call(), claim.transaction_id, claim.place) is TransactionStatus.IN_PROGRESS
            await claim.commit()
        assert await c.left() == [3]
        assert await c.settled(claim.transaction_id, claim.place) is TransactionStatus.COMMITTED


@asynchronous
async def test_left_without_a_commit_the_rows_are_free_again(cursor: OpenCursor) -> None:
    async with cursor(3) as c:
        async with c.claims.claim(c.call()) as claim:
            pass
        assert await c.settled(claim.transaction_id, claim.place) is TransactionStatus.ABORTED
        assert await c.left() == [1, 2, 3]


@asynchronous
async def test_two_claims_never_have_a_row_in_common(cursor: OpenCursor) -> None:
    async with cursor(3) as c, c.claims.claim(c.call(frame=1)) as one, c.claims.claim(c.call(frame=2)) as two:
        assert [*one.rows, *two.rows] == [{"id": 1}, {"id": 2}, {"id": 3}]
        assert one.transaction_id != two.transaction_id


@asynchronous
async def test_open_claims_are_seen_and_ended_by_frame(cursor: OpenCursor) -> None:
    async with cursor(4) as c:
        assert await c.claims.others(c.call()) == set()
        async with c.claims.claim(c.call(frame=1)) as one, c.claims.claim(c.call(frame=2)) as two:
            assert len(await c.claims.others(c.call())) == 2
            await c.claims.end(c.call(frame=1))
            assert await c.settled(one.transaction_id, one.place) is TransactionStatus.ABORTED
            with pytest.raises(ToolFailed) as failed:
                await one.commit()
            assert failed.value.failure.retryable
            await two.commit()
        assert await c.left() == [1, 2]
        assert await c.claims.others(c.call()) == set()


@asynchronous
async def test_a_claim_may_find_nothing(cursor: OpenCursor) -> None:
    async with cursor(0) as c:
        async with c.claims.claim(c.call()) as claim:
            assert list(claim.rows) == []
            await claim.commit()
        assert await c.settled(claim.transaction_id, claim.place) is TransactionStatus.COMMITTED
