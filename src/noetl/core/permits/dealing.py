"""One turn at a shared limit: who gets permits now.  Pure: what time it is comes in as data.

A session says for each of its executions how many permits it has given back, holds and waits for; `granted` only grows.
Told twice, late, or after an answer that was lost, these numbers mean the same, so nothing can be given twice or lost.

Whoever takes a turn gives permits to its own sessions only and leaves to others what is theirs: they take it when it is
their turn.  Between executions the next permit goes to the one that had the fewest: calls where there is a rate,
permits in its hands where there is none."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from noetl.core.limits import PERMITS_PER_TURN_MAX, PERMITS_WANTED_MAX
from noetl.core.permits.rates import Allowance, strictest

FRESH_SECONDS = 1.0
"""Who waits says so at least this often; the word of a server that stands still holds up nobody for longer."""
LATE_SECONDS = 0.25
"""How long a permit of the rate can still be taken by somebody who waits.  What nobody waited for is gone at once."""
LINGER_SECONDS = 10.0
"""How long what an execution declared holds after its last call."""
REFRESH_SECONDS = 0.2
"""A word that says nothing new is written after so long: well before the one before it is too old to count."""
SILENT_SECONDS = 2.5
"""Whoever holds a permit has a turn taken more often than that.  After a longer silence nobody could speak, and it says
nothing about a session that it is not alive."""
OPENING_SECONDS = 4.0
"""After such a silence, or in books that were lost, a concurrency grants nothing until all had the time to say what
they hold."""
_ROUNDING = 1e-6

SeatKey = tuple[int, int]
"""A session and an execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a session says about one of its executions."""

    session_id: int
    execution_id: int
    allowance: Allowance
    returned: int = 0
    in_use: int = 0
    waiting: int = 0
    waited_seconds: float = 0.0
    """For how long somebody waits already."""

    @property
    def key(self) -> SeatKey:
        return self.session_id, self.execution_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What is known of an execution at a session.  `asked` is how many permits it wants in all, those that it had
    included; `served` the share of its execution; `dealt_at` the number of the last permit that it got."""

    session_id: int
    execution_id: int
    allowance: Allowance
    heard_at: float
    granted: int = 0
    returned: int = 0
    asked: int = 0
    served: int = 0
    dealt_at: int = 0

    @property
    def key(self) -> SeatKey:
        return self.session_id, self.execution_id

    @property
    def in_use(self) -> int:
        return self.granted - self.returned

    def waiting_at(self, now: float) -> int:
        return max(self.asked - self.granted, 0) if now - self.heard_at <= FRESH_SECONDS else 0

    def is_kept_at(self, now: float) -> bool:
        return self.in_use > 0 or now - self.heard_at <= LINGER_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """A limit with everybody who uses it; all sessions in it are alive.  `next_at` is when the next permit of the rate
    is due, `share` what an execution that comes anew has had, `dealt` how many permits there were; `turned_at` is when
    the last turn was, `opened_at` since when everybody can say what they hold, and `lost` what those held who are not
    alive any more."""

    next_at: float = 0.0
    share: int = 0
    dealt: int = 0
    turned_at: float = 0.0
    opened_at: float = -math.inf
    lost: int = 0
    seats: Sequence[Seat] = ()

    def allowance_at(self, now: float) -> Allowance:
        return strictest(seat.allowance for seat in self.seats if seat.is_kept_at(now))

    def turned(self, now: float) -> Book:
        """At the beginning of a turn."""
        is_silent = self.lost > 0 and now - self.turned_at > SILENT_SECONDS
        return replace(self, turned_at=now, opened_at=now if is_silent else self.opened_at, lost=0)

    def is_opening_at(self, now: float) -> bool:
        return 0 <= now - self.opened_at < OPENING_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """`due_seconds` is how long until the rate has the next permit; None where there is no rate."""

    book: Book
    granted: Mapping[SeatKey, int]
    allowance: Allowance
    due_seconds: float | None
    is_shared: bool
    """Whether sessions of others use the limit too."""
    alone: frozenset[SeatKey] = frozenset()
    """Those that may go on with what they hold: there is no rate, and nobody else waits."""
    is_cut: bool = False
    """Whether there is more to deal at once than one turn deals."""


