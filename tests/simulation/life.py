"""One life of a process: the engine over the memory adapters, all that a crash takes away."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from noetl.adapters.memory.clock import VirtualIds
from noetl.adapters.memory.faults import Faults
from noetl.adapters.memory.ledger import MemoryLedger
from noetl.adapters.memory.payloads import Contents, MemoryPayloads
from noetl.adapters.memory.queue import MemoryExecutions, MemoryQueue
from noetl.adapters.session.in_process import InProcessSession
from noetl.core.codec import canonical_json, sha256_hex
from noetl.core.errors import Failure, NoetlError, PlaybookUnknown, ScriptUnavailable
from noetl.core.locator.locality import NOWHERE, Distance, Place
from noetl.engine.children.starter import ChildStarter
from noetl.engine.control.commands import Dispatcher
from noetl.engine.control.decider import Decider
from noetl.engine.control.parts import ControlParts
from noetl.engine.control.sessions import Sessions
from noetl.engine.control.states import States
from noetl.engine.control.timers import Timers
from noetl.engine.control.watch import Watchers
from noetl.engine.executions import ExecutionService
from noetl.engine.forking.retrying import RetryService
from noetl.engine.payloads import Payloads
from noetl.engine.pinning.pinner import Pinner
from noetl.engine.pinning.scripts import ScriptPinner
from noetl.engine.playbooks import Playbooks
from noetl.engine.sharing.neighbours import Neighbours
from noetl.engine.starting import Starter
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.worker import Worker
from noetl.ports.catalog import CatalogEntry
from noetl.ports.clock import IdSource
from noetl.ports.owner import Owner
from noetl.ports.secrets import Credential
from noetl.ports.session import CommandMessage, ControlPlane, Fact
from noetl.ports.tool import Tool, ToolCall, ToolResult
from tests.simulation.faults import Weather
from tests.simulation.frames import LoopChecker, require
from tests.simulation.side import Side, Surroundings

PRODUCER = "noetl://tenant/acme/org/sales/host/simulated"
PLACES = (
    Place(region="eu", zone="a", node="n1"),
    Place(region="eu", zone="b", node="n2"),
    NOWHERE,
    Place(region="us", zone="x", node="n3"),
)
DISTANCES = (Distance.ZONE, Distance.NODE, Distance.ANY)
Meeting = Callable[[ControlParts], Neighbours]


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
    """Hands commands over out of turn; reports some facts late, some twice, and some again when nobody expects them."""

    def __init__(
        self, *, session_id: int, slots: int, control: ControlPlane, chance: random.Random, weather: Weather
    ) -> None:
        super().__init__(session_id=session_id, slots=slots, control=control)
        self._chance = chance
        self._weather = weather
        self.echoes: asyncio.TaskGroup | None = None
        self.reported: list[Fact] = []

    async def next_command(self) -> CommandMessage:
        """Not always the one that was handed over first."""
        first = await super().next_command()
        if self._commands.empty() or self._chance.random() >= self._weather.duplicate:
            return first
        self._commands.put_nowait(first)
        return await super().next_command()

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
        around: Surroundings,
        *,
        large: Contents,
        chance: random.Random,
        weather: Weather,
        slots: int,
        number: int = 0,
    ) -> None:
        database, faults, clock = around.database, around.faults, around.clock
        self._database, self._faults = database, faults
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
        self.side = Side(around)
        self.states = States(self.ledger, self.side.snapshots)
        self.number = number or chance.randrange(512, 1024)
        is_spread = around.tuning.is_spread
        self.place = PLACES[self.number % len(PLACES)] if is_spread else NOWHERE
        self.sessions = Sessions(DISTANCES[self.number % len(DISTANCES)] if is_spread else Distance.ANY)
        self.is_open = asyncio.Event()
        self.session: NoisySession | None = None
        self.shelf = Shelf()
        # Tools that a story brings along.
        self.more_tools: dict[str, Tool] = {}
        if self.is_alone:
            # A new node number per life: ids must not repeat although the clock may stand still or go back.
            self._wire(VirtualIds(clock, node=self.number))

    is_alone = True

    def _wire(self, ids: VirtualIds, roots: IdSource | None = None, meet: Meeting | None = None) -> None:
        """Put the parts together.  `meet` gives the other servers, whose parts need ours."""
        self._ids, clock = ids, self._clock
        parts = ControlParts(
            ledger=self.ledger,
            states=self.states,
            playbooks=self.playbooks,
            sessions=self.sessions,
            watchers=Watchers(),
            ids=self._ids,
            clock=clock,
            on_commit=self.side.feed.tell,
        )
        pinner = Pinner(ScriptPinner(NoSurroundings(), self.payloads), catalog=NoSurroundings())
        starter = Starter(payloads=self.payloads, renderer=self.tool, pinner=pinner, ids=ids, clock=clock, roots=roots)
        children = ChildStarter(
            states=self.states,
            playbooks=self.playbooks,
            payloads=self.payloads,
            starter=starter,
            finder=self.shelf,
        )
        neighbours = meet(parts) if meet is not None else None
        self.decider = Decider(parts, producer=PRODUCER, children=children, neighbours=neighbours)
        self.service = ExecutionService(
            parts,
            decider=self.decider,
            executions=self.executions,
            payloads=self.payloads,
            starter=starter,
            shard_count=len(self._database.tables.heads),
        )
        self.retries = RetryService(
            executions=self.service,
            ledger=self.ledger,
            payloads=self.payloads,
            playbooks=self.playbooks,
            ids=roots or ids,
        )
        self.dispatcher = Dispatcher(
            decider=self.decider,
            sessions=self.sessions,
            queue=self.queue,
            executions=self.executions,
            ledger=self.ledger,
            neighbours=neighbours,
        )

    async def run(self) -> None:
        """As `wiring.Engine` does it, without other servers."""
        self.decider.own(await self.ledger.own_shards())
        worker = self._worker(self._ids.next_id())
        timers = Timers(decider=self.decider, queue=self.queue)
        async with asyncio.TaskGroup() as group:
            assert self.session is not None
            self.session.echoes = group
            group.create_task(self.decider.run())
            group.create_task(worker.run())
            await self.dispatcher.restore()
            group.create_task(self.dispatcher.run())
            group.create_task(timers.run())
            group.create_task(self.side.run(self.number, ids=self._ids, states=self.states))
            self.is_open.set()

    def _worker(self, session_id: int) -> Worker:
        self.session = session = NoisySession(
            session_id=session_id,
            slots=self._slots,
            control=self.decider,
            chance=self._chance,
            weather=self._weather,
        )
        self.sessions.connect(session, place=self.place)
        return Worker(
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
