"""A whole run: clients that start random playbooks, a process that runs them, dies and is started again."""

from __future__ import annotations

import asyncio
import functools
import random
from dataclasses import dataclass, replace
from unittest import mock

from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.payloads import Contents, MemoryPayloads
from noetl.core.errors import LedgerUnavailable
from noetl.core.execution.state import ExecutionState, StepResult
from noetl.core.playbook.compile import compile_playbook
from noetl.core.reference import MEDIA_LOOP
from noetl.engine import playbooks
from noetl.engine.control import decider
from noetl.engine.executions import StartRequest
from noetl.engine.payloads import Payloads
from noetl.engine.results import read_result
from tests.simulation.checks import Checker, check_cache, check_end, digest_of, events_of, folded, require
from tests.simulation.faults import SeededFaults, Weather
from tests.simulation.life import Life
from tests.simulation.loop import run_simulated
from tests.simulation.playbooks import PAYLOAD, PlaybookMaker

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
HOURS_MAX = 12
FAIR = Weather(seconds_max=0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a seed chooses besides its playbooks."""

    shards: int
    slots: int
    batch_inputs_max: int
    weather: Weather
    loops: float | None = None


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
        ),
    )


@functools.lru_cache(maxsize=4)
def playbooks_of(seed: int, loops: float | None = None) -> list[str]:
    chance = random.Random(f"playbooks {seed}")
    return [PlaybookMaker(chance, loops=loops).text() for _ in range(chance.choice((1, 1, 2, 3)))]


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
        self.checker = Checker()
        self.database.observers.append(self.checker.observe)
        self.faults = SeededFaults(self.chance, setting.weather, crash=self._crash)
        self.playbooks = playbooks_of(seed, setting.loops)
        self.shelf: dict[str, str] = {}
        self.started: dict[int, int] = {}
        self.lives = 0
        self._large: Contents = {}
        self._life: Life | None = None
        self._crashed = asyncio.Event()

    def _crash(self) -> None:
        self._crashed.set()

    # --- the story ---------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        async with asyncio.timeout(HOURS_MAX * 3600):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_alive())
                for number in range(len(self.playbooks)):
                    group.create_task(self._client(number))
        check_end(self.database)
        self.checker.loops.check_end()
        return Outcome(
            results=[await self._result(self.started[number]) for number in range(len(self.playbooks))],
            digest=digest_of(self.database),
            events=sum(map(len, self.database.tables.shards.values())),
            lives=self.lives,
            seen={**self.faults.seen, **self.checker.loops.marks, **self.checker.marks},
        )

    async def _keep_alive(self) -> None:
        """Start the process again whenever it has died, until there is nothing left to do."""
        while not self._is_over():
            self.lives += 1
            self._crashed.clear()
            self._life = life = Life(
                database=self.database,
                large=self._large,
                clock=self.clock,
                faults=self.faults,
                chance=self.chance,
                weather=self.setting.weather,
                slots=self.setting.slots,
            )
            life.tool.loops = self.checker.loops
            life.shelf.texts.update(self.shelf)
            process = asyncio.ensure_future(life.run())
            await self._until_death(process)
            if self._is_over() and not process.done():
                await self._settle(life)
            process.cancel()
            await asyncio.wait([process])
            _raise_defect(process, is_starting=not life.is_open.is_set())
            check_cache(self.database, life.states)
            if self.chance.random() < self.setting.weather.drop_derived and not self._is_over():
                self.database.tables.drop_derived()
            await asyncio.sleep(self.chance.random())

    async def _until_death(self, process: asyncio.Future[None]) -> None:
        crashed = asyncio.ensure_future(self._crashed.wait())
        while not (self._crashed.is_set() or process.done() or self._is_over()):
            await asyncio.wait((process, crashed), timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        crashed.cancel()

    async def _settle(self, life: Life) -> None:
        """When everything has ended well, every slot is free again."""
        self.faults.is_active = False
        await asyncio.sleep(60)
        if not self._crashed.is_set():
            require(life.sessions.free_slots == self.setting.slots, f"{life.sessions.free_slots} slots are free")

    def _is_over(self) -> bool:
        if len(self.started) < len(self.playbooks):
            return False
        tables = self.database.tables
        return all(tables.streams[e].closed for e in self.started.values()) and not tables.commands

    async def _client(self, number: int) -> None:
        """Start one execution; after an unknown outcome ask again with the same key."""
        await asyncio.sleep(self.chance.random() * 3)
        request = StartRequest(
            text=self.playbooks[number],
            file="simulated.yaml",
            payload={"number": number, **PAYLOAD},
            idempotency_key=f"request {number}",
            **OWNER,
        )
        while number not in self.started:
            life = self._life
            if life is None or not life.is_open.is_set() or self._crashed.is_set():
                await asyncio.sleep(0.25)
                continue
            asked = asyncio.ensure_future(life.service.start(request))
            while not asked.done() and self._life is life and not self._crashed.is_set():
                await asyncio.sleep(0.25)
            if not asked.done():
                asked.cancel()
                await asyncio.wait([asked])
            if not asked.cancelled():
                if asked.exception() is None:
                    self.started[number] = asked.result().execution_id
                else:
                    require(isinstance(asked.exception(), LedgerUnavailable), f"start: {asked.exception()!r}")

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
        return result.run, result.status, await read_result(self._readable(), reference, **owner)

    def _readable(self) -> Payloads:
        return Payloads(small=MemoryPayloads(self.database.tables.payloads), large=MemoryPayloads(self._large))


def _raise_defect(process: asyncio.Future[None], *, is_starting: bool) -> None:
    """A process that cannot reach the database may fail to start; once it runs, nothing may end it."""
    error = None if process.cancelled() else process.exception()
    if error is not None and not (is_starting and all(isinstance(e, LedgerUnavailable) for e in _leaves(error))):
        raise error


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def simulate(seed: int, setting: Setting | None = None, database: type[MemoryDatabase] = MemoryDatabase) -> Outcome:
    """One run.  Without a setting, that of the seed."""
    chosen = setting or setting_of(seed)
    world = World(seed, chosen, database)
    batches = mock.patch.object(decider, "BATCH_INPUTS_MAX", chosen.batch_inputs_max)
    with batches, mock.patch.object(playbooks, "compile_playbook", compiled):
        return run_simulated(world.run(), world.clock, random.Random(f"loop {seed}"))


def simulate_fair(seed: int, setting: Setting | None = None) -> Outcome:
    """The same playbooks on a day when nothing goes wrong."""
    return simulate(seed, replace(setting or setting_of(seed), batch_inputs_max=128, weather=FAIR))