def deal(book: Book, asks: Iterable[Ask], *, own: Collection[int], now: float) -> Dealt:
    """One turn for the sessions in `own`; what these say nothing about is not in use any more."""
    waited = {seat.execution_id for seat in book.seats if seat.waiting_at(now)}
    told = {ask.key: ask for ask in asks}
    seconds = max((ask.waited_seconds for ask in told.values() if ask.waiting), default=0.0)
    table = _Table(book.turned(now), _told(book, told, own, now), waited, own, now)
    table.rate(LATE_SECONDS if waited else min(max(seconds, 0.0), LATE_SECONDS))
    table.deal()
    return table.outcome()


def _told(book: Book, asks: Mapping[SeatKey, Ask], own: Collection[int], now: float) -> list[Seat]:
    """The seats with what their sessions say of them; those of which they say nothing new are the same objects."""
    seats: list[Seat] = []
    known = {seat.key: seat for seat in book.seats}
    for seat in book.seats:
        is_told = seat.key in asks
        if seat.session_id in own and not is_told and (seat.in_use or seat.asked != seat.granted):
            seat = replace(seat, returned=seat.granted, asked=seat.granted)  # noqa: PLW2901 - the same seat, as told
        if not is_told and seat.is_kept_at(now):
            seats.append(seat)
    seats += [_heard(known.get(key), ask, now) for key, ask in asks.items()]
    return sorted(seats, key=lambda one: one.key)


def _heard(seat: Seat | None, ask: Ask, now: float) -> Seat:
    had = ask.returned + ask.in_use
    if seat is None:
        seat = Seat(
            session_id=ask.session_id, execution_id=ask.execution_id, allowance=ask.allowance, heard_at=-math.inf
        )
    # What a session has it was given, also when nobody here remembers it.
    granted, returned, asked = max(seat.granted, had), max(seat.returned, ask.returned), had + ask.waiting
    is_same = (seat.granted, seat.returned, seat.asked, seat.allowance) == (granted, returned, asked, ask.allowance)
    if is_same and 0 <= now - seat.heard_at < REFRESH_SECONDS:
        return seat
    return replace(seat, allowance=ask.allowance, heard_at=now, granted=granted, returned=returned, asked=asked)


