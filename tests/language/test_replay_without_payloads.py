"""Routing replays from the ledger: of every example, every shape and every playbook of the checklist all payloads are
deleted except the playbook itself, and the router decides again what it decided, from the events alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from noetl.core.errors import PayloadMissing
from noetl.core.event import Event
from noetl.core.execution.evolve import fold_all
from noetl.core.ids import SYSTEM_ID_LIMIT
from noetl.core.playbook.compile import compile_playbook
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.reference import MEDIA_PLAYBOOK, reference_from_json
from noetl.engine.payloads import Payloads
from noetl.engine.work.pipeline import interpreter
from noetl.wiring.tools import tool_kinds
from tests.language import test_checklist, test_older_words, test_routing, test_values
from tests.support.engine import OWNER
from tests.support.language import CASES, EXAMPLES, FOLDER, Case, World, filed
from tests.support.replay import decided_again, through_bytes

# Their playbooks are registered when they are imported.
WRITTEN_IN = (test_checklist, test_routing, test_values, test_older_words)
KEPT = (MEDIA_PLAYBOOK,)


def corpus() -> dict[str, Case]:
    examples = {path.stem: Case(path.stem, path.read_text()) for path in EXAMPLES}
    shapes = {path.stem: filed(path.stem) for path in sorted(FOLDER.glob("*.yaml"))}
    return {**CASES, **shapes, **examples}


class Emptied(NamedTuple):
    """A world whose store has nothing but playbooks any more, and what ran in it."""

    world: World
    executions: Mapping[str, int]
    payloads: Payloads

    def events(self, execution_id: int) -> list[Event]:
        return self.world.wait(self.world.engine.engine.ledger.read_execution(execution_id))

    def playbook(self, events: list[Event]) -> CompiledPlaybook:
        """The pinned playbook, read from the store."""
        reference: Any = events[0].meta["playbook"]
        content = self.world.wait(self.payloads.read(reference_from_json(reference), **OWNER))
        return compile_playbook(content.decode(), file="pinned", kinds=tool_kinds())


@pytest.fixture(scope="module")
def emptied(world: World) -> Emptied:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "PIPELINE_TASKS_MAX", 100)
        patch.setattr(interpreter, "RETRY_WAIT_IN_WORKER_SECONDS_MAX", 0.0)
        executions = {name: world.play(case).state.execution_id for name, case in corpus().items()}
    kept = ", ".join(f"'{media_type}'" for media_type in KEPT)
    (before,) = world.sql(f"SELECT count(*) AS n FROM noetl.payload WHERE media_type NOT IN ({kept})", control=True)
    files = [path for path in (world.home / "payloads").rglob("*") if path.is_file()]
    assert before["n"] > 100
    assert files, "no result was large enough to be a file"
    world.sql(f"DELETE FROM noetl.payload WHERE media_type NOT IN ({kept})", control=True)
    shutil.rmtree(world.home / "payloads")
    (world.home / "payloads").mkdir()
    engine = world.engine.engine
    return Emptied(world, executions, Payloads(small=engine.small_payloads, large=engine.large_payloads))


def references(value: object) -> Iterator[dict[str, Any]]:
    """Every reference inside a recorded value."""
    if isinstance(value, Mapping):
        if {"sha256", "uri", "store"} <= set(value):
            yield dict(value)
        else:
            for part in value.values():
                yield from references(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from references(part)


@pytest.mark.parametrize("name", corpus())
def test_routing_is_decided_again_from_the_events_alone(emptied: Emptied, name: str) -> None:
    events = emptied.events(emptied.executions[name])
    playbook = emptied.playbook(events)
    facts = decided_again(events, playbook)
    assert facts == decided_again(events, playbook, kept=through_bytes)
    assert len(facts) < len(events)
    assert events[-1].transition_key.startswith("execution.terminal")


def test_what_the_events_refer_to_is_gone(emptied: Emptied) -> None:
    gone = 0
    for execution_id in emptied.executions.values():
        for event in emptied.events(execution_id):
            for document in references([event.meta, event.result, event.writes, event.payload_ref]):
                reading = emptied.payloads.read(reference_from_json(document), **OWNER)
                if document["media_type"] in KEPT:
                    assert emptied.world.wait(reading)
                    continue
                with pytest.raises(PayloadMissing):
                    emptied.world.wait(reading)
                gone += 1
    assert gone > 300


def test_whatever_else_is_in_the_ledger_is_decided_again_too(emptied: Emptied) -> None:
    """Children, and every other payload with which a playbook of this folder ran."""
    rows = emptied.world.sql(
        f"SELECT DISTINCT execution_id FROM noetl.event WHERE execution_id >= {SYSTEM_ID_LIMIT}", control=True
    )
    others = {row["execution_id"] for row in rows} - set(emptied.executions.values())
    assert len(others) >= 10
    for execution_id in others:
        events = emptied.events(execution_id)
        decided_again(events, emptied.playbook(events), kept=through_bytes)


def changed(event: Event, **meta: object) -> Event:
    return event._replace(meta={**event.meta, **meta})


@pytest.mark.parametrize("member", ["targets", "arcs", "writes", "key"])
def test_a_decision_that_differs_is_noticed(emptied: Emptied, member: str) -> None:
    events = emptied.events(emptied.executions["12_23"])
    place = next(n for n, event in enumerate(events) if event.event_type == "step.decided" and event.writes)
    other = {
        "targets": changed(events[place], targets=["nowhere"]),
        "arcs": changed(events[place], arcs=[7]),
        "writes": events[place]._replace(writes=[]),
        "key": events[place]._replace(transition_key="step.decided/start#2"),
    }[member]
    playbook = emptied.playbook(events)
    decided_again(events, playbook)
    with pytest.raises(AssertionError):
        decided_again([*events[:place], other, *events[place + 1 :]], playbook)


def test_an_event_that_nobody_decided_is_noticed(emptied: Emptied) -> None:
    events = emptied.events(emptied.executions["12_16"])
    playbook = emptied.playbook(events)
    place = next(n for n, event in enumerate(events) if event.event_type == "command.issued")
    for story in ([*events[: place + 1], *events[place:]], [*events[:place], *events[place + 1 :]], events[:-1]):
        with pytest.raises(AssertionError):
            decided_again(story, playbook)
    assert fold_all(events) is not None
