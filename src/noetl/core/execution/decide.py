"""`decide(state, event, playbook)`: the router.  Pure: the same arguments always give the same decision.

It is called after an event was folded and returns the events that follow from it, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from noetl.core import kinds
from noetl.core.event import Draft, Event
from noetl.core.execution.arcs import Routing, route
from noetl.core.execution.evolve import evolve
from noetl.core.execution.state import ExecutionState
from noetl.core.execution.values import NeedsWorker, Scene
from noetl.core.playbook.compile import CompiledPlaybook

_WAKES = frozenset((kinds.PLAYBOOK_INITIALIZED, kinds.COMMAND_COMPLETED, kinds.COMMAND_FAILED, kinds.STEP_DECIDED))


@dataclass(frozen=True, slots=True)
class Decision:
    """The events that follow, and the state after all of them."""

    drafts: tuple[Draft, ...]
    state: ExecutionState


def decide(state: ExecutionState, event: Event, playbook: CompiledPlaybook) -> Decision:
    """What follows from an event that `state` already contains."""
    if state.is_terminal or event.event_type not in _WAKES:
        return Decision((), state)
    run = _Run(state, event, playbook)
    if event.event_type in (kinds.COMMAND_COMPLETED, kinds.COMMAND_FAILED):
        run.settle(str(event.meta["step"]))
    run.dispatch()
    return Decision(tuple(run.drafts), run.state)


class _Run:
    """Collects drafts and folds each into the state, so that later choices see earlier ones."""

    def __init__(self, state: ExecutionState, event: Event, playbook: CompiledPlaybook) -> None:
        self.state = state
        self.drafts: list[Draft] = []
        self._event = event
        self._playbook = playbook

    def _emit(self, draft: Draft) -> None:
        self.drafts.append(draft)
        self.state = evolve(self.state, provisional(self._event, draft, self.state.version + 1))

    # --- a step run has ended: where does it lead? ---------------------------------------------------------

    def settle(self, name: str) -> None:
        pending = self.state.pending_next_actions.get(name)
        result = self.state.step_results.get(name)
        if pending is None or result is None or self.state.issued_steps.get(name) != pending.run:
            return
        if any(command.step == name for command in self.state.commands.values()):
            return  # an answer is still on its way
        scene = Scene(
            state=self.state,
            playbook=self._playbook,
            step=name,
            now=self._event.event_time,
            variables=self.state.variables,
            answers=pending.evaluations,
        )
        try:
            routing = route(scene, self._playbook.steps[name], result)
        except NeedsWorker as need:
            self._ask(name, pending.run, pending.asked + 1, need)
            return
        self._emit(_decided(name, pending.run, routing))

    def _ask(self, step: str, run: int, number: int, need: NeedsWorker) -> None:
        command_id = f"{step}#{run}/eval/{number}"
        meta: dict[str, object] = {
            "step": step,
            "run": run,
            "kind": "evaluate",
            "expression": need.expression.key,
        }
        if need.writes:
            meta["pending_writes"] = list(need.writes)
        self._emit(
            Draft(
                event_type=kinds.COMMAND_ISSUED,
                transition_key=kinds.issued_key(command_id),
                command_id=command_id,
                meta=meta,
            )
        )

    # --- what may run now ----------------------------------------------------------------------------------

    def dispatch(self) -> None:
        if self.state.failure is None:
            for step in self._ready():
                self._issue(step)
        if self._is_quiet():
            self._finish()

    def _ready(self) -> list[str]:
        """Requested steps that no other live step can still reach; when all is quiet, the first requested."""
        steps, requested = self._playbook.steps, self.state.requested_steps
        live = [name for name in (*self.state.issued_steps, *requested) if name in steps]
        waiting = sorted((name for name in requested if name not in self.state.issued_steps), key=self._order)
        ready = [
            name
            for name in waiting
            if not any(other != name and steps[other].reaches >> steps[name].number & 1 for other in live)
        ]
        if not ready and waiting and not self.state.issued_steps:
            return waiting[:1]
        return ready

    def _order(self, name: str) -> int:
        return self._playbook.steps[name].number

    def _issue(self, step: str, *, closing: bool = False) -> None:
        run = self.state.runs.get(step, 0) + 1
        command_id = f"{step}#{run}"
        parents = list(dict.fromkeys(self.state.requested_steps.get(step, ())))
        meta: dict[str, object] = {"step": step, "run": run, "kind": "step", "parents": parents}
        if closing:
            meta["closing"] = True
        self._emit(
            Draft(
                event_type=kinds.COMMAND_ISSUED,
                transition_key=kinds.issued_key(command_id),
                command_id=command_id,
                meta=meta,
            )
        )

    # --- the end -------------------------------------------------------------------------------------------

    def _is_quiet(self) -> bool:
        state = self.state
        if state.issued_steps or state.commands:
            return False
        return state.failure is not None or not state.requested_steps

    def _finish(self) -> None:
        state, playbook = self.state, self._playbook.playbook
        may_end = state.failure is None and not state.is_closing and "end" in self._playbook.steps
        if may_end and state.has_leaf_end and "end" not in state.runs:
            self._issue("end")
        elif playbook.final_step is not None and playbook.final_step not in state.runs:
            self._issue(playbook.final_step, closing=True)
        else:
            self._emit(_terminal(state))


def _decided(step: str, run: int, routing: Routing) -> Draft:
    meta: dict[str, object] = {
        "step": step,
        "run": run,
        "outcome": routing.outcome,
        "arcs": list(routing.arcs),
        "targets": list(routing.targets),
    }
    if routing.leaf:
        meta["leaf"] = True
    if routing.warnings:
        meta["warnings"] = list(routing.warnings)
    if routing.error is not None:
        meta["error"] = routing.error
    return Draft(
        event_type=kinds.STEP_DECIDED,
        transition_key=kinds.decided_key(step, run),
        meta=meta,
        writes=list(routing.writes) or None,
    )


def _terminal(state: ExecutionState) -> Draft:
    failure = state.failure
    last = state.step_results.get(state.last_step or "")
    context: dict[str, object] = {}
    reference: Mapping[str, object] | None = last.reference if last else None
    if failure is not None:
        context = {"error": failure.get("error"), "step": failure.get("step")}
        reference = None
    return Draft(
        event_type=kinds.PLAYBOOK_FAILED if failure else kinds.PLAYBOOK_COMPLETED,
        transition_key=kinds.EXECUTION_TERMINAL_KEY,
        meta={"step": failure.get("step") if failure else state.last_step},
        result={
            "status": "error" if failure else "ok",
            "reference": reference,
            "parent_ref": None,
            "context": context,
        },
    )


def provisional(cause: Event, draft: Draft, stream_version: int) -> Event:
    """A draft as an event, for folding before the shell has given it an id."""
    return Event(
        execution_id=cause.execution_id,
        event_id=0,
        tenant_id=cause.tenant_id,
        organization_id=cause.organization_id,
        event_type=draft.event_type,
        event_time=cause.event_time,
        producer="",
        transition_key=draft.transition_key,
        correlation_id=cause.correlation_id,
        command_id=draft.command_id,
        payload_ref=draft.payload_ref,
        result=draft.result,
        writes=draft.writes,
        meta=draft.meta,
        stream_version=stream_version,
    )
