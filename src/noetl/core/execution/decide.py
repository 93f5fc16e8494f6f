"""`decide(state, event, playbook)`: the router.  Pure: the same arguments always give the same decision.

It is called after an event was folded and returns the events that follow from it, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from noetl.core import kinds
from noetl.core.event import Draft, Event
from noetl.core.execution import admission, children, lifecycle, lineage
from noetl.core.execution.arcs import SKIPPED, Routing, bypass, route
from noetl.core.execution.evolve import evolve
from noetl.core.execution.looping import gathering, loops, telling
from noetl.core.execution.looping.policy import CannotLoop
from noetl.core.execution.state import ADMIT, SKIP, ExecutionState, Pending, Stage, StepResult
from noetl.core.execution.values import NeedsWorker, Scene, was_skipped
from noetl.core.limits import STEPS_SKIPPED_AT_ONCE_MAX, WARNINGS_MAX
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.reference import parent_document

_COMMAND_ENDED = frozenset((kinds.COMMAND_COMPLETED, kinds.COMMAND_FAILED))
_FRAME_ENDED = frozenset((kinds.FRAME_COMMITTED, kinds.FRAME_FAILED))
_BEGINS = frozenset((kinds.PLAYBOOK_INITIALIZED, kinds.EXECUTION_SEEDED))
_WAKES = frozenset((*_BEGINS, kinds.STEP_DECIDED, kinds.TIMER_FIRED, *_COMMAND_ENDED, *_FRAME_ENDED))


@dataclass(frozen=True, slots=True)
class Decision:
    """The events that follow, and the state after all of them."""

    drafts: tuple[Draft, ...]
    state: ExecutionState


def decide(state: ExecutionState, event: Event, playbook: CompiledPlaybook) -> Decision:
    """What follows from an event that `state` already contains."""
    if state.is_terminal or state.is_seeding or (event.event_type not in _WAKES and state.cancelling is None):
        return Decision((), state)
    run = _Run(state, event, playbook)
    run.tell()
    if event.event_type == kinds.TIMER_FIRED:
        run.time_out(str(event.meta["name"]))
    elif state.cancelling is not None:
        run.close()
    elif event.event_type in _COMMAND_ENDED:
        run.settle(str(event.meta["step"]))
    elif event.event_type in _FRAME_ENDED:
        run.work(str(event.meta["step"]))
    elif event.event_type == kinds.EXECUTION_SEEDED:
        for step in tuple(state.loop_state):
            run.work(step)
    if run.state.cancelling is None:
        run.dispatch()
    return Decision(tuple(run.drafts), run.state)


class _Run:
    """Collects drafts and folds each into the state, so that later choices see earlier ones."""

    def __init__(self, state: ExecutionState, event: Event, playbook: CompiledPlaybook) -> None:
        self.state = state
        self.drafts: list[Draft] = []
        self._event = event
        self._playbook = playbook
        # How many steps were turned down by this decision.
        self._skips = 0

    def _emit(self, draft: Draft) -> None:
        self.drafts.append(draft)
        self.state = evolve(self.state, provisional(self._event, draft, self.state.version + 1))

    def _emit_all(self, drafts: Iterable[Draft]) -> None:
        for draft in tuple(drafts):
            self._emit(draft)

    def tell(self) -> None:
        """Say of a stage or a shard that this event ended it."""
        event, step = self._event, str(self._event.meta.get("step"))
        if event.event_type in _COMMAND_ENDED:
            self._emit_all(telling.sealed(self.state, event.command_id, step))
        elif event.event_type in _FRAME_ENDED and step in self.state.loop_state:
            self._emit_all(telling.shards_ended(self.state.loop_state[step]))

    # --- a step run has ended: where does it lead? ---------------------------------------------------------

    def settle(self, name: str) -> None:
        if name in self.state.loop_state:
            self._open(name)
            return
        pending = self.state.pending_next_actions.get(name)
        if pending is None or self.state.issued_steps.get(name) != pending.run:
            return
        if any(command.step == name for command in self.state.commands.values()):
            return  # an answer is still on its way
        result = self.state.step_results.get(name)
        if pending.phase is not None:
            self._begin(name)
        elif result is not None:
            self._route(name, pending, result)

    def _route(self, name: str, pending: Pending, result: StepResult) -> None:
        try:
            routing = route(self._scene(name, name, pending), self._playbook.steps[name], result)
        except NeedsWorker as need:
            self._ask(name, pending, need)
        else:
            self._emit(_decided(name, pending.run, routing))

    def _scene(self, owner: str, step: str | None, pending: Pending, *, is_skipped: bool = False) -> Scene:
        return Scene(
            state=self.state,
            playbook=self._playbook,
            owner=owner,
            step=step,
            now=self._event.event_time,
            variables=self.state.variables,
            answers=pending.evaluations,
            is_skipped=is_skipped,
        )

    def _opening(self, name: str, parents: list[str], pending: Pending) -> Scene:
        """What is looked at before a step runs: `output` and `event` are those of the last step that requested it."""
        parent = parents[-1] if parents else None
        skipped = parent is not None and was_skipped(self.state, parent)
        return self._scene(name, parent, pending, is_skipped=skipped)

    def _parents(self, name: str) -> list[str]:
        pending = self.state.pending_next_actions.get(name)
        if pending is not None and pending.phase is not None:
            return list(pending.parents)
        return list(dict.fromkeys(self.state.requested_steps.get(name, ())))

    def _ask(self, step: str, pending: Pending, need: NeedsWorker | None, **extra: object) -> None:
        """Ask a worker for the value of an expression, or for the collection of a loop."""
        meta: dict[str, object] = {"step": step, "run": pending.run, **extra}
        if need is None:
            meta["kind"] = "collect"
        else:
            meta |= {"kind": "evaluate", "expression": need.expression.key}
            if need.writes:
                meta["pending_writes"] = list(need.writes)
        self._emit(_issued(f"{step}#{pending.run}/eval/{pending.asked + 1}", meta))

    # --- a loop --------------------------------------------------------------------------------------------

    def _open(self, name: str, *, closing: bool = False, notes: Mapping[str, object] | None = None) -> None:
        """Begin a loop, or go on beginning it after a worker's answer.  `notes` go to its opening."""
        known = self.state.loop_state.get(name)
        if known is not None and known.is_open:
            # Frames may have waited for outputs to be written down.
            self.work(name)
            return
        if known is not None and any(command.step == name for command in self.state.commands.values()):
            return
        step = self._playbook.steps[name]
        assert step.loop is not None
        if known is None:
            run, parents = self.state.runs.get(name, 0) + 1, self._parents(name)
            said = {**({"closing": True} if closing else {}), **self._limit(name), **(notes or {})}
            self._emit(telling.opened(f"{name}#{run}", name, run, step.loop, parents=parents, notes=said))
            known = self.state.loop_state[name]
        parents = list(known.parents)
        pending = self.state.pending_next_actions.get(name, Pending(run=known.run))
        try:
            opened = loops.open_loop(self._opening(name, parents, pending), step, step.loop)
        except loops.NeedsCollection:
            self._ask(name, pending, None, parents=parents)
        except NeedsWorker as need:
            self._ask(name, pending, need, parents=parents)
        except CannotLoop as refusal:
            self._end(known, loops.ended(known, "refused", refusal.error))
        else:
            self._emit(loops.started(known.stage_id, name, known.run, opened, parents=parents))
            self._emit_all(telling.fanout_started(self.state.loop_state[name]))
            self.work(name)

    def work(self, name: str) -> None:
        """Give out the frames of a loop that may run now, or end it."""
        stage = self.state.loop_state.get(name)
        if stage is None or not stage.is_open or stage.is_sealing:
            return
        end = loops.end_of(stage, self.state)
        if end is not None:
            self._end(stage, end)
        elif stage.failure is None and loops.may_go_on(self.state):
            if not gathering.is_behind(stage):
                self._emit_all(loops.frames(stage))
            self._emit_all(gathering.wanted(stage))

    def _end(self, stage: Stage, end: Draft) -> None:
        """End a loop; a worker writes its result when there can be one."""
        self._emit(end)
        self._emit_all(telling.fanin_completed(stage, end))
        if stage.step in self.state.loop_state:
            meta: dict[str, object] = {"step": stage.step, "run": stage.run, "kind": "seal"}
            self._emit(_issued(f"{stage.stage_id}/seal", meta)._replace(stage_id=stage.stage_id))
        else:
            self._emit_all(telling.closed(stage, str(end.meta["status"])))
            self.settle(stage.step)

    # --- before its time -----------------------------------------------------------------------------------

    def time_out(self, name: str) -> None:
        """A timer has fired.  What it was about may be over already."""
        kind, _, rest = name.partition("/")
        now = self._event.event_time
        if self.state.cancelling is not None:
            self.close()
        elif name == lifecycle.EXECUTION_TIMER:
            seconds = self._playbook.playbook.timeout_seconds or 0.0
            reason = str(lifecycle.time_error("the execution", seconds, "")["message"])
            self._emit(lifecycle.cancel_requested(self.state, now=now, reason=reason, cause=lifecycle.TIMEOUT))
            self.close()
        elif kind == "step":
            step, _, run = rest.rpartition("#")
            self._step_time_out(step, int(run))
        elif kind == "child":
            command_id, _, number = rest.rpartition("/")
            end = children.timed_out(self.state, command_id, int(number))
            if end is not None:
                self._emit(end)

    def _step_time_out(self, name: str, run: int) -> None:
        if self.state.issued_steps.get(name) != run:
            return
        seconds = self._playbook.steps[name].timeout_seconds or 0.0
        error = lifecycle.time_error(f"step {name!r}", seconds, "step_timeout")
        for draft in tuple(lifecycle.taken_back(self.state, name, error)):
            # With the first frame of a loop that fails, the fold takes back those that nobody has begun.
            if (draft.frame_id or draft.command_id) in self.state.commands:
                self._emit(draft)
        stage = self.state.loop_state.get(name)
        if stage is not None:
            self._emit_all(telling.shards_ended(stage))
            stage = self.state.loop_state[name]
        if stage is None:
            self.settle(name)
        elif not stage.is_sealing:
            status = "failed" if stage.is_open else "refused"
            self._end(stage, loops.ended(stage, status, stage.failure or error))

    def close(self) -> None:
        """Close an execution that is being cancelled, when nothing of it runs any more."""
        if lifecycle.is_over(self.state, self._event):
            for stage in tuple(self.state.loop_state.values()):
                if stage.is_open and not stage.is_sealing:
                    self._emit(loops.ended(stage, "stopped", lifecycle.end_error(self.state)))
                self._emit_all(telling.closed(stage, "stopped"))
            self._emit(lifecycle.closed(self.state))

    def _limit(self, name: str) -> dict[str, object]:
        """When a run of this step that begins now has taken too long."""
        seconds = self._playbook.steps[name].timeout_seconds
        return {} if seconds is None else {"due_at": lifecycle.later(self._event.event_time, seconds)}

    # --- what may run now ----------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Begin what may begin.  A step that is turned down has ended at once: what it held up may begin too."""
        while not self.state.is_terminal:
            skips = self._skips
            for step in self._ready():
                if self.state.failure is None:
                    self._begin(step)
            if self._is_quiet():
                self._finish()
            if self._skips == skips:
                return

    def _ready(self) -> list[str]:
        """Requested steps that no other live step can still reach; when all is quiet, the first requested."""
        steps, requested = self._playbook.steps, self.state.requested_steps
        if not requested or self.state.failure is not None:
            return []
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

    def _begin(self, name: str, *, closing: bool = False) -> None:
        """A step whose turn it is: it runs, it is turned down, or a worker is asked which of the two."""
        rules = self._playbook.steps[name].admission
        if rules is None:
            self._issue(name, closing=closing)
            return
        pending = self.state.pending_next_actions.get(name)
        if pending is not None and not loops.may_go_on(self.state):
            self._turn_down(name, closing, admission.Verdict(admission.FAILING))
            return
        pending = pending or Pending(run=self.state.runs.get(name, 0) + 1)
        parents = self._parents(name)
        try:
            verdict = admission.verdict(self._opening(name, parents, pending), rules)
        except NeedsWorker as need:
            self._ask(name, pending, need, phase=ADMIT, parents=parents, **({"closing": True} if closing else {}))
            return
        if verdict.turned_down is None:
            notes = {"warnings": list(verdict.warnings)} if verdict.warnings else {}
            self._issue(name, closing=closing, notes=notes)
        else:
            self._turn_down(name, closing, verdict)

    def _turn_down(self, name: str, closing: bool, verdict: admission.Verdict) -> None:
        """Record that a step does not run.  Only one whose deprecated guard says no leads on."""
        run, parents = self.state.runs.get(name, 0) + 1, self._parents(name)
        about: dict[str, object] = {"parents": parents, **({"closing": True} if closing else {})}
        error = admission.runaway(name) if self._skips >= STEPS_SKIPPED_AT_ONCE_MAX else verdict.error
        routing = Routing(outcome=SKIPPED if error is None else "failed", warnings=verdict.warnings, error=error)
        if verdict.turned_down == admission.GUARDED and error is None:
            pending = self.state.pending_next_actions.get(name) or Pending(run=run)
            try:
                routing = bypass(self._scene(name, name, pending, is_skipped=True), self._playbook.steps[name])
            except NeedsWorker as need:
                self._ask(name, pending, need, phase=SKIP, **about)
                return
            routing = routing._replace(warnings=(*verdict.warnings, *routing.warnings)[:WARNINGS_MAX])
        self._skips += 1
        draft = _decided(name, run, routing)
        self._emit(draft._replace(meta={**draft.meta, "reason": verdict.turned_down, **about}))

    def _issue(self, step: str, *, closing: bool = False, notes: Mapping[str, object] | None = None) -> None:
        if self._playbook.steps[step].loop is not None:
            self._open(step, closing=closing, notes=notes)
            return
        run = self.state.runs.get(step, 0) + 1
        command_id = f"{step}#{run}"
        meta: dict[str, object] = {"step": step, "run": run, "kind": "step", "parents": self._parents(step)}
        meta |= {**self._limit(step), **(notes or {})}
        if closing:
            meta["closing"] = True
        self._emit(_issued(command_id, meta))

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
            self._begin("end")
        elif playbook.final_step is not None and playbook.final_step not in state.runs:
            self._begin(playbook.final_step, closing=True)
        else:
            self._emit(_terminal(state))


def _issued(command_id: str, meta: Mapping[str, object]) -> Draft:
    return Draft(
        event_type=kinds.COMMAND_ISSUED,
        transition_key=kinds.issued_key(command_id),
        command_id=command_id,
        meta=meta,
    )


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
    if routing.args:
        meta["args"] = routing.args
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
    lead = None if last is None else last.ref_id
    if failure is not None:
        context = {"error": failure.get("error"), "step": failure.get("step")}
        reference, lead = None, lineage.result_of(state, str(failure.get("step")))
    return Draft(
        event_type=kinds.PLAYBOOK_FAILED if failure else kinds.PLAYBOOK_COMPLETED,
        transition_key=kinds.EXECUTION_TERMINAL_KEY,
        meta={"step": failure.get("step") if failure else state.last_step},
        result={
            "status": "error" if failure else "ok",
            "reference": reference,
            "parent_ref": parent_document(lead),
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
        stage_id=draft.stage_id,
        frame_id=draft.frame_id,
        stream_version=stream_version,
    )
