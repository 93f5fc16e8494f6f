"""One life of a process: the engine over the memory adapters, all that a crash takes away."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, NamedTuple

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.faults import Faults
from noetl.adapters.memory.ledger import MemoryLedger
from noetl.adapters.memory.payloads import Contents, MemoryPayloads
from noetl.adapters.memory.queue import MemoryExecutions, MemoryQueue
from noetl.adapters.session.in_process import InProcessSession
from noetl.core.codec import canonical_json, sha256_hex
from noetl.core.errors import Failure, NoetlError, PlaybookUnknown, ScriptUnavailable
from noetl.engine.children.starter import ChildStarter
from noetl.engine.control.commands import Dispatcher
from noetl.engine.control.decider import Decider
from noetl.engine.control.parts import ControlParts
from noetl.engine.control.sessions import Sessions
from noetl.engine.control.states import States
from noetl.engine.control.timers import Timers
from noetl.engine.control.watch import Watchers
from noetl.engine.executions import ExecutionService
from noetl.engine.payloads import Payloads
from noetl.engine.pinning.pinner import Pinner
from noetl.engine.pinning.scripts import ScriptPinner
from noetl.engine.playbooks import Playbooks
from noetl.engine.starting import Starter
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.worker import Worker
from noetl.ports.catalog import CatalogEntry
from noetl.ports.owner import Owner
from noetl.ports.secrets import Credential
from noetl.ports.session import ControlPlane, Fact
from noetl.ports.tool import Tool, ToolCall, ToolResult
from tests.simulation.faults import Weather
from tests.simulation.frames import LoopChecker, require


class SimulatedTool:
    """Computes its result from its input and nothing else, so that a second run gives the same; fails while the
    pipeline's attempt is not above `fails`."""

    kind = "python"

    def __init__(self, chance: random.Random, faults: Faults, *, seconds_max: float) -> None:
        self._chance = chance
        self._faults = faults
        self._seconds_max = seconds_max
        # Who checks what the rows of loops do; nobody, unless it is set.
        self.loops: LoopChecker | None = None
        self._active: Counter[tuple[int, str]] = Counter()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def run(self, call: ToolCall) -> ToolResult:
        if not call.is_row or self.loops is None:
            return await self._run(call)
        key, index = (call.execution_id, call.step), call.input["index"]
        assert isinstance(index, int)
        require(not self.loops.is_persisted(*key, index), f"row {index} of {key} runs again")
        self._active[key] += 1
        limit = self.loops.in_flight_max(*key)
        require(self._active[key] <= limit, f"{self._active[key]} rows of {key} run, the limit is {limit}")
        try:
            return await self._run(call)
        finally:
            self._active[key] -= 1

    async def _run(self, call: ToolCall) -> ToolResult:
        seconds = call.input.get("seconds", self._chance.random() ** 2 * self._seconds_max)
        assert isinstance(seconds, int | float)
        # The process may die while user code runs.
        await self._faults.pause(seconds)
        values = {name: value for name, value in call.input.items() if name != "attempt"}
        attempt, fails = call.input.get("attempt", 1), call.input.get("fails", 0)
        assert isinstance(attempt, int)
        assert isinstance(fails, int)
        if attempt <= fails:
            message = f"{call.step}/{call.label} does not work"
            return ToolResult(failure=Failure(kind="connection", message=message, retryable=True))
        digest = sha256_hex(canonical_json([call.step, call.label, values]).encode())
        items = [int(digest[n : n + 4], 16) % 1000 for n in (0, 4, 8)]
        result: dict[str, object] = {"value": int(digest[:6], 16) % 1000, "items": items}
        if "big" in values:
            result["blob"] = digest * (int(str(values["big"])) // 64)
        return ToolResult(value=result)

    async def render(self, source: object, names: object, **limits: Any) -> object:
        raise AssertionError(f"no simulated playbook has a loop in a template: {source!r}, {names!r}, {limits!r}")


class NoisySession(InProcessSession):
    """Reports some facts late, some twice, and some again when nobody expects them."""

    def __init__(
        self, *, session_id: int, slots: int, control: ControlPlane, chance: random.Random, weather: Weather
    ) -> None:
        super().__init__(session_id=session_id, slots=slots, control=control)
        self._chance = chance
        self._weather = weather
        self.echoes: asyncio.TaskGroup | None = None
        self.reported: list[Fact] = []

    async def report(self, fact: Fact) -> None:
        self.reported.append(fact)
        await asyncio.sleep(self._chance.random() ** 3 * self._weather.seconds_max)
        if self._chance.random() < self._weather.duplicate:
            assert self.echoes is not None
            echo = self._echo(fact, self._chance.random() ** 2 * 10.0)
            try:
                self.echoes.create_task(echo)
            except RuntimeError:  # the process is dying, and this task does not know it yet
                echo.close()
        await super().report(fact)

    async def _echo(self, fact: Fact, seconds: float) -> None:
        await asyncio.sleep(seconds)
        try:
            await super().report(fact)
        except NoetlError:
            return


class NoCredentials:
    """Simulated playbooks name none."""

    async def open(self, name: str, *, tenant_id: str, organization_id: str) -> Credential:
        raise AssertionError(f"credential {name} of {tenant_id}/{organization_id}")


class Shelf:
    """Playbooks that others may start, by their path."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    async def find(self, path: str, *, version: int | None, owner: Owner) -> Booklet:
        if path not in self.texts:
            raise PlaybookUnknown(f"no playbook {path!r} in version {version} for {owner.tenant_id}")
        entry = CatalogEntry(
            catalog_id=1,
            tenant_id=owner.tenant_id,
            organization_id=owner.organization_id,
            path=path,
            sha256="",
            media_type="",
            name=path,
            payload={},
            version=1,
            created_at="",
        )
        return Booklet(self.texts[path], entry)

    async def find_id(self, catalog_id: int, *, owner: Owner) -> Booklet:
        raise PlaybookUnknown(f"no playbook {catalog_id} for {owner.tenant_id}")


class Booklet(NamedTuple):
    text: str
    entry: CatalogEntry


class NoSurroundings:
    """No script files, and nothing in the catalog when an execution begins."""

    roots = ()

    async def read(self, uri: str) -> bytes:
        raise ScriptUnavailable(f"no {uri} here")

    async def find(
        self, path: str, *, version: int | None, tenant_id: str, organization_id: str
    ) -> CatalogEntry | None:
        del path, version, tenant_id, organization_id
        return None


class Life:
    def __init__(
        self,
        *,
        database: MemoryDatabase,
        large: Contents,
        clock: VirtualClock,
        faults: Faults,
        chance: random.Random,
        weather: Weather,
        slots: int,
    ) -> None:
        self._clock, self._chance, self._weather = clock, chance, weather
        self._slots = slots
        self.ledger = MemoryLedger(database, faults)
        self.queue = MemoryQueue(database, faults)
        self.executions = MemoryExecutions(database, faults)
        self.tool = SimulatedTool(chance, faults, seconds_max=weather.seconds_max)
        self.payloads = Payloads(
            small=MemoryPayloads(database.tables.payloads, faults), large=MemoryPayloads(large, faults)
        )
        self.playbooks = Playbooks(self.payloads, kinds=frozenset((self.tool.kind, "playbook")))
        self.states = States(self.ledger)
        self.sessions = Sessions()
        # A new node number per life: ids must not repeat although the clock may stand still.
        self._ids = VirtualIds(clock, node=chance.randrange(1024))
        parts = ControlParts(
            ledger=self.ledger,
            states=self.states,
            playbooks=self.playbooks,
            sessions=self.sessions,
            watchers=Watchers(),
            ids=self._ids,
            clock=clock,
        )
        self.shelf = Shelf()
        pinner = Pinner(ScriptPinner(NoSurroundings(), self.payloads), catalog=NoSurroundings())
        starter = Starter(payloads=self.payloads, renderer=self.tool, pinner=pinner, ids=self._ids, clock=clock)
        children = ChildStarter(
            states=self.states,
            playbooks=self.playbooks,
            payloads=self.payloads,
            starter=starter,
            finder=self.shelf,
        )
        self.decider = Decider(parts, producer="noetl://tenant/acme/org/sales/host/simulated", children=children)
        self.service = ExecutionService(
            parts,
            decider=self.decider,
            executions=self.executions,
            payloads=self.payloads,
            starter=starter,
            shard_count=len(database.tables.heads),
        )
        self.dispatcher = Dispatcher(
            decider=self.decider,
            sessions=self.sessions,
            queue=self.queue,
            executions=self.executions,
            ledger=self.ledger,
        )
        self.is_open = asyncio.Event()
        self.session: NoisySession | None = None
        # Tools that a story brings along.
        self.more_tools: dict[str, Tool] = {}

    async def run(self) -> None:
        """As `wiring.Engine` does it."""
        self.decider.own(await self.ledger.own_shards())
        self.session = session = NoisySession(
            session_id=self._ids.next_id(),
            slots=self._slots,
            control=self.decider,
            chance=self._chance,
            weather=self._weather,
        )
        self.sessions.connect(session)
        worker = Worker(
            WorkerParts(
                session=session,
                playbooks=self.playbooks,
                payloads=self.payloads,
                tools={self.tool.kind: self.tool, **self.more_tools},
                renderer=self.tool,
                clock=self._clock,
                credentials=NoCredentials(),
            )
        )
        timers = Timers(decider=self.decider, queue=self.queue)
        async with asyncio.TaskGroup() as group:
            session.echoes = group
            group.create_task(self.decider.run())
            group.create_task(worker.run())
            await self.dispatcher.restore()
            group.create_task(self.dispatcher.run())
            group.create_task(timers.run())
            self.is_open.set()
