"""Inputs about executions that started each other.

A child lives in the shard of its parent.  What happens to one and concerns the other is therefore one commit: an input
leaves follow-ups in the batch, and the decider applies them before it commits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from noetl.core import kinds
from noetl.core.errors import Failure
from noetl.core.event import Draft
from noetl.core.execution import children
from noetl.core.execution.evolve import evolve
from noetl.core.execution.lifecycle import (
    CANCELLED,
    PARENT,
    failed_draft,
    later,
    limited_draft,
)
from noetl.core.execution.state import Command, ExecutionState
from noetl.core.reference import Result
from noetl.engine.control.batch import Batch, Cause
from noetl.engine.control.inputs import CancelInput, Turn
from noetl.engine.control.states import Held
from noetl.engine.starting import Prepared
from noetl.engine.work.pipeline.outcome import recorded_error
from noetl.ports.session import Fact

# What can be recorded when a task wants to start another playbook.
CHILD_REPORTED = (kinds.CHILD_STARTED, kinds.CHILD_TERMINAL, kinds.COMMAND_FAILED, kinds.FRAME_FAILED)


class ChildSource(Protocol):
    """Prepares the execution that a task wants to start."""

    async def prepare(self, fact: Fact) -> Prepared | Failure:
        """The execution, or why there can be none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStartInput:
    """A task starts another playbook, or learns why it cannot.  The slot is free either way: when the task goes on, any
    worker takes it up at its resume point."""

    execution_id: int
    session_id: int
    fact: Fact
    child: Prepared | Failure

    @property
    def child_id(self) -> int | None:
        return self.child.execution_id if isinstance(self.child, Prepared) else None

    def apply(self, turn: Turn, held: Held | None) -> None:
        fact = self.fact
        held, command = turn.reported(self.session_id, fact, held)
        turn.batch.carry(fact.payloads)
        if held.state.cancelling is not None:
            draft = failed_draft(command, CANCELLED, is_skipped=True)
        elif isinstance(self.child, Failure):
            draft = _refused(command, fact, self.child)
        else:
            draft = _started(command, fact, self.child, turn.now)
        held, event = turn.record(held, draft, event_time=turn.now, causation_id=held.state.last_event_id)
        turn.follow(held, event)
        if isinstance(self.child, Prepared) and event.event_type == kinds.CHILD_STARTED:
            self._begin(turn, held, command, self.child, event.event_id)
        command_now = held.state.commands.get(command.command_id)
        if command_now is None or command_now.awaits_child:
            turn.batch.dequeue.append((self.execution_id, command.command_id))
        turn.resume(self.execution_id, command.command_id)

    def _begin(self, turn: Turn, held: Held, command: Command, child: Prepared, causation_id: int) -> None:
        state = held.state
        cause = Cause(
            execution_id=child.execution_id,
            tenant_id=state.tenant_id,
            organization_id=state.organization_id,
            shard_id=held.shard_id,
            event_time=turn.now,
            parent_execution_id=state.execution_id,
        )
        link: dict[str, object] = {"command_id": command.command_id, "n": command.children + 1}
        link["waits"] = self.fact.meta["waits"]
        if command.parent_ref is not None:
            link["ref_id"] = command.parent_ref
        draft = limited_draft(child.draft, child.playbook.playbook, turn.now)
        draft = draft._replace(meta={**draft.meta, "parent": link, "depth": state.depth + 1})
        event = turn.batch.add(cause, draft, stream_version=1, causation_id=causation_id)
        turn.batch.carry(child.payloads)
        own = replace(turn, playbook=child.playbook)
        own.follow(Held(evolve(None, event), held.shard_id, event.position), event)


def _started(command: Command, fact: Fact, child: Prepared, now: str) -> Draft:
    number, given = command.children + 1, fact.meta
    waits, timeout = given["waits"] is True, given["timeout_seconds"]
    assert isinstance(timeout, int | float)
    meta: dict[str, object] = {
        **_link(command, fact, number),
        "path": fact.meta["path"] or child.playbook.playbook.path,
        "child_execution_id": str(child.execution_id),
        "playbook": child.reference,
        "waits": waits,
    }
    if child.pins.catalog is not None:
        meta["catalog"] = child.pins.catalog
    if given.get("return_step") is not None:
        meta["return_step"] = given["return_step"]
    if waits:
        meta["due_at"] = later(now, timeout)
    draft = children.child_draft(command, kinds.CHILD_STARTED, number, meta)
    return draft._replace(writes=fact.writes, payload_ref=fact.payload_ref)


def _refused(command: Command, fact: Fact, failure: Failure) -> Draft:
    number = command.children + 1
    meta = {**_link(command, fact, number), "child_execution_id": "0", "status": children.REFUSED}
    draft = children.child_draft(command, kinds.CHILD_TERMINAL, number, meta)
    lead, error = command.parent_ref, recorded_error(failure)
    result = Result(status="error", parent_ref=lead, context={"error": error}).to_json()
    return draft._replace(result=result, writes=fact.writes, payload_ref=fact.payload_ref)


def _link(command: Command, fact: Fact, number: int) -> dict[str, object]:
    path = fact.meta["path"] or f"catalog_id {fact.meta.get('catalog_id')}"
    return {"step": command.step, "attempt": fact.attempt, "n": number, "task": fact.meta["task"], "path": path}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEndedInput:
    """For a parent: an execution that one of its tasks waits for has ended."""

    execution_id: int
    child: ExecutionState

    def apply(self, turn: Turn, held: Held | None) -> None:
        if held is None or held.state.is_terminal:
            return
        draft = children.ended(held.state, self.child)
        if draft is None or draft.command_id is None:
            return
        held, event = turn.record(held, draft, event_time=turn.now, causation_id=self.child.last_event_id)
        turn.follow(held, event)
        turn.resume(self.execution_id, draft.command_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLookInput:
    """For a child, after a restart of its parent: whether it has ended meanwhile, or must be told to."""

    execution_id: int
    parent: ExecutionState

    def apply(self, turn: Turn, held: Held | None) -> None:
        if held is None:
            return
        if held.state.is_terminal:
            turn.batch.follow_ups.append(ChildEndedInput(execution_id=self.parent.execution_id, child=held.state))
        elif self.parent.cancelling is not None:
            turn.batch.follow_ups.append(cancelled_by(self.parent, self.execution_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentLookInput:
    """For a parent, after a restart of its child: a child that nobody waits for any more must end."""

    execution_id: int
    child: ExecutionState

    def apply(self, turn: Turn, held: Held | None) -> None:
        if held is not None and children.is_orphan(held.state, self.child):
            turn.batch.follow_ups.append(cancelled_by(held.state, self.child.execution_id))


def cancelled_by(parent: ExecutionState, child_id: int) -> CancelInput:
    return CancelInput(
        execution_id=child_id,
        reason=f"execution {parent.execution_id}, which started it, no longer waits for it",
        cause=PARENT,
    )


def look_around(batch: Batch, state: ExecutionState) -> None:
    """After a restart: compare an execution with its children and with its parent."""
    if state.is_terminal:
        return
    for command in state.commands.values():
        if command.child is not None and command.awaits_child:
            batch.follow_ups.append(ChildLookInput(execution_id=command.child.execution_id, parent=state))
    if state.parent_execution_id is not None and state.parent is not None and state.parent.waits:
        batch.follow_ups.append(ParentLookInput(execution_id=state.parent_execution_id, child=state))
