"""A whole run: clients that start random playbooks, a process that runs them, dies and is started again."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from unittest import mock

from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.payloads import Contents, MemoryPayloads
from noetl.core.errors import LeaseLost, LedgerUnavailable
from noetl.core.execution.state import ExecutionState, StepResult
from noetl.core.playbook.compile import compile_playbook
from noetl.core.reference import MEDIA_LOOP
from noetl.engine import playbooks
from noetl.engine.control import decider, states
from noetl.engine.executions import StartRequest
from noetl.engine.payloads import Payloads
from noetl.engine.results import read_result
from tests.simulation.checker import Checker
from tests.simulation.checks import check_cache, check_end, digest_of, events_of, folded, is_projected, require
from tests.simulation.clocks import SkewedClock
from tests.simulation.faults import SeededFaults, Weather
from tests.simulation.life import Life
from tests.simulation.loop import PROCESS, begin, run_simulated, the_loop
from tests.simulation.playbooks import PAYLOAD, PlaybookMaker
from tests.simulation.side import Surroundings, Tuning

T = TypeVar("T")
OWNER = {"tenant_id": "acme", "organization_id": "sales"}
HOURS_MAX = 12
FAIR = Weather(seconds_max=0.02)
QUIET = Tuning(poll_seconds=10.0, heartbeat_seconds=5.0, lease_seconds=15.0, checkpoint_seconds=1_000.0)
SETTLE_SECONDS = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a seed chooses besides its playbooks."""

    shards: int
    slots: int
    batch_inputs_max: int
    weather: Weather
    loops: float | None = None
    tuning: Tuning = field(default_factory=Tuning)


def tuning_of(chance: random.Random) -> Tuning:
    """Worse than anybody would set it: leases of two heartbeats, batches of one, a snapshot every third event."""
    lease_seconds = chance.choice((2.0, 6.0))
    return Tuning(
        lease_seconds=lease_seconds,
        heartbeat_seconds=lease_seconds / chance.choice((2, 3)),
        window_seconds=chance.choice((0.0, 0.1)),
        poll_seconds=chance.choice((0.5, 2.0)),
        batch_events=chance.choice((1, 3, 500)),
        checkpoint_seconds=chance.choice((0.5, 5.0)),
        snapshot_events=chance.choice((3, 10, 1_000)),
        first_page_events=chance.choice((2, 7, 500)),
    )


def setting_of(seed: int) -> Setting:
    chance = random.Random(f"setting {seed}")
    return Setting(
        shards=chance.choice((1, 2, 5)),
        slots=chance.choice((1, 2, 8)),
        batch_inputs_max=chance.choice((1, 2, 128)),
        weather=Weather(
            seconds_max=chance.choice((0.0, 0.05, 1.0)),
            trouble=chance.choice((0.0, 0.02, 0.1)),
            crash=chance.choice((0.0, 0.01, 0.05)),
            crashes_max=chance.randint(0, 5),
            duplicate=chance.choice((0.0, 0.3)),
            drop_derived=chance.choice((0.0, 0.5)),
            stop=chance.choice((0.0, 0.5)),
            skew_seconds_max=chance.choice((0.0, 2.0, 600.0)),
        ),
        tuning=tuning_of(chance),
    )


@functools.lru_cache(maxsize=4)
def playbooks_of(seed: int, loops: float | None = None) -> list[str]:
    chance = random.Random(f"playbooks {seed}")
    return [PlaybookMaker(chance, loops=loops).text() for _ in range(chance.choice((1, 1, 1, 2)))]


# Compiling is pure, and every life of every run would do it again.
compiled = functools.lru_cache(maxsize=64)(compile_playbook)


@dataclass(slots=True)
class Outcome:
    """What a run left behind."""

    results: list[dict[str, object]]
    digest: str
    events: int
    lives: int
    seen: dict[str, int]


