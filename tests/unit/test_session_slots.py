"""A session that wants less than it registered gets less, keeps what it holds, and gets its slots back."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import ValidationError

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.queue import MemoryQueue
from noetl.core.errors import EnvelopeInvalid, LeaseLost
from noetl.engine.control.sessions import Sessions
from noetl.engine.sessions.keeper import Keeper, SessionBooks, Told
from noetl.engine.sessions.remote import Profile, RemoteSession
from noetl.ports.serving.roster import SessionRow
from noetl.ports.session import CommandMessage, Fact
from noetl.processes.server.models import SessionBody
from noetl.processes.server.wire import session_id_of
from tests.support.aio import asynchronous


class Nobody:
    async def report(self, session_id: int, fact: Fact) -> None: ...


def connected(slots: int, books: SessionBooks | None = None) -> tuple[Sessions, Keeper, RemoteSession]:
    clock, sessions = VirtualClock(), Sessions()
    keeper = Keeper(
        control=Nobody(),
        sessions=sessions,
        queue=MemoryQueue(MemoryDatabase(clock=clock, shard_count=1)),
        ids=VirtualIds(clock),
        clock=clock,
        lease_seconds=3.0,
        books=books,
    )
    return sessions, keeper, keeper.register(Profile(worker_id="w", slots=slots))


def take(sessions: Sessions, number: int) -> bool:
    session_id = sessions.reserve()
    if session_id is not None:
        sessions.deliver(session_id, CommandMessage(1, "t", "o", f"c{number}#1", 1, {}))
    return session_id is not None


def test_nothing_more_comes_until_less_is_held_than_wanted() -> None:
    sessions, keeper, session = connected(4)
    assert [take(sessions, number) for number in range(3)] == [True] * 3
    keeper.beat(session.session_id, slots=2)
    assert not take(sessions, 3)
    sessions.finish(session.session_id, 1, "c0#1", 1)
    assert not take(sessions, 3), "it holds two, and wants two"
    sessions.finish(session.session_id, 1, "c1#1", 1)
    assert take(sessions, 3)
    assert not take(sessions, 4)


def test_slots_that_come_back_wake_whoever_waits_for_them() -> None:
    sessions, keeper, session = connected(4)
    keeper.beat(session.session_id, slots=0)
    sessions.pools.looked_at("default")
    sessions.pools.changed.clear()
    assert sessions.free_slots == 0
    keeper.beat(session.session_id, slots=3)
    assert sessions.free_slots == 3
    assert sessions.pools.changed.is_set()
    assert sessions.pools.claimable() == ["default"]


def test_a_heartbeat_cannot_take_more_than_was_registered_and_may_say_nothing() -> None:
    sessions, keeper, session = connected(4)
    keeper.beat(session.session_id, slots=1_000)
    keeper.beat(session.session_id)
    assert sessions.free_slots == 4


@pytest.mark.parametrize("broken", [{"worker_id": "w\0"}, {"pool": "\0"}, {"kinds": ["noop", "a\0b"]}])
def test_a_worker_with_a_name_that_no_database_takes_cannot_register(broken: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SessionBody.model_validate({"worker_id": "w", "slots": 1, **broken})


@pytest.mark.parametrize("text", ["9999999999999999999", str(2**63), "", "-1", "x"])
def test_what_cannot_be_a_session_never_was_one(text: str) -> None:
    with pytest.raises(LeaseLost):
        session_id_of(text)


class SlowBooks:
    """Others know of a session when the gate opens, not before."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def add(self, row: SessionRow) -> None:
        await self.gate.wait()

    async def end(self, session_id: int, *, worker_id: str | None = None) -> int:
        return 0


@asynchronous
async def test_a_request_can_wait_until_the_session_may_be_given_something() -> None:
    books = SlowBooks()
    sessions, keeper, session = connected(4, books)
    watch = asyncio.ensure_future(keeper.run())
    asking = asyncio.ensure_future(session.introduced.wait())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not asking.done()
    assert not sessions.reserve_of(session.session_id)
    books.gate.set()
    await asking
    assert sessions.reserve_of(session.session_id)
    watch.cancel()


def test_nobody_waits_for_a_session_that_has_ended() -> None:
    _, keeper, session = connected(4, SlowBooks())
    keeper.end(session.session_id)
    assert session.introduced.is_set()


@asynchronous
async def test_what_comes_of_a_lost_lease_is_counted_as_late_wherever_it_is_refused() -> None:
    sessions, keeper, session = connected(1)
    counts = keeper.counts
    assert take(sessions, 0)
    held, stale = (Told(None, Fact(1, "c0#1", attempt, "command.completed")) for attempt in (1, 2))
    assert [type(one) for one in await keeper.report(session, [stale])] == [LeaseLost]
    assert counts.late == 1
    keeper.end(session.session_id)
    assert [type(one) for one in await keeper.report(session, [held])] == [LeaseLost]
    with pytest.raises(LeaseLost):
        keeper.teller(session.session_id, facts=3)
    assert counts.late == 5
    keeper.count_late(EnvelopeInvalid("it cannot be read"))
    assert counts.late == 5
