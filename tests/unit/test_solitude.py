"""What has lost its worker again and again has its last attempt alone: so nobody is given up for what ran beside it."""

from __future__ import annotations

import asyncio

import pytest

from noetl.engine.control.sessions import Sessions
from noetl.engine.placing import loners as module
from noetl.engine.placing.connected import Solitude
from noetl.ports.session import CommandMessage, Stop
from tests.support.aio import asynchronous

KINDS = frozenset({"noop"})


class Worker:
    def __init__(self, session_id: int, slots: int) -> None:
        self.session_id, self.slots = session_id, slots

    def announce(self, message: CommandMessage) -> None: ...

    def withdraw(self, message: CommandMessage) -> None: ...

    def deliver(self, message: CommandMessage) -> None: ...

    def stop(self, stop: Stop) -> None: ...


def of(*slots: int) -> Sessions:
    sessions = Sessions()
    for number, count in enumerate(slots, start=1):
        sessions.connect(Worker(number, count))
    return sessions


def hold(sessions: Sessions, session_id: int | None, name: str) -> None:
    assert session_id is not None
    sessions.deliver(session_id, CommandMessage(1, "t", "o", name, 1, {}))


def alone(sessions: Sessions, name: str = "last#1") -> int | None:
    return sessions.reserve(KINDS, alone=(1, name))


@asynchronous
async def test_an_empty_session_is_given_whole() -> None:
    sessions = of(4)
    hold(sessions, alone(sessions), "last#1")
    assert sessions.reserve(KINDS) is None
    assert not sessions.reserve_of(1)
    assert sessions.pools.free_in("default") == 0
    sessions.finish(1, 1, "last#1", 1)
    assert sessions.pools.free_in("default") == 4
    assert sessions.reserve(KINDS) == 1


@asynchronous
async def test_a_busy_session_gets_nothing_more_until_it_is_empty() -> None:
    sessions = of(4, 4)
    for number in range(5):
        hold(sessions, sessions.reserve(KINDS), f"c{number}#1")
    busier, awaited = sorted((1, 2), key=lambda one: -len(sessions.connected[one].holds))
    assert alone(sessions) is None
    assert set(sessions.loners.waiting("default")) == {(1, "last#1")}
    assert [sessions.reserve(KINDS), sessions.reserve(KINDS)] == [busier, None]
    for execution_id, name in list(sessions.connected[awaited].holds):
        assert alone(sessions) is None
        sessions.finish(awaited, execution_id, name, 1)
    assert sessions.reserve(KINDS) is None
    assert sessions.pools.free_in("default") == 1, "somebody looks into the queue for the one that waits"
    assert alone(sessions) == awaited
    assert set(sessions.loners.waiting("default")) == set()


@asynchronous
async def test_what_cannot_be_alone_in_time_takes_any_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOLITUDE_SECONDS_MAX", 0.01)
    sessions = of(2)
    hold(sessions, sessions.reserve(KINDS), "long#1")
    assert alone(sessions) is None
    while not sessions.pools.free_in("default"):
        assert alone(sessions) is None
        await asyncio.sleep(0.005)
    assert alone(sessions) == 1
    sessions.unreserve(1)
    assert sessions.reserve(KINDS) == 1


@asynchronous
async def test_a_session_that_was_awaited_in_vain_is_soon_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOLITUDE_SECONDS_MAX", 0.01)
    monkeypatch.setattr(module, "RESTING_SECONDS", 0.01)
    sessions = of(2)
    hold(sessions, sessions.reserve(KINDS), "long#1")
    assert alone(sessions) is None
    await asyncio.sleep(0.1)
    assert sessions.pools.free_in("default") == 1
    assert alone(sessions) is None, "the one before has gone; this one waits its own time"


@asynchronous
async def test_behind_one_that_died_alone_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTING_SECONDS", 0.01)
    sessions = of(1, 1)
    first = alone(sessions, "a#1")
    assert first is not None
    sessions.disconnect(first)
    assert alone(sessions, "b#1") is None
    other = sessions.reserve(KINDS)
    assert other is not None
    sessions.unreserve(other)
    sessions.pools.looked_at("default")
    while alone(sessions, "b#1") is None:
        await asyncio.sleep(0.005)
    assert sessions.pools.backlog == {"default"}, "whoever looks at the queue was woken"


@asynchronous
async def test_a_wait_in_one_pool_ends_none_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOLITUDE_SECONDS_MAX", 0.05)
    monkeypatch.setattr(module, "RESTING_SECONDS", 0.05)
    sessions = of(2)
    sessions.connect(Worker(2, 2), pool="other")
    hold(sessions, sessions.reserve(KINDS), "long#1")
    hold(sessions, sessions.reserve(KINDS, pool="other"), "long#2")
    assert alone(sessions) is None
    assert sessions.reserve(KINDS, pool="other", alone=(1, "last#2")) is None
    async with asyncio.timeout(60):
        while sessions.reserve(KINDS) is None:  # what waited is gone, and nobody looked for it again
            await asyncio.sleep(0.005)


@asynchronous
async def test_a_session_that_became_empty_for_nobody_is_like_any_other_at_once() -> None:
    sessions = of(2)
    hold(sessions, sessions.reserve(KINDS), "long#1")
    assert alone(sessions) is None
    assert sessions.loners.first_of("default", ()) is None, "it was cancelled"
    assert sessions.reserve(KINDS) is None, "others may come that wait for it, as long as it is not empty"
    sessions.finish(1, 1, "long#1", 1)
    sessions.pools.looked_at("default")
    assert sessions.loners.first_of("default", ()) is None
    assert sessions.reserve(KINDS) == 1
    assert sessions.pools.backlog == {"default"}, "what waited meanwhile is looked for"


@asynchronous
async def test_behind_one_that_ended_well_the_next_begins_at_once() -> None:
    sessions = of(4)
    for name in ("a#1", "b#1", "c#1"):
        hold(sessions, alone(sessions, name), name)
        assert alone(sessions, "z#1") is None
        sessions.pools.looked_at("default")
        sessions.finish(1, 1, name, 1)
        assert sessions.pools.backlog == {"default"}, "whoever looks at the queue was woken"


@asynchronous
async def test_half_of_the_sessions_stay_for_everybody_else() -> None:
    sessions = of(2, 2, 2, 2)
    hold(sessions, alone(sessions, "a#1"), "a#1")
    hold(sessions, alone(sessions, "b#1"), "b#1")
    assert alone(sessions, "c#1") is None
    assert all(held.solitude is not Solitude.AWAITED for held in sessions.connected.values())
    assert [sessions.reserve(KINDS) for _ in range(5)].count(None) == 1
