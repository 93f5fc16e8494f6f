"""The test of the judge: a history that is right passes, and each rule finds the history that breaks it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.tables import event_of
from noetl.core.event import Event
from noetl.ports.ledger import ExecutionRow
from tests.simulation.checker import Checker, named_payloads
from tests.simulation.families import AnyLoops, FamilyWorld
from tests.simulation.faults import Weather
from tests.simulation.frames import Violation
from tests.simulation.loop import run_simulated
from tests.simulation.watched import watch_tables
from tests.simulation.world import Setting, World, setting_of

HISTORY_SEEDS = 10
STORM = Weather(seconds_max=0.5, trouble=0.02, crash=0.02, crashes_max=3, duplicate=0.2, drop_derived=0.2)
History = list[Event]
Plant = Callable[[History], History]


@functools.cache
def histories() -> list[History]:
    """What real runs wrote: crashes, retries, loops, cancelled ones."""
    found = []
    for seed in range(HISTORY_SEEDS):
        setting = Setting(shards=1, slots=2, batch_inputs_max=8, weather=STORM, loops=0.4 if seed % 2 else None)
        world = World(seed, setting)
        run_simulated(world.run(), world.clock, random.Random(f"loop {seed}"))
        found.append([event_of(row) for row in world.database.tables.shards[0]])
    return found


@functools.cache
def cut_short() -> list[History]:
    """What is left of executions that were cancelled or ran out of time."""
    found = []
    for seed in range(3):
        world = FamilyWorld(seed, replace(setting_of(seed), shards=1))
        run_simulated(world.story(), world.clock, random.Random(f"loop {seed}"))
        found.append([event_of(row) for row in world.database.tables.shards[0]])
    return found


def judged(history: Sequence[Event], *, payloads: set[str] | None = None) -> None:
    checker = Checker(resolves=None if payloads is None else lambda *key: key[2] in payloads)
    for event in history:
        checker.check(event)


def renumbered(history: Sequence[Event]) -> History:
    """With the numbers that a ledger would have given, so that only what was planted is wrong."""
    versions: dict[int, int] = {}
    made = []
    for position, event in enumerate(history, start=1):
        versions[event.execution_id] = versions.get(event.execution_id, 0) + 1
        made.append(event._replace(position=position, stream_version=versions[event.execution_id]))
    return made


def where(history: History, *kinds: str, nth: int = 0) -> int:
    """The place of an event of one of these kinds; a history without one is passed over."""
    places = [n for n, event in enumerate(history) if event.event_type in kinds]
    if len(places) <= nth:
        raise LookupError(kinds)
    return places[nth]


def changed(history: History, place: int, **meta: object) -> History:
    event = history[place]
    return [*history[:place], event._replace(meta={**event.meta, **meta}), *history[place + 1 :]]


def again(history: History, place: int, **other: object) -> History:
    """The event once more at the end of its execution's open time, under an id and a key of its own."""
    event = history[place]
    fields = {"event_id": 1, "transition_key": f"{event.transition_key} again", "causation_id": None, **other}
    return [*history[: place + 1], event._replace(**fields), *history[place + 1 :]]


# --- one planted violation for each rule --------------------------------------------------------------------------


def gap_in_a_shard(history: History) -> History:
    return [event._replace(position=event.position + (event.position > 5)) for event in history]


def gap_in_a_stream(history: History) -> History:
    return [event._replace(stream_version=event.stream_version + (event.stream_version > 3)) for event in history]


def another_shard(history: History) -> History:
    second = next(event for event in history if event.stream_version == 2)
    return [event._replace(shard_id=1, position=1) if event is second else event for event in history]


def one_id_twice(history: History) -> History:
    return [*history[:3], history[3]._replace(event_id=history[2].event_id), *history[4:]]


def one_transition_twice(history: History) -> History:
    place = where(history, "step.decided")
    return renumbered(again(history, place, transition_key=history[place].transition_key))


def foreign_key(history: History) -> History:
    place = where(history, "command.claimed")
    return [*history[:place], history[place]._replace(transition_key="command.claimed/by hand"), *history[place + 1 :]]


def effect_before_cause(history: History) -> History:
    place = where(history, "step.decided")
    return [*history[:place], history[place]._replace(causation_id=2**60), *history[place + 1 :]]


def fact_behind_the_end(history: History) -> History:
    place = where(history, "playbook.completed", "playbook.failed", "execution.cancelled")
    late = history[where(history, "step.decided")]._replace(execution_id=history[place].execution_id)
    late = late._replace(event_id=1, causation_id=None, meta={**late.meta, "run": 99})
    late = late._replace(transition_key=f"step.decided/{late.meta['step']}#99")
    return renumbered([*history[: place + 1], late])


def second_end_of_a_command(history: History) -> History:
    place = where(history, "command.completed", "command.failed")
    first = history[place]
    other = first._replace(event_id=1, causation_id=None)
    judge = Checker()
    for event in history[: place + 1]:
        judge.check(event)
    judge.executions[first.execution_id].keys.discard(first.transition_key)
    judge.check(renumbered([*history[: place + 1], other])[-1])
    return history


def second_end_of_a_frame(history: History) -> History:
    place = where(history, "frame.committed")
    first = history[place]
    judge = Checker()
    for event in history[: place + 1]:
        judge.check(event)
    judge.executions[first.execution_id].keys.discard(first.transition_key)
    judge.check(renumbered([*history[: place + 1], first._replace(event_id=1, causation_id=None)])[-1])
    return history


