"""Room for requests: bounded by count, bytes and age, and never closed to a single one."""

from __future__ import annotations

import pytest

from noetl.core.errors import AppendOverloaded
from noetl.processes.server.load.admission import OTHER, STARTING, Room, sort_of


def test_more_requests_than_there_is_room_for_are_refused_until_one_has_left() -> None:
    room = Room(requests_max=2, bytes_max=1_000)
    tickets = [room.enter(10, now=0.0) for _ in range(2)]
    with pytest.raises(AppendOverloaded):
        room.enter(10, now=0.0)
    room.leave(tickets[0], 10, now=0.0)
    room.enter(10, now=0.0)
    assert (room.requests, room.bytes, room.refused) == (2, 20, 1)


def test_their_bytes_are_bounded_but_a_large_one_alone_may_come() -> None:
    room = Room(requests_max=10, bytes_max=100)
    large = room.enter(500, now=0.0)
    with pytest.raises(AppendOverloaded):
        room.enter(1, now=0.0)
    room.leave(large, 500, now=0.0)
    assert room.bytes == 0
    room.enter(60, now=0.0)
    with pytest.raises(AppendOverloaded):
        room.enter(60, now=0.0)


def test_many_behind_an_old_one_are_a_server_that_stands_still_but_a_few_may_be_large() -> None:
    room = Room(requests_max=100, bytes_max=1_000, age_seconds_max=5.0)
    for _ in range(15):
        room.enter(1, now=0.0)
    room.enter(1, now=7.0)
    with pytest.raises(AppendOverloaded) as refused:
        room.enter(1, now=7.0)
    assert refused.value.retry_after_seconds == 7.0


def test_no_more_are_let_in_than_can_be_served_soon_and_all_again_when_it_is_fast_again() -> None:
    room = Room(requests_max=1_000, bytes_max=1_000, wait_seconds_max=2.0)
    now = served(room, 200, every_seconds=0.1, now=0.0)
    assert let_in(room, now) == pytest.approx(20, abs=2)
    now = served(room, 400, every_seconds=0.001, now=now)
    assert let_in(room, now) == 1_000


def served(room: Room, count: int, *, every_seconds: float, now: float) -> float:
    """Requests that leave one after the other while another one waits."""
    waiting = room.enter(1, now=now)
    for _ in range(count):
        following = room.enter(1, now=now)
        now += every_seconds
        room.leave(waiting, 1, now)
        waiting = following
    room.leave(waiting, 1, now)
    return now


def let_in(room: Room, now: float) -> int:
    """How many of a flood."""
    tickets = []
    try:
        while True:
            tickets.append(room.enter(0, now=now))
    except AppendOverloaded:
        return len(tickets)
    finally:
        for ticket in reversed(tickets[1:]):
            room.leave(ticket, 0, now)
        room.leave(tickets[0], 0, now)


def test_what_starts_work_has_room_of_its_own() -> None:
    assert [sort_of(path) for path in ("/api/executions", "/api/execute", "/api/catalog")] == [STARTING] * 3
    assert [sort_of(path) for path in ("/api/events/batch", "/api/executions/1/cancel")] == [OTHER] * 2
