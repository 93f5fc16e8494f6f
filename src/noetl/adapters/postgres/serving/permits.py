"""The books of shared limits, on Postgres: two statements for a turn, by the database's clock."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.postgres.statements import query
from noetl.core.permits.dealing import Ask, Book, Dealt, Seat, deal
from noetl.core.permits.rates import Allowance
from noetl.ports.serving.permits import LimitKey, LimitView, view_of


class PostgresPermits:
    """Turns have a connection of their own, opened with the first one; nobody who reads can delay them."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def turn(self, key: LimitKey, asks: Sequence[Ask], *, own: Collection[int]) -> Dealt | None:
        rows = await self._writer.fetch(query("permits.sql", "read_book"), {**key._asdict(), "own": sorted(own)})
        first, now = rows[0], rows[0]["now"]
        living = set(first["living"])
        seats = [_seat(row) for row in rows if row["is_alive"]]
        book = Book(next_at=first["next_at"], share=first["share"], dealt=first["dealt"], seats=seats)
        dealt = deal(book, [ask for ask in asks if ask.session_id in living], own=living, now=now)
        kept = {seat.key for seat in dealt.book.seats}
        stored = {(row["session_id"], row["execution_id"]) for row in rows if row["session_id"] is not None}
        changed = [seat for seat in dealt.book.seats if seat.session_id in living]
        gone = sorted(stored - kept)
        written = await self._writer.fetch(
            query("permits.sql", "write_book"),
            {
                **key._asdict(),
                "version": first["version"],
                "next_at": dealt.book.next_at,
                "share": dealt.book.share,
                "dealt": dealt.book.dealt,
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
            },
        )
        return dealt if written else None

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
