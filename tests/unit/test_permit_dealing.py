"""The turns of a shared limit: what is never exceeded, what is never lost, and who comes next."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.core.limits import PERMITS_PER_TURN_MAX, PERMITS_WANTED_MAX
from noetl.core.permits.dealing import (
    FRESH_SECONDS,
    LATE_SECONDS,
    LINGER_SECONDS,
    OPENING_SECONDS,
    REFRESH_SECONDS,
    SILENT_SECONDS,
    Ask,
    Book,
    Dealt,
    deal,
)
from noetl.core.permits.rates import Allowance
from noetl.engine.permits.desk import HELD_SECONDS, POLL_SECONDS

START = 1_000_000.0


@dataclass(slots=True)
class Caller:
    """A session's end of the story for one execution: what it holds, and what it would take."""

    session_id: int
    execution_id: int
    returned: int = 0
    in_use: int = 0
    waiting: int = 0
    had: int = 0


@dataclass(slots=True)
class World:
    """Sessions at one limit, of one or several servers that take turns."""

    allowance: Allowance
    callers: list[Caller] = field(default_factory=list)
    book: Book = field(default_factory=Book)
    now: float = START
    grants: list[tuple[float, int]] = field(default_factory=list)

    def turn(self, own: Iterable[int] | None = None, *, is_lost: bool = False) -> Dealt:
        """One turn; when the answer is lost, nobody hears of what was granted."""
        mine = {caller.session_id for caller in self.callers} if own is None else set(own)
        asks = [
            Ask(
                session_id=one.session_id,
                execution_id=one.execution_id,
                allowance=self.allowance,
                returned=one.returned,
                in_use=one.in_use,
                waiting=one.waiting,
            )
            for one in self.callers
            if one.session_id in mine and (one.in_use or one.waiting)
        ]
        for one in self.callers:
            if not one.in_use and not one.waiting:
                # Nobody is left: the next one counts from above everything that may still be granted to this one.
                one.returned += PERMITS_WANTED_MAX + 1
        before = {ask.key: ask.returned + ask.in_use for ask in asks}
        before |= {seat.key: max(seat.granted, before.get(seat.key, 0)) for seat in self.book.seats}
        dealt = deal(self.book, asks, own=mine, now=self.now)
        self.book = dealt.book
        for seat in dealt.book.seats:
            gained = seat.granted - max(before.get(seat.key, 0), 0)
            self.grants += [(self.now, seat.execution_id)] * max(gained, 0)
        if not is_lost:
            for one in self.callers:
                granted = dealt.granted.get((one.session_id, one.execution_id))
                if granted is not None and one.session_id in mine:
                    gained = max(granted - one.returned - one.in_use, 0)
                    one.in_use += gained
                    one.had += gained
                    one.waiting -= min(gained, one.waiting)
        return dealt

    def end_calls(self) -> None:
        for one in self.callers:
            one.returned, one.in_use = one.returned + one.in_use, 0

    @property
    def in_use(self) -> int:
        return sum(seat.in_use for seat in self.book.seats)


def had(world: World) -> dict[int, int]:
    found: dict[int, int] = {}
    for one in world.callers:
        found[one.execution_id] = found.get(one.execution_id, 0) + one.had
    return found


# --- concurrency -----------------------------------------------------------------------------------------


@given(
    concurrency=st.integers(1, 20),
    steps=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(0, 30), st.booleans(), st.booleans()), max_size=40
    ),
)
def test_never_more_permits_are_held_than_there_are(
    concurrency: int, steps: Sequence[tuple[int, int, int, bool, bool]]
) -> None:
    world = World(Allowance(concurrency=concurrency), [Caller(n % 3, n) for n in range(6)])
    for which, wanted, ended, is_lost, is_one_server in steps:
        caller = world.callers[which]
        caller.waiting = wanted
        back = min(ended, caller.in_use)
        caller.in_use, caller.returned = caller.in_use - back, caller.returned + back
        world.turn({which % 3} if is_one_server else None, is_lost=is_lost)
        world.now += 0.01
        assert world.in_use <= concurrency
        assert sum(one.in_use for one in world.callers) <= concurrency


