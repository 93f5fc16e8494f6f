"""Cursors in trouble: a process that dies, a database that loses replies, commits that land late.  Every row of the
work table is worked off, and none stands in two frames that were committed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from noetl.adapters.memory.claims import MemoryClaims, WorkTable
from noetl.adapters.memory.faults import Faults, Mishap, Outcome
from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.core import kinds
from noetl.core.event import Event
from noetl.core.execution.state import ExecutionState, Status
from noetl.engine.payloads import Payloads
from noetl.engine.results import read_result
from noetl.ports.tool import ToolCall, ToolResult
from tests.simulation.checks import check_end, events_of
from tests.simulation.faults import SeededFaults, Weather
from tests.simulation.life import Life, SimulatedTool
from tests.simulation.test_recovery import OWNER, Scene, start

LOST = Mishap(outcome=Outcome.REPLY_LOST)
AWAY = Mishap(outcome=Outcome.NOT_DONE)
LATE = Mishap(outcome=Outcome.COMMITS_LATE, late_seconds=1.5)


class Rows(SimulatedTool):
    """Works rows off: notes each one, and some put further rows into the table."""

    def __init__(self, table: WorkTable, journal: Counter[int], chance: random.Random, faults: Faults) -> None:
        super().__init__(chance, faults, seconds_max=0.2)
        self._table, self._journal = table, journal

    async def run(self, call: ToolCall) -> ToolResult:
        given: Any = call.input["rows"]
        result = await self._run(call)
        for row in given if isinstance(given, list) else [given]:
            if not self._journal[row["id"]] and row.get("more"):
                # As an insert that does nothing when the row is there.
                self._table.add({"id": row["id"] + 1_000})
            self._journal[row["id"]] += 1
        return result


class Story(Scene):
    """A work table, and processes that drain it, die and are started again."""

    def __init__(self, rows: int, *, slots: int = 2, linger: float = 0.0) -> None:
        super().__init__(slots=slots)
        self.table = WorkTable()
        self.table.add(*({"id": n, "more": n % 4 == 0} for n in range(rows)))
        self.rows = {*range(rows), *(n + 1_000 for n in range(0, rows, 4))}
        self.journal: Counter[int] = Counter()
        self.linger = linger
        self.died = asyncio.Event()

    def equip(self, life: Life) -> None:
        life.tool = Rows(self.table, self.journal, self.chance, self.faults)
        life.more_tools["postgres"] = MemoryClaims(self.table, self.faults, linger_seconds=self.linger)

    async def drain(self, step: dict[str, Any]) -> ExecutionState:
        """As many processes as it takes."""
        execution_id: int | None = None
        for _ in range(200):
            self.died.clear()
            self._trouble(False)
            async with self.process() as life:
                if execution_id is None:
                    execution_id = await start(life, step)
                self._trouble(True)
                is_over = await self._ended(execution_id)
                self._trouble(False)
            if is_over:
                await asyncio.sleep(self.linger + 1)
                check_end(self.database)
                return self.state(execution_id)
        raise AssertionError("no end after 200 lives")

    def _trouble(self, is_active: bool) -> None:
        if isinstance(self.faults, SeededFaults):
            self.faults.is_active = is_active

    async def _ended(self, execution_id: int) -> bool:
        """Wait for the end of the execution, or of the process."""
        while not self.died.is_set():
            if self.database.tables.streams[execution_id].closed:
                return True
            await asyncio.sleep(0.1)
        return False

    # --- what must hold --------------------------------------------------------------------------------------

    async def committed(self, execution_id: int) -> Counter[int]:
        """How often each row stands in a committed frame, by the last claim of the frame."""
        claims: dict[str, Event] = {}
        found: Counter[int] = Counter()
        for event in events_of(self.database, execution_id):
            frame_id = str(event.frame_id)
            if event.event_type == kinds.CURSOR_CLAIMED:
                claims[frame_id] = event
            elif event.event_type == kinds.FRAME_COMMITTED and "claim" not in event.meta:
                document: Any = await self._read(claims[frame_id])
                found.update(row["id"] for row in document["rows"])
        return found

    async def _read(self, event: Event) -> Any:
        assert event.payload_ref is not None
        return await self.payloads.read_json(event.payload_ref, **OWNER)

    @property
    def payloads(self) -> Payloads:
        return Payloads(small=MemoryPayloads(self.database.tables.payloads), large=MemoryPayloads(self.large))

    async def check(self, state: ExecutionState) -> dict[str, Any]:
        """Every row ran, every row stands in one committed frame, nothing is left in the table."""
        assert state.status is Status.COMPLETED, state.failure
        assert set(self.journal) == self.rows
        assert await self.committed(state.execution_id) == Counter(self.rows)
        assert (self.table.pending, len(self.table.taken)) == ([], len(self.rows))
        reference = state.step_results["drain"].reference
        assert reference is not None
        result: Any = await read_result(self.payloads, reference, **OWNER)
        assert (result["status"], result["row_count"]) == ("ok", len(self.rows))
        return dict(result)


def cursor(*, slots: int = 1, rows: int = 2, **frame: Any) -> dict[str, Any]:
    """A step that takes `rows` rows at a time.  A row costs a little time."""
    given = {"rows": "{{ row }}", "seconds": 0.05}
    source = {"auth": {"source": "inline", "fields": {}}, "claim": "take {{ __frame_max_rows }}"}
    return {
        "step": "drain",
        "tool": {"kind": "python", "code": "work", "input": given},
        "loop": {
            "cursor": source,
            "iterator": "row",
            "spec": {"max_in_flight": slots, "frame": {"max_rows": rows, "max_attempts": 100} | frame},
        },
    }


def play(story: Story, step: dict[str, Any], look: Callable[[list[Event]], None] | None = None) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def told() -> None:
        state = await story.drain(step)
        found.append(await story.check(state))
        if look is not None:
            look(events_of(story.database, state.execution_id))

    story.play(told())
    return found[0]


def of(events: list[Event], event_type: str) -> list[Event]:
    return [event for event in events if event.event_type == event_type]


# --- single stories --------------------------------------------------------------------------------------


@pytest.mark.parametrize("process", ["row", "frame"])
@pytest.mark.parametrize("slots", [1, 4])
def test_a_cursor_drains_its_table_and_what_is_added_meanwhile(process: str, slots: int) -> None:
    story = Story(13, slots=4)
    result = play(story, cursor(slots=slots, rows=3, process=process))
    assert set(story.journal.values()) == {1}
    assert result["stats"] == {"total": 17, "success": 17, "failed": 0}


@pytest.mark.parametrize("mishaps", [(AWAY,), (LOST,), (AWAY, AWAY), (LOST, AWAY, LOST)])
@pytest.mark.parametrize("operation", ["claim", "claim_commit"])
def test_a_claim_whose_connection_breaks_loses_no_row_and_repeats_none(
    operation: str, mishaps: tuple[Mishap, ...]
) -> None:
    story = Story(9, linger=0.3)
    story.faults.script(operation, *mishaps)
    play(story, cursor(slots=2))
    assert set(story.journal.values()) == {1}


def test_a_commit_that_lands_late_is_waited_for() -> None:
    story = Story(3, linger=10.0)
    story.faults.script("claim_commit", LATE)

    def look(events: list[Event]) -> None:
        assert len({event.frame_id for event in of(events, kinds.CURSOR_CLAIMED)}) == len(
            of(events, kinds.CURSOR_CLAIMED)
        )

    play(story, cursor(), look)
    assert set(story.journal.values()) == {1}


def test_a_transaction_that_does_not_end_is_ended_and_its_rows_are_claimed_anew() -> None:
    """The server does not notice that the connection is gone."""
    story = Story(3, linger=1_000.0)
    story.faults.script("claim_commit", AWAY)

    def look(events: list[Event]) -> None:
        again = [event for event in of(events, kinds.CURSOR_CLAIMED) if event.meta["n"] == 2]
        assert len(again) == 1

    play(story, cursor(), look)
    assert set(story.journal.values()) == {1}


def test_rows_in_the_ledger_are_not_given_up_while_their_database_is_away() -> None:
    """Far longer than the tries of a claim: nobody else can tell what became of them."""
    story = Story(3)
    story.faults.script("claim_commit", LOST)
    story.faults.script("claim_status", *[AWAY] * 20)
    play(story, cursor(max_attempts=2))
    assert set(story.journal.values()) == {1}


def test_a_fact_about_a_claim_whose_reply_is_lost_is_recorded_once() -> None:
    story = Story(6)

    def script() -> None:
        story.faults.script("advance", LOST)

    async def told() -> None:
        task = asyncio.ensure_future(story.drain(cursor()))
        await asyncio.sleep(0.07)
        script()
        await story.check(await task)

    story.play(told())


# --- any moment ------------------------------------------------------------------------------------------


def seeded(seed: int) -> tuple[Story, dict[str, Any]]:
    chance = random.Random(f"cursor {seed}")
    story = Story(chance.choice((1, 5, 12)), slots=chance.choice((1, 2, 8)), linger=chance.choice((0.0, 0.4, 20.0)))
    weather = Weather(
        seconds_max=chance.choice((0.0, 0.05, 0.5)),
        trouble=chance.choice((0.0, 0.05, 0.2)),
        crash=chance.choice((0.02, 0.1)),
        crashes_max=chance.randint(1, 12),
    )
    story.chance = random.Random(f"cursor story {seed}")
    story.faults = SeededFaults(story.chance, weather, crash=story.died.set)
    step = cursor(
        slots=chance.choice((1, 3)),
        rows=chance.choice((1, 4)),
        process=chance.choice(("row", "frame")),
        row_concurrency=chance.choice((1, 2)),
        **chance.choice(({}, {"retry_mode": "whole_frame"})),
    )
    return story, step


def check_seed(seed: int) -> Counter[str]:
    story, step = seeded(seed)
    marks: Counter[str] = Counter()

    def look(events: list[Event]) -> None:
        marks["abandoned"] += len(of(events, kinds.FRAME_ABANDONED))
        marks["claimed anew"] += sum(event.meta["n"] != 1 for event in of(events, kinds.CURSOR_CLAIMED))
        kept = {event.frame_id for event in of(events, kinds.CURSOR_CLAIMED) if event.meta["n"] == 1}
        marks["taken over"] += sum(event.frame_id in kept for event in of(events, kinds.FRAME_ABANDONED))

    play(story, step, look)
    assert isinstance(story.faults, SeededFaults)
    return marks + story.faults.seen


def test_wherever_a_process_dies_no_row_is_lost_and_none_is_committed_twice() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        try:
            seen += check_seed(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error
    # The test of the test: what it is about has happened.
    for mark in ("abandoned", "claimed anew", "taken over", "crash", "claim_commit reply lost"):
        assert seen[mark] > 0, dict(seen)


@pytest.mark.long
@pytest.mark.parametrize("start_at", range(1_000, 1_600, 100))
def test_wherever_a_process_dies_no_row_is_lost_over_many_seeds(start_at: int) -> None:
    for seed in range(start_at, start_at + 100):
        try:
            check_seed(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error