class _Table:
    """The seats of one turn while permits are dealt."""

    def __init__(
        self, book: Book, seats: Sequence[Seat], waited: Collection[int], own: Collection[int], now: float
    ) -> None:
        self._own = own
        self._now = now
        self._read = {seat.key: seat for seat in book.seats}
        self._book = book = replace(book, seats=tuple(seats))
        self._allowance = book.allowance_at(now)
        self._seats = {seat.key: seat for seat in seats}
        self._waiting = {seat.key: waiting for seat in seats if (waiting := seat.waiting_at(now))}
        self._dealt_at: dict[SeatKey, int] = {}
        self._served: dict[int, int] = {}
        self._in_use: dict[int, int] = {}
        # Of each execution the number of its last permit, and its seats that wait: who has waited longest comes first.
        self._last: dict[int, int] = {}
        self._lines: dict[int, list[tuple[int, SeatKey]]] = {}
        for key, seat in self._seats.items():
            of = seat.execution_id
            self._served[of] = max(self._served.get(of, 0), seat.served)
            self._in_use[of] = self._in_use.get(of, 0) + seat.in_use
            self._last[of] = max(self._last.get(of, 0), seat.dealt_at)
            if key in self._waiting:
                self._lines.setdefault(of, []).append((seat.dealt_at, key))
        for of, line in self._lines.items():
            heapq.heapify(line)
            # Who did not wait before has no claim on what was dealt meanwhile.
            if of not in waited:
                self._served[of] = max(self._served[of], book.share)
        self._gained = dict.fromkeys(self._served, 0)
        self._given: dict[SeatKey, int] = {}
        self._share = book.share
        self._dealt = self._number = book.dealt
        self._next_at = book.next_at
        self._is_cut = False

    def rate(self, waited_seconds: float) -> None:
        """When the next permit of the rate is due: what passed while nobody waited is gone.  Never further away than
        one: a clock may be set back, and a limit may have been stricter before."""
        rate = self._allowance.rate
        if rate is not None:
            self._next_at = min(max(self._next_at, self._now - waited_seconds), self._now + 1 / rate)

    def _budget(self) -> int:
        rate, concurrency = self._allowance.rate, self._allowance.concurrency
        budget = PERMITS_WANTED_MAX
        if concurrency is not None:
            is_opening = self._book.is_opening_at(self._now)
            budget = 0 if is_opening else min(budget, max(concurrency - sum(self._in_use.values()), 0))
        if rate is not None:
            due = math.floor((self._now - self._next_at) * rate + _ROUNDING) + 1 if self._next_at <= self._now else 0
            budget = min(budget, due)
        return budget

    def _order(self, execution_id: int) -> tuple[int, int, int, int]:
        held = 0 if self._allowance.rate is not None else self._in_use[execution_id]
        served = self._served[execution_id] + self._gained[execution_id]
        return held, served, self._last[execution_id], execution_id

    def deal(self) -> None:
        budget = self._budget()
        most = min(budget, PERMITS_PER_TURN_MAX)
        order = [self._order(of) for of in self._lines]
        heapq.heapify(order)
        while most > 0 and order:
            *_, of = heapq.heappop(order)
            self._give(of)
            most -= 1
            budget -= 1
            if self._lines[of]:
                heapq.heappush(order, self._order(of))
        # A turn in which others come first brings nobody here anything, however soon the next one is.
        self._is_cut = budget > 0 and bool(self._given) and any(self._waiting[key] for key in self._given)

    def _give(self, of: int) -> None:
        """One permit; what is for a session of somebody else stays where it is."""
        _, key = heapq.heappop(self._lines[of])
        self._number += 1
        self._dealt_at[key] = self._last[of] = self._number
        self._waiting[key] -= 1
        if self._waiting[key]:
            heapq.heappush(self._lines[of], (self._number, key))
        if key[0] in self._own:
            self._share = max(self._share, self._served[of] + self._gained[of])
            self._given[key] = self._given.get(key, 0) + 1
            self._dealt += 1
        self._gained[of] += 1
        self._in_use[of] += 1

    def outcome(self) -> Dealt:
        seats = self._written()
        rate = self._allowance.rate
        waiting = [key for key, count in self._waiting.items() if count]
        next_at = self._next_at if rate is None else self._next_at + sum(self._given.values()) / rate
        granted = {seat.key: seat.granted for seat in seats if seat.session_id in self._own}
        alone = frozenset(granted) if not waiting else frozenset(granted.keys() & waiting)
        return Dealt(
            book=replace(self._book, next_at=next_at, share=self._share, dealt=self._dealt, seats=tuple(seats)),
            granted=granted,
            allowance=self._allowance,
            alone=alone if rate is None and len(waiting) <= 1 else frozenset(),
            due_seconds=None if rate is None else max(next_at - self._now, 0.0),
            is_shared=any(
                seat.session_id not in self._own and (seat.in_use > 0 or seat.waiting_at(self._now)) for seat in seats
            ),
            is_cut=self._is_cut,
        )

    def _written(self) -> list[Seat]:
        """The seats as they are to be written.  What an execution has had stands in those that change: the highest of
        its seats counts, and all who use the limit say something new, or the same again, before long."""
        own_gains: dict[int, int] = {}
        for (_, of), count in self._given.items():
            own_gains[of] = own_gains.get(of, 0) + count
        seats = []
        for key, seat in self._seats.items():
            count, of = self._given.get(key, 0), key[1]
            served = self._served[of] + own_gains.get(of, 0)
            is_new = seat.served != served and key[0] in self._own and seat is not self._read.get(key)
            if count or is_new:
                dealt_at = self._dealt_at[key] if count else seat.dealt_at
                seat = replace(seat, granted=seat.granted + count, served=served, dealt_at=dealt_at)  # noqa: PLW2901
            seats.append(seat)
        return seats
