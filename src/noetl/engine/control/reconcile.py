"""What follows for queue, timers and sessions from how an input changed an execution: derived by comparing, so that no
decision has to remember to clean up."""

from __future__ import annotations

import logging
from collections.abc import Callable

from noetl.core.errors import LedgerCorrupt, NoetlError
from noetl.core.execution.children import TIMEOUT
from noetl.core.execution.state import Command, CommandStatus, ExecutionState
from noetl.engine.children.inputs import ChildEndedInput, ChildStartInput, cancelled_by, look_around
from noetl.engine.control.batch import Batch
from noetl.engine.control.inputs import DecideInput, Input, RestoreInput, Turn
from noetl.engine.control.states import Held
from noetl.ports.session import Stop

log = logging.getLogger("noetl.decider")


def applied(one: Input, turn: Turn, held: Held | None) -> NoetlError | None:
    """Apply one input with all that follows for queue, timers and sessions; returns why it was refused."""

    def work() -> None:
        one.apply(turn, held)
        after = turn.batch.states.get(one.execution_id)
        if after is not None:
            before = one.before if isinstance(one, DecideInput) else held.state if held else None
            reconcile(turn.batch, before, after.state, after.shard_id)
            if isinstance(one, RestoreInput):
                look_around(turn.batch, after.state)
        born = turn.batch.states.get(one.child_id or 0) if isinstance(one, ChildStartInput) else None
        if born is not None:
            reconcile(turn.batch, None, born.state, born.shard_id)

    return supervised(one, work)


def reconcile(batch: Batch, before: ExecutionState | None, after: ExecutionState, shard_id: int) -> None:
    _keep_timers(batch, before, after, shard_id)
    if before is not None:
        _take_back(batch, before, after)
        _drain(batch, before, after)
        _stop_all(batch, before, after)
        _leave_children(batch, before, after)
    parent = after.parent_execution_id
    if after.is_terminal and parent is not None and after.parent is not None and after.parent.waits:
        batch.follow_ups.append(ChildEndedInput(execution_id=parent, child=after))


def _keep_timers(batch: Batch, before: ExecutionState | None, after: ExecutionState, shard_id: int) -> None:
    known = before.timers if before is not None else {}
    timers = {} if after.is_terminal else after.timers
    if timers is known:
        return
    for name, due_at in timers.items():
        if name not in known:
            batch.timers.append((after.execution_id, name, shard_id, due_at))
    batch.timers_gone.extend((after.execution_id, name) for name in known if name not in timers)


def _take_back(batch: Batch, before: ExecutionState, after: ExecutionState) -> None:
    """What is no longer open leaves the queue, and whoever holds it is told."""
    commands = {} if after.is_terminal else after.commands
    ended = {command_id for owner, command_id in batch.dequeue if owner == after.execution_id}
    for command in before.commands.values():
        if command.command_id not in commands and command.command_id not in ended:
            batch.dequeue.append((after.execution_id, command.command_id))
            if command.status is CommandStatus.CLAIMED:
                batch.stops.append(_stop(after.execution_id, command))


def _drain(batch: Batch, before: ExecutionState, after: ExecutionState) -> None:
    """In a stage that fails no further row begins."""
    for stage in after.loop_state.values():
        earlier = before.loop_state.get(stage.step)
        if stage.failure is None or earlier is None or earlier.failure is not None:
            continue
        for command in after.commands.values():
            if command.frame is not None and command.step == stage.step and command.status is CommandStatus.CLAIMED:
                batch.stops.append(_stop(after.execution_id, command, drain=True))


def _stop_all(batch: Batch, before: ExecutionState, after: ExecutionState) -> None:
    """In an execution that is being cancelled nothing goes on."""
    if after.cancelling is not None and before.cancelling is None:
        held = (command for command in after.commands.values() if command.status is CommandStatus.CLAIMED)
        batch.stops.extend(_stop(after.execution_id, command) for command in held)


def _leave_children(batch: Batch, before: ExecutionState, after: ExecutionState) -> None:
    """Children that nobody waits for any more are cancelled."""
    if after.cancelling is not None:
        left = list(before.commands.values()) if before.cancelling is None else []
    elif before.timers is not after.timers:
        # Every wait for a child has a timer, and there are fewer timers than commands.
        ended = (name for name in before.timers if name.startswith("child/") and name not in after.timers)
        names = (name.removeprefix("child/").rpartition("/")[0] for name in ended)
        left = [before.commands[name] for name in names if _is_left(after.commands.get(name))]
    else:
        return
    for command in left:
        if command.child is not None and command.awaits_child:
            batch.follow_ups.append(cancelled_by(after, command.child.execution_id))


def _is_left(command: Command | None) -> bool:
    """Whether a wait ended without the child."""
    outcome = command.child.outcome if command is not None and command.child is not None else None
    return outcome is None or outcome["status"] == TIMEOUT


def _stop(execution_id: int, command: Command, *, drain: bool = False) -> Stop:
    return Stop(execution_id, command.command_id, command.attempt, drain)


def supervised(one: Input, work: Callable[[], None]) -> NoetlError | None:
    """Why an input was refused.  A defect of ours stops its execution and nobody else."""
    try:
        work()
    except NoetlError as error:
        return error
    except Exception as error:  # task supervision: the decider must outlive what it cannot decide
        about = {"event": "execution.quarantined", "execution_id": one.execution_id}
        log.exception("an execution cannot be decided", extra=about)
        return LedgerCorrupt(f"execution {one.execution_id} cannot be decided: {error!r}")
    return None
