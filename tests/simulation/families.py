"""Random playbooks that start each other, run out of time and are cancelled: a world with its own rules, because how
such a run ends is a matter of luck.  What must hold all the same is checked here."""

from __future__ import annotations

import asyncio
import functools
import json
import random
from collections import Counter
from typing import Any

from noetl.adapters.memory.database import MemoryDatabase
from noetl.core import kinds
from noetl.core.errors import ExecutionClosed, LedgerUnavailable
from noetl.core.event import Event
from noetl.core.execution.state import ExecutionState, Status
from noetl.core.ids import is_system
from tests.simulation.checks import digest_of, events_of, folded, is_projected, require
from tests.simulation.frames import LoopChecker
from tests.simulation.loop import run_simulated
from tests.simulation.playbooks import PlaybookMaker
from tests.simulation.world import HOURS_MAX, OWNER, Setting, World, set_up, setting_of

PATHS = ("child/0", "child/1", "child/2")
# After the request nothing of these may happen any more.
BEGINS = frozenset(
    (
        kinds.COMMAND_ISSUED,
        kinds.COMMAND_CLAIMED,
        kinds.FRAME_DISPATCHED,
        kinds.FRAME_STARTED,
        kinds.STEP_DECIDED,
        kinds.LOOP_STARTED,
        kinds.CHILD_STARTED,
    )
)


class AnyLoops(LoopChecker):
    """Loops that are cut short break the rules of those that are not."""

    def observe(self, event: Event) -> None:
        del event

    def in_flight_max(self, execution_id: int, step: str) -> int:
        del execution_id, step
        return 10_000

    def is_persisted(self, execution_id: int, step: str, index: int) -> bool:
        del execution_id, step, index
        return False


def limited(text: str, chance: random.Random, *, paths: tuple[str, ...]) -> str:
    """A playbook in which some steps have a time limit and some start another playbook."""
    document: dict[str, Any] = json.loads(text)
    if chance.random() < 0.3:
        document["executor"] = {"spec": {"timeout": chance.choice((2, 10, 60))}}
    for step in document["workflow"]:
        if chance.random() < 0.2:
            step.setdefault("spec", {})["timeout"] = chance.choice(("100ms", "1s", 5, "1m"))
        tool = step["tool"]
        if paths and isinstance(tool, dict) and "fails" not in tool["input"] and chance.random() < 0.25:
            step["tool"] = _starts(tool, chance, paths)
    return json.dumps(document, ensure_ascii=False)


def _starts(tool: dict[str, Any], chance: random.Random, paths: tuple[str, ...]) -> dict[str, Any]:
    # What a child gives has no `value`: routing that reads one may fail, and that is fine too.
    made: dict[str, Any] = {"kind": "playbook", "path": chance.choice((*paths, "absent")), "input": tool["input"]}
    if chance.random() < 0.4:
        made["return_step"] = "start"
    if chance.random() < 0.2:
        made["wait"] = False
    if chance.random() < 0.3:
        made["timeout"] = chance.choice((0.5, 3, 60))
    if chance.random() < 0.4:
        retry = {"do": "retry", "attempts": 2, "delay": chance.choice((0, 4))}
        made["spec"] = {"policy": {"rules": [{"when": "{{ output.status == 'error' }}", "then": retry}]}}
    return made


@functools.lru_cache(maxsize=4)
def library_of(seed: int) -> tuple[list[str], dict[str, str]]:
    """The playbooks of a seed and those that they start.  Each child may start the ones before it."""
    chance = random.Random(f"families {seed}")
    shelf = {}
    for number, path in enumerate(PATHS):
        shelf[path] = limited(PlaybookMaker(chance).text(), chance, paths=PATHS[:number])
    texts = [limited(PlaybookMaker(chance).text(), chance, paths=PATHS) for _ in range(chance.choice((1, 2)))]
    return texts, shelf