@given(concurrency=st.integers(1, 50), wants=st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_permits_in_hand_are_shared_so_that_nobody_could_have_more_without_somebody_poorer_having_less(
    concurrency: int, wants: list[int]
) -> None:
    world = World(Allowance(concurrency=concurrency), [Caller(1, n, waiting=want) for n, want in enumerate(wants)])
    world.turn()
    shares = [one.in_use for one in world.callers]
    assert sum(shares) == min(concurrency, sum(wants))
    for share, want in zip(shares, wants, strict=True):
        if share < want:  # it wants more: then nobody has more than one above it
            assert max(shares) <= share + 1


def test_who_holds_long_calls_does_not_come_to_hold_everything() -> None:
    world = World(Allowance(concurrency=10), [Caller(1, 1, waiting=100), Caller(1, 2, waiting=100)])
    for _ in range(50):
        world.turn()
        world.now += 0.05
        short = world.callers[1]
        short.returned, short.in_use, short.waiting = short.returned + short.in_use, 0, 100
    assert world.callers[0].in_use == 5
    assert world.callers[1].had > 100


# --- the rate --------------------------------------------------------------------------------------------


@given(
    rate=st.sampled_from([0.5, 3.0, 50.0, 333.0]),
    turns=st.lists(
        st.tuples(st.floats(0.0, 0.6), st.integers(0, 60), st.booleans(), st.booleans()), min_size=1, max_size=60
    ),
)
def test_in_any_window_there_are_no_more_calls_than_the_rate_and_what_was_late_allow(
    rate: float, turns: Sequence[tuple[float, int, bool, bool]]
) -> None:
    world = World(Allowance(rate=rate), [Caller(1, 1), Caller(2, 2)])
    for pause, wanted, is_other, is_lost in turns:
        world.now += pause
        world.callers[is_other].waiting = wanted
        world.end_calls()
        world.turn({1 + is_other}, is_lost=is_lost)
    times = [at for at, _ in world.grants]
    for first in range(len(times)):
        for last in range(first, len(times)):
            allowed = rate * (times[last] - times[first] + LATE_SECONDS) + 1
            assert last - first + 1 <= allowed + 1e-3


@pytest.mark.parametrize("rate", [7.0, 50.0, 1000.0])
@pytest.mark.parametrize("every", [0.01, 0.05, 0.2])
def test_while_somebody_waits_no_permit_of_the_rate_is_lost(rate: float, every: float) -> None:
    world = World(Allowance(rate=rate), [Caller(1, 1)])
    while world.now < START + 60:
        world.callers[0].waiting = 10_000
        world.end_calls()
        world.turn()
        world.now += every
    assert abs(world.callers[0].had - 60 * rate) <= 1 + rate * every


def test_what_nobody_waited_for_is_gone() -> None:
    world = World(Allowance(rate=50.0), [Caller(1, 1, waiting=1)])
    world.turn()
    world.now += 100
    world.callers[0].waiting = 100
    world.turn()
    assert world.callers[0].had == 2


def test_who_waited_between_two_turns_loses_nothing_of_the_rate() -> None:
    book = Book(next_at=START)
    ask = Ask(session_id=1, execution_id=1, allowance=Allowance(rate=10.0), waiting=1, waited_seconds=0.09)
    dealt = deal(book, [ask], own={1}, now=START + 0.004)
    assert dealt.granted == {(1, 1): 1}
    assert dealt.book.next_at == pytest.approx(START + 0.1)


def test_a_clock_that_was_set_back_stops_nobody_for_longer_than_one_permit() -> None:
    world = World(Allowance(rate=2.0), [Caller(1, 1, waiting=5)])
    world.turn()
    world.now -= 3600
    dealt = world.turn()
    assert dealt.due_seconds == pytest.approx(0.5)
    world.now += 0.5
    world.turn()
    assert world.callers[0].had == 2


def test_a_limit_with_both_keeps_both() -> None:
    world = World(Allowance(rate=10.0, concurrency=2), [Caller(1, 1, waiting=100)])
    for _ in range(20):
        world.turn()
        world.now += 0.05
    assert world.callers[0].in_use == 2
    world.end_calls()
    world.turn()
    assert world.callers[0].had == 4


# --- between executions ----------------------------------------------------------------------------------


def test_an_execution_with_a_thousand_rows_does_not_starve_one_with_two() -> None:
    world = World(Allowance(rate=10.0), [Caller(1, 1, waiting=1000)])
    for _ in range(100):
        world.turn()
        world.end_calls()
        world.now += 0.1
    world.callers.append(Caller(2, 2, waiting=2))
    begun = world.now
    while world.callers[1].had < 2:
        world.turn()
        world.end_calls()
        world.now += 0.1
    assert world.now - begun < 0.5


@settings(max_examples=25)
@given(servers=st.integers(1, 4), rows=st.lists(st.integers(50, 500), min_size=2, max_size=4), seed=st.randoms())
def test_executions_that_always_wait_get_the_same_over_all_servers(
    servers: int, rows: list[int], seed: st.DataObject
) -> None:
    sessions = range(1, servers + 1)
    world = World(Allowance(rate=100.0))
    for execution_id, _ in enumerate(rows):
        for session_id in sessions:
            if session_id == 1 + execution_id % servers or seed.random() < 0.5:  # type: ignore[attr-defined]
                world.callers.append(Caller(session_id, execution_id))
    for _ in range(200):
        for session_id in seed.sample(list(sessions), servers):  # type: ignore[attr-defined]
            for one in world.callers:
                one.waiting = rows[one.execution_id]
            world.end_calls()
            world.turn({session_id})
            world.now += 0.05 / servers
    shares = had(world)
    total = sum(shares.values())
    assert total >= 0.97 * 100 * 0.05 * 200
    for count in shares.values():
        assert abs(count - total / len(shares)) <= 0.05 * total / len(shares) + 3


def test_who_asks_for_little_gets_all_of_it_and_the_rest_is_shared() -> None:
    world = World(Allowance(rate=30.0), [Caller(1, 1), Caller(1, 2), Caller(1, 3)])
    for number in range(600):
        world.callers[0].waiting = 1 if number % 10 == 0 else world.callers[0].waiting
        world.callers[1].waiting = world.callers[2].waiting = 50
        world.end_calls()
        world.turn()
        world.now += 0.05
    small, one, two = (world.callers[n].had for n in range(3))
    assert small == 60
    assert abs(one - two) <= 2
    assert small + one + two >= 30 * 30 - 2


def test_who_was_away_has_no_claim_on_what_was_dealt_meanwhile() -> None:
    world = World(Allowance(rate=10.0), [Caller(1, 1, waiting=9999), Caller(1, 2, waiting=1)])
    for number in range(200):
        if number == 100:
            world.callers[1].waiting = 9999
            before = had(world)
        world.turn()
        world.end_calls()
        world.now += 0.1
    gained = {one: count - before[one] for one, count in had(world).items()}
    assert abs(gained[1] - gained[2]) <= 2


def test_who_is_alone_may_go_on_with_what_it_holds() -> None:
    world = World(Allowance(concurrency=2), [Caller(1, 1, waiting=5), Caller(2, 2)])
    assert world.turn().alone == {(1, 1)}
    world.callers[1].waiting = 1
    assert world.turn().alone == set()
    world.end_calls()
    world.callers[0].waiting = 0
    world.turn()
    assert (2, 2) in world.turn().alone
    rated = World(Allowance(rate=5.0, concurrency=2), [Caller(1, 1, waiting=5)])
    assert rated.turn().alone == set()


# --- sessions that die, words that are lost ---------------------------------------------------------------


def test_an_answer_that_is_lost_is_given_again_and_costs_nothing() -> None:
    world = World(Allowance(concurrency=4), [Caller(1, 1, waiting=3)])
    world.turn(is_lost=True)
    assert world.callers[0].in_use == 0
    assert world.in_use == 3
    world.turn()
    assert world.callers[0].in_use == 3
    assert world.in_use == 3


def test_what_a_session_says_nothing_about_is_free() -> None:
    world = World(Allowance(concurrency=1), [Caller(1, 1, waiting=1), Caller(2, 2, waiting=1)])
    world.turn()
    world.callers[0].in_use = 0  # its worker forgot the line
    world.turn()
    assert world.callers[1].in_use == 1
    world.callers[0].waiting = 1
    world.turn()
    assert world.callers[0].in_use == 0


def test_books_that_were_lost_are_written_again_by_those_who_use_them() -> None:
    world = World(Allowance(concurrency=3), [Caller(1, 1, waiting=2), Caller(2, 2, waiting=2)])
    world.turn()
    world.book = Book()
    world.turn()
    assert world.in_use == 3
    assert sum(one.in_use for one in world.callers) == 3


def test_a_server_that_stands_still_holds_up_the_others_for_a_second_at_most() -> None:
    world = World(Allowance(rate=10.0), [Caller(1, 1, waiting=100), Caller(2, 2, waiting=100)])
    world.turn({2})
    while world.now < START + FRESH_SECONDS + 1.0:
        world.now += 0.05
        world.turn({1})
        world.end_calls()
    assert world.callers[0].had >= 10


def test_the_strictest_that_is_in_use_holds_and_a_while_longer() -> None:
    loose, strict = Allowance(rate=100.0, concurrency=9), Allowance(rate=10.0)

    def ask(session_id: int, allowance: Allowance, **counts: int) -> Ask:
        return Ask(session_id=session_id, execution_id=session_id, allowance=allowance, **counts)

    dealt = deal(Book(), [ask(1, loose, waiting=1), ask(2, strict, waiting=1)], own={1, 2}, now=START)
    assert dealt.allowance == Allowance(rate=10.0, concurrency=9)
    dealt = deal(dealt.book, [ask(1, loose, returned=1, waiting=1)], own={1, 2}, now=START + LINGER_SECONDS - 0.1)
    assert dealt.allowance == Allowance(rate=10.0, concurrency=9)
    dealt = deal(dealt.book, [ask(1, loose, returned=2, waiting=1)], own={1, 2}, now=START + LINGER_SECONDS + 0.1)
    assert dealt.allowance == loose
    assert [seat.session_id for seat in dealt.book.seats] == [1]


# --- books that were lost, and silence --------------------------------------------------------------------


def test_in_books_that_were_lost_nobody_gets_a_permit_before_the_others_could_speak() -> None:
    world = World(Allowance(concurrency=2), [Caller(1, 1, waiting=2), Caller(2, 2)])
    world.turn()
    world.book = Book(opened_at=world.now)
    world.callers[1].waiting = 2
    world.turn({2})
    world.now += HELD_SECONDS
    world.turn({1})
    while world.now < START + OPENING_SECONDS + 1:
        world.turn({2})
        world.now += 0.1
        assert world.in_use <= 2
    assert [one.in_use for one in world.callers] == [2, 0]
    world.callers[0].returned, world.callers[0].in_use = 2, 0
    world.turn({1})
    world.turn({2})
    assert world.callers[1].in_use == 2


def test_a_rate_goes_on_in_books_that_were_lost() -> None:
    world = World(Allowance(rate=10.0), [Caller(1, 1, waiting=1)], book=Book(opened_at=START))
    world.turn()
    assert world.callers[0].had == 1


@pytest.mark.parametrize(("seconds", "is_granted"), [(SILENT_SECONDS + 0.1, False), (HELD_SECONDS, True)])
def test_after_a_silence_the_dead_may_only_be_late(seconds: float, is_granted: bool) -> None:
    """Without the database nobody can renew a lease, nor say anything; a session that died while others took turns is
    dead."""
    book = Book(turned_at=START, lost=2)
    ask = Ask(session_id=2, execution_id=2, allowance=Allowance(concurrency=2), waiting=1)
    now = START + seconds
    dealt = deal(book, [ask], own={2}, now=now)
    assert bool(dealt.granted[2, 2]) is is_granted
    later = deal(dealt.book, [ask], own={2}, now=now + OPENING_SECONDS)
    assert later.granted[2, 2] == 1
    assert deal(dealt.book, [ask], own={2}, now=now - 3600).granted[2, 2] == 1, "a clock that was set back stops nobody"


def test_whoever_holds_a_permit_speaks_before_a_silence_begins_and_before_the_books_are_open() -> None:
    assert HELD_SECONDS < SILENT_SECONDS < OPENING_SECONDS
    assert REFRESH_SECONDS + POLL_SECONDS < FRESH_SECONDS


# --- what a turn costs ------------------------------------------------------------------------------------


def test_a_turn_deals_no_more_than_its_share_of_permits_and_says_that_there_are_more() -> None:
    world = World(Allowance(concurrency=5_000), [Caller(n, n % 3, waiting=400) for n in range(9)])
    turns = 0
    while world.turn().is_cut:
        turns += 1
        assert len(world.grants) == turns * PERMITS_PER_TURN_MAX
        shares = had(world).values()
        assert max(shares) - min(shares) <= 1
    assert sum(had(world).values()) == 9 * 400


def test_a_turn_that_could_deal_no_more_is_not_cut() -> None:
    world = World(Allowance(concurrency=PERMITS_PER_TURN_MAX), [Caller(1, 1, waiting=PERMITS_PER_TURN_MAX + 1)])
    assert not world.turn().is_cut
    # Others come first, and a turn here brings nothing until they have had theirs.
    world = World(Allowance(concurrency=10**6), [Caller(1, 1, waiting=10_000), Caller(2, 2)])
    world.turn({1})
    world.callers[1].waiting = 10_000
    world.turn({2})
    world.callers[0].waiting = 10_000
    world.callers[0].in_use += PERMITS_PER_TURN_MAX
    assert not world.turn({1}).is_cut


@pytest.mark.parametrize(("sessions", "executions", "waiting"), [(1_000, 1, 10), (1, 1_000, 10), (1, 1, 10_000)])
def test_a_turn_of_a_thousand_users_takes_moments(sessions: int, executions: int, waiting: int) -> None:
    asks = [
        Ask(session_id=session, execution_id=of, allowance=Allowance(concurrency=10**6), waiting=waiting)
        for session in range(sessions)
        for of in range(executions)
    ]
    begun = time.process_time()
    dealt = deal(Book(), asks, own=range(sessions), now=START)
    assert time.process_time() - begun < 2.0, "each would be asked about each"
    assert sum(dealt.granted.values()) == PERMITS_PER_TURN_MAX


def test_who_says_nothing_new_is_not_written_again_at_once() -> None:
    world = World(Allowance(concurrency=1), [Caller(1, 1, waiting=2), Caller(1, 2, waiting=1), Caller(2, 3, waiting=1)])
    world.turn()
    before = world.turn().book.seats
    world.now += REFRESH_SECONDS / 2
    assert all(one is two for one, two in zip(before, world.turn().book.seats, strict=True))
    world.now += REFRESH_SECONDS
    assert [seat.heard_at for seat in world.turn({1}).book.seats] == [world.now, world.now, START]
