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

from noetl.core.limits import PERMITS_PER_TURN_MAX
from noetl.core.permits.rates import Allowance, strictest

FRESH_SECONDS = 1.0
"""Who waits says so at least this often; the word of a server that stands still holds up nobody for longer."""
LATE_SECONDS = 0.25
"""How long a permit of the rate can still be taken by somebody who waits.  What nobody waited for is gone at once."""
LINGER_SECONDS = 10.0
"""How long what an execution declared holds after its last call."""
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
    is due, `share` what an execution that comes anew has had, `dealt` how many permits there were."""

    next_at: float = 0.0
    share: int = 0
    dealt: int = 0
    seats: Sequence[Seat] = ()

    def allowance_at(self, now: float) -> Allowance:
        return strictest(seat.allowance for seat in self.seats if seat.is_kept_at(now))


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


def deal(book: Book, asks: Iterable[Ask], *, own: Collection[int], now: float) -> Dealt:
    """One turn for the sessions in `own`; what these say nothing about is not in use any more."""
    waited = {seat.execution_id for seat in book.seats if seat.waiting_at(now)}
    told = {ask.key: ask for ask in asks}
    seconds = max((ask.waited_seconds for ask in told.values() if ask.waiting), default=0.0)
    table = _Table(replace(book, seats=tuple(_told(book, told, own, now))), waited, own, now)
    table.rate(LATE_SECONDS if waited else min(max(seconds, 0.0), LATE_SECONDS))
    table.deal()
    return table.outcome()


def _told(book: Book, asks: Mapping[SeatKey, Ask], own: Collection[int], now: float) -> list[Seat]:
    """The seats with what their sessions say of them."""
    seats: list[Seat] = []
    known = {seat.key: seat for seat in book.seats}
    for seat in book.seats:
        if seat.session_id in own and seat.key not in asks:
            seat = replace(seat, returned=seat.granted, asked=seat.granted)  # noqa: PLW2901 - the same seat, as told
        if seat.key not in asks and seat.is_kept_at(now):
            seats.append(seat)
    for key, ask in asks.items():
        had = ask.returned + ask.in_use
        seat = known.get(key) or Seat(
            session_id=ask.session_id, execution_id=ask.execution_id, allowance=ask.allowance, heard_at=now
        )
        seats.append(
            replace(
                seat,
                allowance=ask.allowance,
                heard_at=now,
                # What a session has it was given, also when nobody here remembers it.
                granted=max(seat.granted, had),
                returned=max(seat.returned, ask.returned),
                asked=had + ask.waiting,
            )
        )
    return sorted(seats, key=lambda one: one.key)


class _Table:
    """The seats of one turn while permits are dealt."""

    def __init__(self, book: Book, waited: Collection[int], own: Collection[int], now: float) -> None:
        self._own = own
        self._now = now
        self._book = book
        self._allowance = book.allowance_at(now)
        self._seats = {seat.key: seat for seat in book.seats}
        self._waiting = {seat.key: seat.waiting_at(now) for seat in book.seats}
        self._dealt_at = {seat.key: seat.dealt_at for seat in book.seats}
        self._seats_of: dict[int, list[SeatKey]] = {}
        self._served: dict[int, int] = {}
        self._in_use: dict[int, int] = {}
        for seat in book.seats:
            of = seat.execution_id
            self._seats_of.setdefault(of, []).append(seat.key)
            self._served[of] = max(self._served.get(of, 0), seat.served)
            self._in_use[of] = self._in_use.get(of, 0) + seat.in_use
        for of, keys in self._seats_of.items():
            # Who did not wait before has no claim on what was dealt meanwhile.
            if of not in waited and any(self._waiting[key] for key in keys):
                self._served[of] = max(self._served[of], book.share)
        self._gained = dict.fromkeys(self._served, 0)
        self._given: dict[SeatKey, int] = {}
        self._share = book.share
        self._dealt = self._number = book.dealt
        self._next_at = book.next_at

    def rate(self, waited_seconds: float) -> None:
        """When the next permit of the rate is due: what passed while nobody waited is gone.  Never further away than
        one: a clock may be set back, and a limit may have been stricter before."""
        rate = self._allowance.rate
        if rate is not None:
            self._next_at = min(max(self._next_at, self._now - waited_seconds), self._now + 1 / rate)

    def _budget(self) -> int:
        rate, concurrency = self._allowance.rate, self._allowance.concurrency
        budget = PERMITS_PER_TURN_MAX
        if concurrency is not None:
            budget = min(budget, max(concurrency - sum(self._in_use.values()), 0))
        if rate is not None:
            due = math.floor((self._now - self._next_at) * rate + _ROUNDING) + 1 if self._next_at <= self._now else 0
            budget = min(budget, due)
        return budget

    def _order(self, execution_id: int) -> tuple[int, int, int, int]:
        held = 0 if self._allowance.rate is not None else self._in_use[execution_id]
        last = max(self._dealt_at[key] for key in self._seats_of[execution_id])
        return held, self._served[execution_id] + self._gained[execution_id], last, execution_id

    def deal(self) -> None:
        budget = self._budget()
        line = [self._order(of) for of, keys in self._seats_of.items() if any(self._waiting[key] for key in keys)]
        heapq.heapify(line)
        while budget > 0 and line:
            *_, of = heapq.heappop(line)
            keys = [key for key in self._seats_of[of] if self._waiting[key]]
            self._give(min(keys, key=lambda key: (self._dealt_at[key], key)))
            budget -= 1
            if any(self._waiting[key] for key in self._seats_of[of]):
                heapq.heappush(line, self._order(of))

    def _give(self, key: SeatKey) -> None:
        """One permit; what is for a session of somebody else stays where it is."""
        of = key[1]
        self._number += 1
        self._dealt_at[key] = self._number
        self._waiting[key] -= 1
        if key[0] in self._own:
            self._share = max(self._share, self._served[of] + self._gained[of])
            self._given[key] = self._given.get(key, 0) + 1
            self._dealt += 1
        self._gained[of] += 1
        self._in_use[of] += 1

    def outcome(self) -> Dealt:
        own_gains: dict[int, int] = {}
        for (_, of), count in self._given.items():
            own_gains[of] = own_gains.get(of, 0) + count
        seats = []
        for key, seat in self._seats.items():
            count = self._given.get(key, 0)
            seats.append(
                replace(
                    seat,
                    granted=seat.granted + count,
                    served=self._served[key[1]] + own_gains.get(key[1], 0),
                    dealt_at=self._dealt_at[key] if count else seat.dealt_at,
                )
            )
        rate = self._allowance.rate
        waiting = {key for key, count in self._waiting.items() if count}
        next_at = self._next_at if rate is None else self._next_at + sum(self._given.values()) / rate
        return Dealt(
            book=replace(self._book, next_at=next_at, share=self._share, dealt=self._dealt, seats=tuple(seats)),
            granted={seat.key: seat.granted for seat in seats if seat.session_id in self._own},
            allowance=self._allowance,
            alone=frozenset(key for key in self._seats if rate is None and key[0] in self._own and waiting <= {key}),
            due_seconds=None if rate is None else max(next_at - self._now, 0.0),
            is_shared=any(
                seat.session_id not in self._own and (seat.in_use > 0 or seat.waiting_at(self._now)) for seat in seats
            ),
        )