class World:
    def __init__(self, seed: int, setting: Setting, database: type[MemoryDatabase] = MemoryDatabase) -> None:
        self.setting = setting
        self.clock = VirtualClock()
        self.chance = random.Random(f"run {seed}")
        self.database = database(clock=self.clock, shard_count=setting.shards)
        self._large: Contents = {}
        self.checker = Checker()
        self.checker.watch(self.database, self._large)
        self.faults = SeededFaults(self.chance, setting.weather, crash=self._crash)
        self.playbooks = playbooks_of(seed, setting.loops)
        self.shelf: dict[str, str] = {}
        self.started: dict[int, int] = {}
        self.lives = 0
        self._life: Life | None = None
        self._dead: list[asyncio.Task[None]] = []
        self._crashed = asyncio.Event()

    def _crash(self) -> None:
        """Whoever runs now does not go on."""
        life = PROCESS.get()
        the_loop().stop_process(life)
        if life is self._life:
            self._crashed.set()

    # --- the story ---------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        async with asyncio.timeout(HOURS_MAX * 3600):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_alive())
                if self.setting.weather.locks:
                    group.create_task(self._intrude())
                for number in range(len(self.playbooks)):
                    group.create_task(self._client(number))
        await asyncio.gather(*self._dead)
        check_end(self.database, is_shown=True)
        self.checker.check_end()
        self.checker.loops.check_end()
        return Outcome(
            results=[await self._result(self.started[number]) for number in range(len(self.playbooks))],
            digest=digest_of(self.database),
            events=sum(map(len, self.database.tables.shards.values())),
            lives=self.lives,
            seen={**self.faults.seen, **self.checker.loops.marks, **self.checker.marks},
        )

    async def _intrude(self) -> None:
        """Somebody outside locks a shard, and another one: whoever has work in it waits, and nobody else."""
        for _ in range(self.setting.weather.locks):
            await asyncio.sleep(self.chance.random() * 3)
            self.database.tables.locked = frozenset((self.chance.randrange(self.setting.shards),))
            await asyncio.sleep(self.chance.random() * 6)
            self.database.tables.locked = frozenset()

    async def _keep_alive(self) -> None:
        """Start the process again whenever it has died, until there is nothing left to do."""
        while not self._is_over():
            self.lives += 1
            self._crashed.clear()
            self._life = life = self._new_life()
            process = begin(life, life.run())
            await self._until_death(process)
            if self._is_over() and not (process.done() or self._crashed.is_set()):
                await self._settle(life)
            if process.done():
                _raise_defect(process, is_starting=not life.is_open.is_set())
            check_cache(self.database, life.states)
            # One that did not come so far as to own its shards would take them again: it is not known to anybody.
            if self._crashed.is_set() and life.is_open.is_set() and self.chance.random() < self.setting.weather.stop:
                self._dead.append(begin(None, self._raise_dead(life, process)))
            if self.chance.random() < self.setting.weather.drop_derived and not self._is_over():
                self.database.tables.drop_derived()
            await asyncio.sleep(self.chance.random())

    def _new_life(self) -> Life:
        weather = self.setting.weather
        life = Life(
            Surroundings(
                database=self.database,
                faults=self.faults,
                clock=SkewedClock(self.clock, self.chance, seconds_max=weather.skew_seconds_max),
                tuning=self.setting.tuning,
            ),
            large=self._large,
            chance=self.chance,
            weather=weather,
            slots=self.setting.slots,
            number=self.lives,
        )
        life.tool.loops = self.checker.loops
        life.shelf.texts.update(self.shelf)
        return life

    async def _raise_dead(self, life: Life, process: asyncio.Future[None]) -> None:
        """It only stood still, and goes on where another one has its work: all that it writes must be refused."""
        await asyncio.sleep(self.chance.random() * 20)
        self.faults.seen["zombies"] += 1
        # It does not know that its rows are somebody else's, and may run them again: only their outcome is fenced.
        life.tool.loops = None
        the_loop().continue_process(life)
        await asyncio.wait([process], timeout=self.chance.random() * 30)
        if process.done():
            error = process.exception()
            only_lost = error is None or all(isinstance(e, LeaseLost | LedgerUnavailable) for e in leaves(error))
            require(only_lost, f"a process that came back ended with {error!r}")
        the_loop().stop_process(life)

    async def _until_death(self, process: asyncio.Future[None]) -> None:
        crashed = asyncio.ensure_future(self._crashed.wait())
        while not (self._crashed.is_set() or process.done() or self._is_over()):
            await asyncio.wait((process, crashed), timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        crashed.cancel()

    async def _settle(self, life: Life) -> None:
        """When everything has ended well, every slot is free again."""
        self.faults.is_active = False
        await asyncio.sleep(SETTLE_SECONDS)
        require(life.sessions.free_slots == self.setting.slots, f"{life.sessions.free_slots} slots are free")
        the_loop().stop_process(life)

    def _is_over(self) -> bool:
        if len(self.started) < len(self.playbooks):
            return False
        tables = self.database.tables
        is_closed = all(tables.streams[e].closed for e in self.started.values())
        return is_closed and not tables.commands and is_projected(self.database)

    def _request(self, number: int) -> StartRequest:
        return StartRequest(
            text=self.playbooks[number],
            file="simulated.yaml",
            payload={"number": number, **PAYLOAD},
            idempotency_key=f"request {number}",
            **OWNER,
        )

    async def _client(self, number: int) -> None:
        """Start one execution; after an unknown outcome ask again with the same key."""
        await asyncio.sleep(self.chance.random() * 3)
        request = self._request(number)
        while number not in self.started:
            life = self._life
            if life is None or not life.is_open.is_set() or self._crashed.is_set():
                await asyncio.sleep(0.25)
                continue
            asked = await self._asked(life, life.service.start(request))
            if asked is None:
                continue
            if asked.exception() is None:
                self.started[number] = asked.result().execution_id
            else:
                require(isinstance(asked.exception(), LedgerUnavailable), f"start: {asked.exception()!r}")

    async def _asked(self, life: Life, question: Coroutine[Any, Any, T]) -> asyncio.Future[T] | None:
        """What a process answered; None when it has died over it."""
        asked = begin(life, question)
        while not asked.done() and self._life is life and not self._crashed.is_set():
            await asyncio.wait([asked], timeout=0.25)
        return asked if asked.done() else None

    async def _result(self, execution_id: int) -> dict[str, object]:
        """Everything about an execution that must not depend on what went wrong."""
        state = folded(events_of(self.database, execution_id))
        outcome: dict[str, object] = {"status": str(state.status), "failure": state.failure}
        if state.failure is None:
            outcome |= {
                "variables": {name: entry.to_json() for name, entry in state.variables.items()},
                "steps": {name: await self._step(state, result) for name, result in state.step_results.items()},
                "runs": dict(state.runs),
                "skipped": dict(state.skipped_steps),
                "last_step": state.last_step,
                "result": None if state.result is None else state.result["context"],
            }
        return outcome

    async def _step(self, state: ExecutionState, result: StepResult) -> tuple[object, ...]:
        """A step's result by its digest.  That of a loop is read: how its rows were cut into frames is nobody's
        business.  Which rows of a torn loop had run is a matter of luck."""
        reference = result.reference
        if reference is None or reference["media_type"] != MEDIA_LOOP:
            return result.run, result.status, reference and reference["sha256"]
        if result.status == "error":
            return result.run, result.status, result.error
        owner = {"tenant_id": state.tenant_id, "organization_id": state.organization_id}
        found = await read_result(self._readable(), reference, **owner)
        assert isinstance(found, dict)
        # Its dead letter names frames and attempts.
        return result.run, result.status, {name: value for name, value in found.items() if name != "dead_letter"}

    def _readable(self) -> Payloads:
        return Payloads(small=MemoryPayloads(self.database.tables.payloads), large=MemoryPayloads(self._large))


def _raise_defect(process: asyncio.Future[None], *, is_starting: bool) -> None:
    """A process that cannot reach the database may fail to start; once it runs, nothing may end it."""
    error = None if process.cancelled() else process.exception()
    if error is not None and not (is_starting and all(isinstance(e, LedgerUnavailable) for e in leaves(error))):
        raise error


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


@contextmanager
def set_up(setting: Setting) -> Iterator[None]:
    """What is a constant of the product and a setting here."""
    with (
        mock.patch.object(decider, "BATCH_INPUTS_MAX", setting.batch_inputs_max),
        mock.patch.object(states, "FIRST_PAGE_EVENTS", setting.tuning.first_page_events),
        mock.patch.object(playbooks, "compile_playbook", compiled),
    ):
        yield


def simulate(seed: int, setting: Setting | None = None, database: type[MemoryDatabase] = MemoryDatabase) -> Outcome:
    """One run.  Without a setting, that of the seed."""
    chosen = setting or setting_of(seed)
    world = World(seed, chosen, database)
    with set_up(chosen):
        return run_simulated(world.run(), world.clock, random.Random(f"loop {seed}"))


def simulate_fair(seed: int, setting: Setting | None = None) -> Outcome:
    """The same playbooks on a day when nothing goes wrong."""
    return simulate(seed, replace(setting or setting_of(seed), batch_inputs_max=128, weather=FAIR, tuning=QUIET))