class FamilyWorld(World):
    def __init__(self, seed: int, setting: Setting, database: type[MemoryDatabase] = MemoryDatabase) -> None:
        super().__init__(seed, setting, database)
        self.checker.loops = AnyLoops()
        self.playbooks, self.shelf = library_of(seed)
        self.marks: Counter[str] = Counter()

    async def story(self) -> str:
        async with asyncio.timeout(HOURS_MAX * 3600):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_alive())
                for number in range(len(self.playbooks)):
                    group.create_task(self._client(number))
                    if self.chance.random() < 0.6:
                        group.create_task(self._canceller(number))
        self._check_end()
        return digest_of(self.database)

    def _is_over(self) -> bool:
        tables = self.database.tables
        is_started = len(self.started) == len(self.playbooks)
        is_closed = all(stream.closed for e, stream in tables.streams.items() if not is_system(e))
        return is_started and is_closed and not tables.commands and is_projected(self.database)

    async def _canceller(self, number: int) -> None:
        """Cancel one execution some time after it began; after an unknown outcome ask again."""
        while number not in self.started:
            await asyncio.sleep(0.25)
        await asyncio.sleep(self.chance.random() ** 2 * 20)
        execution_id = self.started[number]
        while not self._is_over():
            life = self._life
            if life is None or not life.is_open.is_set() or self._crashed.is_set():
                await asyncio.sleep(0.25)
                continue
            asked = await self._asked(life, life.service.cancel(execution_id, reason="by chance", **OWNER))
            if asked is None:
                continue
            error = asked.exception()
            if isinstance(error, LedgerUnavailable):
                continue
            require(error is None or isinstance(error, ExecutionClosed), f"cancel: {error!r}")
            recorded = self._state(execution_id).cancelling is not None
            require(
                recorded or error is not None, f"the request to cancel {execution_id} was answered and is not there"
            )
            return

    # --- what must hold ----------------------------------------------------------------------------------

    def _state(self, execution_id: int) -> ExecutionState:
        return folded(events_of(self.database, execution_id))

    def _check_end(self) -> None:
        tables = self.database.tables
        states = {
            execution_id: self._state(execution_id) for execution_id in tables.events if not is_system(execution_id)
        }
        for execution_id, state in states.items():
            self._check_execution(state, events_of(self.database, execution_id))
            self._check_children(state, states)
        require(not tables.commands, f"the queue still holds {list(tables.commands)}")
        require(not tables.timers, f"timers are left: {list(tables.timers)}")

    def _check_execution(self, state: ExecutionState, events: list[Event]) -> None:
        identity = state.execution_id
        require(state.is_terminal, f"{identity} has not ended")
        require(self.database.tables.streams[identity].closed, f"{identity} is not closed")
        require(self.database.tables.executions[identity].status == str(state.status), f"{identity} is shown wrongly")
        require(not state.timers and not state.commands, f"{identity} has open timers or commands")
        self.marks["step_timeout"] += any("step_timeout" in str(event.result) for event in events)
        places = [n for n, event in enumerate(events) if event.event_type == kinds.CANCEL_REQUESTED]
        if not places:
            require(state.status is not Status.CANCELLED, f"{identity} was cancelled by nobody")
            self.marks[str(state.status)] += 1
            return
        late = [event for event in events[places[0] :] if event.event_type in BEGINS]
        require(not late, f"{identity} goes on after it was cancelled: {late[:1]}")
        cause = str(events[places[0]].meta["cause"])
        ends = Status.FAILED if cause == "timeout" else Status.CANCELLED
        require(state.status is ends, f"{identity} ended as {state.status} because of {cause}")
        self.marks[cause] += 1
        self.marks["unconfirmed"] += "unconfirmed" in events[-1].meta

    def _check_children(self, state: ExecutionState, states: dict[int, ExecutionState]) -> None:
        """Every start has one child and every child one start; nobody is told another end than the true one."""
        events = events_of(self.database, state.execution_id)
        started = {e.meta["child_execution_id"]: e for e in events if e.event_type == kinds.CHILD_STARTED}
        own = [s for s in states.values() if s.parent_execution_id == state.execution_id]
        require({str(s.execution_id) for s in own} == set(started), f"{state.execution_id}: children and starts differ")
        shards = {self.database.tables.streams[s.execution_id].shard_id for s in (state, *own)}
        require(len(shards) == 1, f"{state.execution_id} and its children are in the shards {shards}")
        for event in events:
            if event.event_type != kinds.CHILD_TERMINAL:
                continue
            status, child_id = event.meta["status"], int(str(event.meta["child_execution_id"]))
            self.marks[f"child {status}"] += 1
            if status in ("completed", "failed", "cancelled"):
                require(str(states[child_id].status).lower() == status, f"a wrong word about {child_id}: {event}")
            elif status == "timeout":
                end = events_of(self.database, child_id)[-1]
                require(end.position > event.position, f"{child_id} had ended when its time was up: {event}")
        for child in own:
            require(child.depth == state.depth + 1, f"{child.execution_id} is at depth {child.depth}")


def simulate_family(seed: int, setting: Setting | None = None) -> tuple[str, Counter[str]]:
    """One run: the digest of its ledger, and what happened in it."""
    chosen = setting or setting_of(seed)
    world = FamilyWorld(seed, chosen)
    with set_up(chosen):
        digest = run_simulated(world.story(), world.clock, random.Random(f"loop {seed}"))
    return digest, world.marks + world.faults.seen
