"""What follows for queue, timers and sessions from how an execution changed."""

from __future__ import annotations

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.core.execution.state import CommandStatus, ExecutionState
from noetl.engine.control.batch import Batch
from noetl.engine.control.reconcile import reconcile
from noetl.ports.session import Stop
from tests.support.loops import looping, parallel
from tests.support.playbooks import BOOM, Simulated, graph, step

SHARD = 3


def batch(**lists: object) -> Batch:
    made = Batch(ids=VirtualIds(VirtualClock()), producer="test", heads={})
    for name, value in lists.items():
        setattr(made, name, value)
    return made


def changed(before: ExecutionState, after: ExecutionState, **lists: object) -> Batch:
    made = batch(**lists)
    reconcile(made, before, after, SHARD)
    return made


def test_nothing_follows_from_nothing() -> None:
    run = looping(list(range(8)), spec=parallel(2, max_rows=4))
    assert changed(run.state, run.state).is_empty
    new = batch()
    reconcile(new, None, run.state, SHARD)
    assert new.is_empty


def test_frames_that_nobody_had_taken_leave_the_queue_when_their_loop_fails() -> None:
    run = looping(list(range(8)), spec=parallel(4, max_rows=2))
    first, second, third, fourth = run.frames
    run.take(first)
    run.take(third)
    before = run.state
    run.commit(first, {0: BOOM})
    # The end of the first frame took its own row away already.
    made = changed(before, run.state, dequeue=[(77, first)])
    assert made.dequeue == [(77, first), (77, second), (77, fourth)]
    assert made.stops == [Stop(77, third, 1, drain=True)]


def test_a_loop_that_failed_before_is_not_drained_twice() -> None:
    run = looping(list(range(12)), spec=parallel(3, max_rows=4))
    first, second, third = run.frames
    for name in run.frames:
        run.take(name)
    run.commit(first, {0: BOOM})
    before = run.state
    run.commit(second)
    made = changed(before, run.state, dequeue=[(77, second)])
    assert (made.dequeue, made.stops) == ([(77, second)], [])
    assert third in run.frames


def test_a_loop_that_does_its_best_stops_nobody() -> None:
    run = looping(list(range(8)), spec=parallel(2, max_rows=4), best_effort=True)
    first, second = run.frames
    run.take(first)
    run.take(second)
    before = run.state
    run.commit(first, {0: BOOM})
    assert changed(before, run.state, dequeue=[(77, first)]).stops == []


def test_what_somebody_holds_and_nobody_waits_for_is_stopped() -> None:
    run = Simulated(graph(step("start")))
    held = run.state.commands["start#1"]
    for status, stops in ((CommandStatus.ISSUED, []), (CommandStatus.CLAIMED, [Stop(77, "start#1", 2)])):
        before = run.state.changed({"commands": {"start#1": held._replace(status=status, attempt=2)}})
        made = changed(before, run.state.changed({"commands": {}}))
        assert (made.dequeue, made.stops) == ([(77, "start#1")], stops)


def test_timers_come_and_go_with_the_state() -> None:
    run = Simulated(graph(step("start")))
    before = run.state.changed({"timers": {"a": "1", "b": "2"}})
    after = run.state.changed({"timers": {"b": "2", "c": "3"}})
    made = changed(before, after)
    assert (made.timers, made.timers_gone) == ([(77, "c", SHARD, "3")], [(77, "a")])


def test_an_execution_that_has_ended_leaves_nothing_behind() -> None:
    run = Simulated(graph(step("start")))
    before = run.state.changed({"timers": {"a": "1"}})
    run.run()
    after = run.state.changed({"timers": {"a": "1"}})
    made = changed(before, after)
    assert (made.dequeue, made.timers_gone) == ([(77, "start#1")], [(77, "a")])
