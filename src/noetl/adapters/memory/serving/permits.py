"""The books of shared limits in memory; the clock of the database says what time it is."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from noetl.adapters.memory.faults import Faults
from noetl.adapters.memory.serving.processes import Presence
from noetl.core.permits.dealing import Ask, Book, Dealt, deal
from noetl.ports.serving.permits import LimitKey, LimitView, view_of


class MemoryPermits:
    def __init__(self, presence: Presence, faults: Faults | None = None) -> None:
        self._presence = presence
        self._faults = faults or Faults()
        self.books: dict[LimitKey, Book] = {}
        self.opened_at: float | None = -math.inf
        """None when the books were lost, as those of a database that crashed."""

    async def turn(self, key: LimitKey, asks: Sequence[Ask], *, own: Collection[int]) -> Dealt | None:
        def write() -> Dealt:
            living = {one for one in own if self._presence.vouched(one) is not None}
            heard = [ask for ask in asks if ask.session_id in living]
            if self.opened_at is None:
                self.opened_at = self._presence.now
            dealt = deal(self._living(key), heard, own=living, now=self._presence.now)
            self.books[key] = dealt.book
            return dealt

        return await self._faults.around("turn", write)

    async def sweep(self, *, unused_seconds: float) -> int:
        def write() -> int:
            since = self._presence.now - unused_seconds
            old = [key for key, book in self.books.items() if book.turned_at < since]
            for key in old:
                del self.books[key]
            return len(old)

        return await self._faults.around("sweep_limits", write)

    async def look(self, *, tenant_id: str, organization_id: str) -> list[LimitView]:
        def read() -> list[LimitView]:
            now = self._presence.now
            found = []
            for key in sorted(self.books):
                book = self._living(key)
                is_ours = (key.tenant_id, key.organization_id) == (tenant_id, organization_id)
                if is_ours and any(seat.is_kept_at(now) for seat in book.seats):
                    found.append(view_of(key.name, book.dealt, book, now))
            return found

        return await self._faults.around("look_at_limits", read)

    def _living(self, key: LimitKey) -> Book:
        book = self.books.get(key, Book())
        living = [seat for seat in book.seats if self._presence.vouched(seat.session_id) is not None]
        return replace(
            book,
            seats=living,
            lost=sum(seat.in_use for seat in book.seats) - sum(seat.in_use for seat in living),
            opened_at=book.opened_at if self.opened_at is None else max(book.opened_at, self.opened_at),
        )
