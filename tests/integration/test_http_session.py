"""A worker's session over HTTP against the real routes, with a network between them that loses things."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.adapters.memory.queue import MemoryQueue
from noetl.adapters.session import http_stream_facts
from noetl.adapters.session.http_stream import HttpSession, WorkerProfile
from noetl.adapters.session.http_stream_link import Refused, ServerLink, ServerPlace
from noetl.adapters.system.clock import SystemClock
from noetl.core import kinds
from noetl.core.codec import sha256_hex
from noetl.core.errors import EnvelopeInvalid, ExecutionClosed, LeaseLost, LedgerUnavailable, NoetlError
from noetl.core.reference import Result
from noetl.engine.control.sessions import Sessions
from noetl.engine.payloads import Payloads
from noetl.engine.sessions.keeper import Keeper
from noetl.ports.session import ClaimWithdrawn, CommandMessage, Fact, Stop
from noetl.processes.server import problems
from noetl.processes.server.auth import Doorkeeper, Tokens
from noetl.processes.server.load.admission import OTHER, Admission
from noetl.processes.server.owners import Owner
from noetl.processes.server.parts import WorkParts
from noetl.processes.server.routes import sessions as routes
from noetl.processes.server.routing import WORKER, install
from noetl.processes.server.tokens import Grant
from tests.support.aio import asynchronous

TOKEN = "a token of sixteen characters"
LEASE = 3.0


@dataclass
class Control:
    """A control plane that writes down what it is told, and refuses what it was told to refuse."""

    told: list[Fact] = field(default_factory=list)
    refusals: dict[str, NoetlError] = field(default_factory=dict)
    seconds: float = 0.01
    together: list[int] = field(default_factory=list)
    _turn: list[Fact] = field(default_factory=list)

    async def report(self, session_id: int, fact: Fact) -> None:
        self._turn.append(fact)
        if len(self._turn) == 1:
            asyncio.get_running_loop().call_soon(self._end_turn)
        await asyncio.sleep(self.seconds)
        if fact.command_id in self.refusals:
            raise self.refusals[fact.command_id]
        self.told.append(fact)

    def _end_turn(self) -> None:
        self.together.append(len(self._turn))
        self._turn.clear()


@dataclass
class Network:
    """Between a worker and its server.  `is_deaf` swallows answers, `is_cut` everything."""

    target: int
    port: int = 0
    is_deaf: bool = False
    is_cut: bool = False
    connections: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        self.connections |= {writer, back}
        try:
            await asyncio.gather(self._pump(reader, back, lambda: self.is_cut), self._pump(there, writer, self._mute))
        finally:
            for one in (writer, back):
                self.connections.discard(one)
                one.close()

    def _mute(self) -> bool:
        return self.is_cut or self.is_deaf

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_lost: Callable[[], bool]
    ) -> None:
        try:
            while data := await source.read(65_536):
                if is_lost():
                    break
                sink.write(data)
                await sink.drain()
        except OSError:
            return
        finally:
            sink.close()

    def break_connections(self) -> None:
        for one in list(self.connections):
            one.close()


@dataclass
class Scene:
    control: Control
    sessions: Sessions
    keeper: Keeper
    network: Network
    worker: HttpSession
    admission: Admission
    ids: Any = field(default_factory=lambda: itertools.count(1))

    def command(self, name: str, *, attempt: int = 1) -> CommandMessage:
        """A claimed command, delivered to whatever session has a slot."""
        session_id = self.sessions.reserve()
        assert session_id is not None, "no session has a free slot"
        message = CommandMessage(
            execution_id=10**18,
            tenant_id="t",
            organization_id="o",
            command_id=name,
            attempt=attempt,
            body={"step": name},
        )
        self.sessions.deliver(session_id, message)
        return message

    async def registered(self, *, but: int | None = None) -> int:
        async with asyncio.timeout(60):
            while True:
                found = [session for session in self.sessions.connected if session != but]
                if found:
                    return found[0]
                await asyncio.sleep(0.01)


@asynccontextmanager
async def scene(*, slots: int = 100, token: str = TOKEN) -> AsyncIterator[Scene]:
    control, sessions, virtual = Control(), Sessions(), VirtualClock()
    queue = MemoryQueue(MemoryDatabase(clock=virtual, shard_count=1))
    keeper = Keeper(
        control=control,
        sessions=sessions,
        queue=queue,
        ids=VirtualIds(virtual),
        clock=SystemClock(),
        lease_seconds=LEASE,
    )
    app = FastAPI()
    problems.install(app)
    work = WorkParts.__new__(WorkParts)
    payloads = Payloads(small=MemoryPayloads({}), large=MemoryPayloads({}))
    for name, value in {"keeper": keeper, "queue": queue, "payloads": payloads}.items():
        object.__setattr__(work, name, value)
    install(app, routes.router(work).routes, WORKER)
    tokens = Tokens([Grant(sha256=sha256_hex(TOKEN.encode()), scopes=frozenset({WORKER}))])
    admission = Admission(app)
    door = Doorkeeper(
        admission, identify=lambda sent: tokens.identity(sent or b""), owner=Owner("t", "o"), open_paths=frozenset()
    )
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(door, log_config=None, lifespan="off", ws="none"))
        network = Network(listening.getsockname()[1])
        between = await asyncio.start_server(network.serve, "127.0.0.1", 0)
        network.port = between.sockets[0].getsockname()[1]
        others = [asyncio.ensure_future(server.serve(sockets=[listening])), asyncio.ensure_future(keeper.run())]
        try:
            async with ServerLink(ServerPlace(f"http://127.0.0.1:{network.port}", token)) as link:
                profile = WorkerProfile(worker_id="w", slots=slots, pool="default", kinds=None, place={})
                worker = HttpSession(link, profile)
                async with asyncio.TaskGroup() as group:
                    running = group.create_task(worker.run())
                    yield Scene(control, sessions, keeper, network, worker, admission)
                    running.cancel()
        finally:
            network.is_cut = True
            network.break_connections()
            between.close()
            await between.wait_closed()
            server.should_exit = server.force_exit = True
            others[1].cancel()
            await asyncio.wait(others)


def done(message: CommandMessage, **fields: Any) -> Fact:
    return Fact(
        execution_id=message.execution_id,
        command_id=message.command_id,
        attempt=message.attempt,
        event_type=kinds.COMMAND_COMPLETED,
        result=Result(status="ok").to_json(),
        **fields,
    )


@asynchronous
async def test_facts_that_come_meanwhile_travel_together_and_each_has_its_own_answer() -> None:
    async with scene() as s:
        await s.registered()
        sent = [s.command(f"c{n}#1") for n in range(50)]
        taken = [await s.worker.next_command() for _ in sent]
        assert taken == sent
        s.control.refusals = {"c7#1": ExecutionClosed("over"), "c9#1": EnvelopeInvalid("no")}
        outcomes = await asyncio.gather(*(s.worker.report(done(message)) for message in taken), return_exceptions=True)
        refused = {n: type(outcome) for n, outcome in enumerate(outcomes) if outcome is not None}
        assert refused == {7: ExecutionClosed, 9: EnvelopeInvalid}
        assert len(s.control.told) == 48
        assert len(s.control.together) <= 4, s.control.together


@asynchronous
async def test_an_answer_that_is_lost_costs_a_repetition_and_nothing_else() -> None:
    async with scene() as s:
        await s.registered()
        s.command("c#1")
        message = await s.worker.next_command()
        s.network.is_deaf = True
        reporting = asyncio.ensure_future(s.worker.report(done(message)))
        while not s.control.told:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        s.network.is_deaf = False
        s.network.break_connections()
        await reporting
        assert [fact.command_id for fact in s.control.told] == ["c#1"]


@asynchronous
async def test_a_broken_stream_is_opened_again_and_nothing_comes_twice() -> None:
    async with scene() as s:
        first = await s.registered()
        s.command("a#1")
        a = await s.worker.next_command()
        s.network.break_connections()
        s.command("b#1")
        b = await s.worker.next_command()
        assert [a.command_id, b.command_id] == ["a#1", "b#1"]
        s.sessions.stop(Stop(a.execution_id, "a#1", 1))
        assert await s.worker.next_stop() == Stop(a.execution_id, "a#1", 1)
        for message in (a, b):
            await s.worker.report(done(message))
        assert list(s.sessions.connected) == [first]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await s.worker.next_command()


@asynchronous
async def test_a_worker_that_is_not_heard_lets_go_and_comes_back_with_a_new_session() -> None:
    async with scene() as s:
        first = await s.registered()
        s.command("a#1")
        s.command("b#1")
        a, b = await s.worker.next_command(), await s.worker.next_command()
        await s.worker.confirmed(a)
        s.network.is_cut = True
        s.network.break_connections()
        late = asyncio.ensure_future(s.worker.report(done(a)))
        stops = [await s.worker.next_stop(), await s.worker.next_stop()]
        assert {stop.command_id for stop in stops} == {"a#1", "b#1"}
        with pytest.raises(LeaseLost):
            await late
        with pytest.raises(ClaimWithdrawn):
            await s.worker.confirmed(b)
        with pytest.raises(LeaseLost):
            await s.worker.report(done(b))
        s.network.is_cut = False
        assert await s.registered(but=first) != first
        assert first not in s.sessions.connected
        again = s.command("b#1", attempt=2)
        assert await s.worker.next_command() == again
        await s.worker.report(done(again))
        assert [(fact.command_id, fact.attempt) for fact in s.control.told] == [("b#1", 2)]


@asynchronous
async def test_a_session_that_the_server_ended_is_left_at_once() -> None:
    async with scene() as s:
        first = await s.registered()
        s.command("a#1")
        a = await s.worker.next_command()
        s.keeper.end(first)
        assert (await s.worker.next_stop()).command_id == "a#1"
        with pytest.raises(LeaseLost):
            await s.worker.report(done(a))
        assert await s.registered(but=first) != first


@asynchronous
async def test_what_has_no_json_is_refused_here_and_the_command_is_still_held() -> None:
    async with scene() as s:
        await s.registered()
        s.command("a#1")
        a = await s.worker.next_command()
        for value in (float("nan"), "\ud800"):
            with pytest.raises(EnvelopeInvalid):
                await s.worker.report(done(a, meta={"x": value}))
        await s.worker.report(done(a, meta={"x": 10**40}))
        assert s.control.told[0].meta == {"x": 10**40}


@asynchronous
async def test_a_drain_takes_nothing_more_and_waits_for_what_is_held() -> None:
    async with scene() as s:
        session_id = await s.registered()
        s.command("a#1")
        a = await s.worker.next_command()
        draining = asyncio.ensure_future(s.worker.drain(10))
        while s.sessions.reserve() is not None:
            await asyncio.sleep(0.01)
        assert not draining.done()
        await s.worker.report(done(a))
        assert await draining
        assert session_id in s.sessions.connected
        await s.worker.leave()
        assert session_id not in s.sessions.connected


@asynchronous
async def test_a_drain_ends_when_its_time_is_up() -> None:
    async with scene() as s:
        await s.registered()
        s.command("a#1")
        await s.worker.next_command()
        assert not await s.worker.drain(0.1)
        await s.worker.leave()
        assert s.sessions.connected == {}


@asynchronous
async def test_a_wrong_token_ends_a_worker_that_never_had_a_session() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with scene(token="another token that is wrong") as s:
            await s.registered()
    found = caught.value
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]  # type: ignore[assignment]
    assert isinstance(found, Refused)
    assert "unauthorized" in str(found)


@asynchronous
async def test_a_worker_whose_facts_are_refused_for_now_takes_half_and_says_them_again() -> None:
    async with scene(slots=4) as s:
        session_id = await s.registered()
        sent = [s.command(f"c{n}#1") for n in range(3)]
        for _ in sent:
            await s.worker.next_command()
        room = s.admission.rooms[OTHER]
        usual, room.requests_max = room.requests_max, 1
        ticket = room.enter(0, now=0.0)
        reporting = asyncio.ensure_future(s.worker.report(done(sent[0])))
        await until(lambda: s.sessions.connected[session_id].slots == 2)
        assert not reporting.done()
        assert s.sessions.reserve() is None, "it holds more than it wants now"
        assert dict(concurrency(s.worker)) == {"noetl_worker_concurrency": 2, "noetl_worker_slowed_total": 1}
        room.requests_max = usual
        room.leave(ticket, 0, now=0.0)
        await reporting
        assert [fact.command_id for fact in s.control.told] == ["c0#1"]
        assert await s.registered() == session_id, "load is no reason to lose a session"
        await until(lambda: s.sessions.connected[session_id].slots == 4)


@asynchronous
async def test_slow_commits_halve_the_slots_once_for_all_that_was_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_stream_facts, "SLOW_SECONDS", 0.05)
    async with scene(slots=8) as s:
        session_id = await s.registered()
        sent = [s.command(f"c{n}#1") for n in range(8)]
        for _ in sent:
            await s.worker.next_command()
        s.control.seconds = 0.1
        await asyncio.gather(*(s.worker.report(done(message)) for message in sent))
        assert dict(concurrency(s.worker))["noetl_worker_slowed_total"] == 1
        await until(lambda: s.sessions.connected[session_id].slots == 4)


@asynchronous
async def test_a_fact_that_is_refused_for_now_is_told_again_until_it_is_recorded() -> None:
    async with scene() as s:
        await s.registered()
        one, two = s.command("one#1"), s.command("two#1")
        for _ in range(2):
            await s.worker.next_command()
        s.control.refusals = {"one#1": LedgerUnavailable("away")}
        reporting = [asyncio.ensure_future(s.worker.report(done(message))) for message in (one, two)]
        await reporting[1]
        await asyncio.sleep(0.1)
        assert not reporting[0].done()
        s.control.refusals.clear()
        await reporting[0]
        assert sorted(fact.command_id for fact in s.control.told) == ["one#1", "two#1"]


def concurrency(worker: HttpSession) -> list[tuple[str, float]]:
    return [(name, value) for name, _, value in worker.samples()]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)
