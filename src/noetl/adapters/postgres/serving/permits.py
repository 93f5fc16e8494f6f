"""The books of shared limits, on Postgres: a short transaction for a turn, by the database's clock."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from noetl.adapters.postgres.pool import Reader, Transaction, Transactions
from noetl.adapters.postgres.statements import query
from noetl.core.errors import LedgerBusy
from noetl.core.permits.dealing import Ask, Book, Dealt, Seat, deal
from noetl.core.permits.rates import Allowance
from noetl.ports.serving.permits import LimitKey, LimitView, view_of

SWEPT_AT_ONCE_MAX = 1_000


class PostgresPermits:
    """Turns have connections of their own; nobody who reads or commits waits for them, nor they for those."""

    def __init__(self, turns: Transactions, reader: Reader) -> None:
        self._turns = turns
        self._reader = reader

    async def turn(self, key: LimitKey, asks: Sequence[Ask], *, own: Collection[int]) -> Dealt | None:
        try:
            async with self._turns.begin() as tx:
                return await _turn(tx, key._asdict(), asks, own)
        except LedgerBusy:
            return None

    async def sweep(self, *, unused_seconds: float) -> int:
        statement = query("permits.sql", "sweep_limits")
        return len(await self._reader.fetch(statement, unused_seconds=unused_seconds, count=SWEPT_AT_ONCE_MAX))

    async def look(self, *, tenant_id: str, organization_id: str) -> list[LimitView]:
        rows = await self._reader.fetch(
            query("permits.sql", "look_at_limits"), tenant_id=tenant_id, organization_id=organization_id
        )
        by_name: dict[str, list[Any]] = {}
        for row in rows:
            by_name.setdefault(row["name"], []).append(row)
        found = []
        for name, of in by_name.items():
            book, now = Book(seats=[_seat(row) for row in of]), of[0]["now"]
            if any(seat.is_kept_at(now) for seat in book.seats):
                found.append(view_of(name, of[0]["dealt"], book, now))
        return found


async def _turn(tx: Transaction, key: dict[str, Any], asks: Sequence[Ask], own: Collection[int]) -> Dealt:
    limit = await tx.fetch(query("permits.sql", "lock_limit"), key)
    if not limit:
        await tx.fetch(query("permits.sql", "add_limit"), key)
        limit = await tx.fetch(query("permits.sql", "lock_limit"), key)
    rows = await tx.fetch(query("permits.sql", "read_users"), {**key, "own": sorted(own)})
    now, opened_at, living = rows[0]["now"], rows[0]["opened_at"], set(rows[0]["living"])
    if opened_at is None:
        opened_at = now
        await tx.fetch(query("permits.sql", "open_books"), {"now": now})
    known = {(row["session_id"], row["execution_id"]): row for row in rows if row["session_id"] is not None}
    book = Book(
        **{**limit[0], "opened_at": max(limit[0]["opened_at"], opened_at)},
        lost=sum(row["granted"] - row["returned"] for row in known.values() if not row["is_alive"]),
        seats=[_seat(row) for row in known.values() if row["is_alive"]],
    )
    dealt = deal(book, [ask for ask in asks if ask.session_id in living], own=living, now=now)
    await tx.fetch(query("permits.sql", "write_book"), {**key, **_written(book, dealt.book, living, known.keys())})
    return dealt


def _written(read: Book, book: Book, living: Collection[int], known: Collection[tuple[int, int]]) -> dict[str, object]:
    """What is written of the books after a turn: of the own seats those that say something else than before."""
    before = {seat.key: seat for seat in read.seats}
    changed = [seat for seat in book.seats if seat.session_id in living and seat != before.get(seat.key)]
    gone = sorted(set(known) - {seat.key for seat in book.seats})
    return {
        "next_at": book.next_at,
        "share": book.share,
        "dealt": book.dealt,
        "turned_at": book.turned_at,
        "opened_at": book.opened_at,
        "gone_sessions": [session_id for session_id, _ in gone],
        "gone_executions": [execution_id for _, execution_id in gone],
        "sessions": [seat.session_id for seat in changed],
        "executions": [seat.execution_id for seat in changed],
        "granted": [seat.granted for seat in changed],
        "returned": [seat.returned for seat in changed],
        "asked": [seat.asked for seat in changed],
        "served": [seat.served for seat in changed],
        "dealt_at": [seat.dealt_at for seat in changed],
        "rates": [seat.allowance.rate for seat in changed],
        "concurrencies": [seat.allowance.concurrency for seat in changed],
        "heard_at": [seat.heard_at for seat in changed],
    }


def _seat(row: Any) -> Seat:
    return Seat(
        session_id=row["session_id"],
        execution_id=row["execution_id"],
        allowance=Allowance(rate=row["rate"], concurrency=row["concurrency"]),
        heard_at=row["heard_at"],
        granted=row["granted"],
        returned=row["returned"],
        asked=row["asked"],
        served=row["served"],
        dealt_at=row["dealt_at"],
    )