def claim_of_an_ended_command(history: History) -> History:
    place = where(history, "command.completed")
    event = history[place]
    attempt = int(str(event.meta["attempt"])) + 1
    late = event._replace(
        event_type="command.claimed",
        event_id=1,
        causation_id=None,
        meta={"attempt": attempt, "session": "1"},
        transition_key=f"command.claimed/{event.command_id}/{attempt}",
    )
    return renumbered([*history[: place + 1], late])


def attempts_that_jump(history: History) -> History:
    place = where(history, "command.claimed")
    event = history[place]
    key = f"command.claimed/{event.command_id}/3"
    return [*history[:place], event._replace(meta={**event.meta, "attempt": 3}, transition_key=key)]


def stale_attempt(history: History) -> History:
    return changed(history, where(history, "command.completed"), attempt=7)


def word_of_nobody(history: History) -> History:
    place = where(history, "command.claimed")
    name = history[place].command_id
    left = [event for event in history if (event.event_type, event.command_id) != ("command.claimed", name)]
    return renumbered([event._replace(causation_id=None) for event in left])


def command_of_nobody(history: History) -> History:
    place = where(history, "command.issued")
    return renumbered([event._replace(causation_id=None) for n, event in enumerate(history) if n != place])


def command_without_end(history: History) -> History:
    place = where(history, "playbook.completed")
    owner = history[place].execution_id
    lost = history[where(history, "command.issued")]._replace(execution_id=owner, event_id=1, causation_id=None)
    lost = lost._replace(command_id="lost#1", transition_key="command.issued/lost#1")
    return renumbered([*history[:place], lost, *history[place:]])


def frame_of_other_rows(history: History) -> History:
    return changed(history, where(history, "frame.dispatched", nth=1), first=999)


def frame_with_rows_left(history: History) -> History:
    place = where(history, "frame.committed")
    outcomes = {"success": 0, "failed": 0, "skipped": 0}
    return changed(history, place, outcomes=outcomes)


def stale_frame(history: History) -> History:
    return changed(history, where(history, "frame.committed"), attempt=9)


def loop_that_counts_wrongly(history: History) -> History:
    begun = {event.stage_id for event in history if event.event_type == "loop.started"}
    place = next(
        (n for n, event in enumerate(history) if event.event_type == "loop.done" and event.stage_id in begun), None
    )
    if place is None:
        raise LookupError
    return changed(history, place, total=int(str(history[place].meta["total"])) + 1)


PLANTED: dict[Plant, str] = {
    gap_in_a_shard: "has a gap",
    gap_in_a_stream: "a stream has a gap",
    another_shard: "moved to another shard",
    one_id_twice: "an id is used twice",
    one_transition_twice: "a transition happened twice",
    foreign_key: "a key is not that of its cause",
    effect_before_cause: "an effect before its cause",
    fact_behind_the_end: "a fact behind the end",
    second_end_of_a_command: "a second terminal event",
    second_end_of_a_frame: "a frame that is not open|behind the end of its loop",
    claim_of_an_ended_command: "a claim of an ended command",
    attempts_that_jump: "attempts do not rise by one",
    stale_attempt: "a stale attempt reported",
    word_of_nobody: "nobody holds|do not rise by one",
    command_of_nobody: "a command nobody issued",
    command_without_end: "were issued and never ended",
    frame_of_other_rows: "left out or given out twice|changed its rows",
    frame_with_rows_left: "the rows do not add up",
    stale_frame: "a stale attempt reported",
    loop_that_counts_wrongly: "rows were counted",
}


def test_histories_that_are_right_pass() -> None:
    for history in histories():
        judged(history)
        judged(renumbered(history))
    for history in cut_short():
        checker = Checker(loops=AnyLoops())
        for event in history:
            checker.check(event)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_violation_is_found(plant: Plant) -> None:
    planted = 0
    for history in histories():
        try:
            with pytest.raises(Violation, match=PLANTED[plant]):
                judged(plant(history))
        except LookupError:
            continue
        planted += 1
    assert planted >= 3, f"{planted} histories could be broken"


def test_a_reference_to_nothing_is_found() -> None:
    history = histories()[0]
    named = {str(one["sha256"]) for event in history for one in named_payloads(event)}
    judged(history, payloads=named)
    assert len(named) > 3
    for missing in sorted(named):
        with pytest.raises(Violation, match="nothing is at"):
            judged(history, payloads=named - {missing})


def watched() -> MemoryDatabase:
    database = MemoryDatabase(clock=VirtualClock(), shard_count=1)
    watch_tables(database)
    head = database.tables.heads[0]
    database.tables.heads[0] = replace(head, epoch=3, next_position=10, decided_position=8)
    return database


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": 2}, "wrote after"),
        ({"next_position": 9}, "went back"),
        ({"decided_position": 7}, "decided again"),
        ({"decided_position": 10}, "not there"),
    ],
)
def test_a_shard_that_goes_back_is_found(change: dict[str, int], message: str) -> None:
    heads = watched().tables.heads
    heads[0] = replace(heads[0], next_position=10)
    with pytest.raises(Violation, match=message):
        heads[0] = replace(heads[0], **change)


def test_an_end_that_is_taken_back_is_found() -> None:
    shown = watched().tables.executions
    row = ExecutionRow(
        execution_id=7,
        tenant_id="acme",
        organization_id="sales",
        shard_id=0,
        path="simulation",
        playbook_digest="",
        status="COMPLETED",
        started_at="",
        ended_at="",
        last_step=None,
        last_event_id=1,
        applied_position=9,
    )
    shown[7] = row
    with pytest.raises(Violation, match="is shown as RUNNING"):
        shown[7] = replace(row, status="RUNNING", applied_position=10)
    with pytest.raises(Violation, match="as it was before"):
        shown[7] = replace(row, applied_position=8)
