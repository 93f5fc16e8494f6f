"""What a server counts about its decisions."""

from __future__ import annotations

import asyncio

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.core.errors import AppendOverloaded, ExecutionClosed, LeaseLost, NoetlError
from noetl.core.event import seal
from noetl.engine.control.inputs import FactInput, RestoreInput
from noetl.engine.sharing.counts import ControlCounts
from noetl.engine.sharing.waiting import Waiting
from noetl.ports.session import Fact
from tests.support.aio import asynchronous
from tests.support.events import EventMaker

CLOCK = VirtualClock()
MAKE = EventMaker(ids=VirtualIds(CLOCK), clock=CLOCK)
EVENTS = [MAKE.initialized(7) for _ in range(5)]
FACT = Fact(execution_id=7, command_id="a", attempt=1, event_type="command.completed")


@asynchronous
async def test_what_is_refused_is_counted_and_refused() -> None:
    counts = ControlCounts()
    loop = asyncio.get_running_loop()
    late = Waiting(FactInput(execution_id=7, session_id=1, fact=FACT), loop.create_future())
    soon = Waiting(FactInput(execution_id=7, session_id=1, fact=FACT), loop.create_future())
    other = Waiting(RestoreInput(execution_id=7), loop.create_future())
    errors: list[NoetlError] = [ExecutionClosed("it has ended"), AppendOverloaded("later"), ExecutionClosed("ended")]
    for waiting, error in zip((late, soon, other), errors, strict=True):
        counts.refuse(waiting, error)
        assert waiting.answer.exception() is error
    counts.committed(3, [seal(event) for event in EVENTS])
    counts.inputs.append(late)
    shown = {(name, *labels.values()): value for name, labels, value in counts.samples()}
    # Only the first is a fact that came too late: the second may come again, the third is none.
    assert shown["noetl_facts_late_total",] == 1
    assert shown["noetl_inputs_refused_total", "execution_closed"] == 2
    assert shown["noetl_inputs_refused_total", "append_overloaded"] == 1
    assert (shown["noetl_commits_total",], shown["noetl_commit_events_total",]) == (1, 5)
    assert shown["noetl_inputs_waiting",] == 1


def test_facts_of_a_session_that_has_ended_are_late_though_no_decider_saw_them() -> None:
    counts = ControlCounts()
    counts.refuse_facts(LeaseLost("the session has ended"), 3)
    shown = {(name, *labels.values()): value for name, labels, value in counts.samples()}
    assert shown["noetl_facts_late_total",] == shown["noetl_inputs_refused_total", "lease_lost"] == 3
