"""What of an execution's ledger holds for a fork: everything but what is to be done again, and what followed from that.

Two looks at the events, in order and page by page: one that finds out how everything ended, and one that folds what
holds.  A step run holds when it has ended, not by the execution's own end, and no request that led to it is lost; a
loop that is reopened holds up to the moment when it was worked off."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from noetl.core import kinds
from noetl.core.event import Event
from noetl.core.execution.admission import FAILING
from noetl.core.execution.evolve import evolve
from noetl.core.execution.forking.outputs import is_whole, outputs_of
from noetl.core.execution.state import ExecutionState, Stage
from noetl.core.execution.writes import write
from noetl.core.results.frames import FRAME_EVENTS, FrameRow, Frames

_IDENTITY = re.compile(r"(.*)#(\d+)(?:/(?:(?:eval|gather)/\d+|seal|\d+))?", re.DOTALL)
_EXECUTION = frozenset(
    (kinds.PLAYBOOK_COMPLETED, kinds.PLAYBOOK_FAILED, kinds.EXECUTION_CANCELLED, kinds.CANCEL_REQUESTED)
)


class StepRun(NamedTuple):
    step: str
    run: int


def run_of(event: Event) -> StepRun | None:
    """The step run that an event is about; None for one about the execution itself."""
    meta: Any = event.meta
    if event.event_type == kinds.STEP_DECIDED:
        return StepRun(str(meta["step"]), int(meta["run"]))
    identity = event.command_id or event.stage_id
    if event.event_type == kinds.TIMER_FIRED:
        kind, _, rest = str(meta["name"]).partition("/")
        identity = rest if kind == "step" else rest.rpartition("/")[0]
    found = _IDENTITY.fullmatch(identity) if identity else None
    return None if found is None else StepRun(found[1], int(found[2]))


class Survey:
    """How the step runs of an execution ended."""

    def __init__(self) -> None:
        self.first: Event | None = None
        self.position = 0
        self.is_terminal = False
        self.holding: set[StepRun] = set()
        """Step runs that have ended and need not be repeated."""
        self._cursors: set[StepRun] = set()
        self._open: list[StepRun] = []
        self._worked_off: list[StepRun] = []

    @property
    def unfinished(self) -> list[StepRun]:
        """Loops of which some items failed or never ran, and those that wait for their result only."""
        return [*self._open, *self.unsealed]

    @property
    def unsealed(self) -> list[StepRun]:
        """Loops whose rows all went well and whose step has not come to its end: nothing of them runs again."""
        return [run for run in self._worked_off if run not in self.holding]

    def chosen(self, step: str | None) -> list[StepRun]:
        """The loops that may be reopened, of all steps or of one.  What only waits for its result is always among them:
        otherwise all of it would run again."""
        unsealed = self.unsealed
        return [run for run in self.unfinished if step in (None, run.step) or run in unsealed]

    def see(self, event: Event) -> None:
        meta: Any = event.meta
        self.first = self.first or event
        self.position = event.position
        self.is_terminal = self.is_terminal or kinds.KINDS[event.event_type].closes
        run = run_of(event)
        if run is None:
            return
        if event.event_type == kinds.STEP_DECIDED and meta["outcome"] != "failed" and meta.get("reason") != FAILING:
            self.holding.add(run)
        elif event.event_type == kinds.LOOP_STARTED and "cursor" in meta:
            self._cursors.add(run)
        elif event.event_type == kinds.LOOP_DONE and meta["status"] != "refused":
            if meta["done"] - meta["failed"] < meta["total"]:
                self._open.append(run)
            elif meta["status"] == "ok" or run not in self._cursors:
                # A cursor that was stopped, or could not claim, may have left rows that nobody has recorded.
                self._worked_off.append(run)


def _is_without_output(event: Event) -> bool:
    """Whether a frame ended of which only what was persisted is there; not one whose claim was rolled back."""
    result: Any = event.result
    return result["reference"] is None and event.meta.get("claim") is None


class Refold:
    """The fold of what holds, with some loops reopened."""

    def __init__(self, survey: Survey, reopened: Collection[StepRun]) -> None:
        self._survey = survey
        self._reopened = frozenset(reopened)
        self._begun: set[StepRun] = set()
        self._dropped: set[StepRun] = set()
        self._lost: set[tuple[str, str]] = set()
        self._entry = ""
        self._frames: dict[StepRun, Frames] = {}
        self._found: list[StepRun] = []
        self.state: ExecutionState | None = None

    @property
    def stages(self) -> list[tuple[Stage, Frames]]:
        """The loops that are reopened, as they were when they were worked off, and their frames."""
        assert self.state is not None
        found = []
        for run in self._found:
            stage, frames = self.state.loop_state[run.step], self._frames.get(run, Frames())
            if stage.cursor is None:
                stage = stage._replace(outputs=outputs_of(stage, frames))
            found.append((stage, frames))
        return found

    def unsaid(self, event: Event) -> list[Mapping[str, Any]]:
        """Where rows were persisted whose frames end with this event, and were not ended by who ran them: what these
        rows wrote to the context stands there, and in no event."""
        if event.event_type not in (kinds.FRAME_FAILED, kinds.LOOP_DONE):
            return []
        run = run_of(event)
        frames = self._frames.get(run) if run in self._reopened and run not in self._dropped else None
        if self.state is None or run is None or frames is None or is_whole(self.state.loop_state[run.step]):
            return []
        given_up: list[FrameRow] = []
        if event.event_type == kinds.LOOP_DONE:
            given_up = [frame for frame in frames.rows() if not frame.is_ended]
        elif _is_without_output(event):
            known = frames.known(event.frame_id)
            given_up = [] if known is None or known.is_ended else [known]
        return [part["ref"] for frame in given_up for part in frame.parts]

    def see(self, event: Event, writes: Sequence[Mapping[str, object]] = ()) -> None:
        """`writes` stand in what is `unsaid` about this event: a later one of the ledger may replace them."""
        self._see(event)
        if self.state is not None and writes:
            self.state = self.state.changed({"variables": write(self.state.variables, writes)})

    def _see(self, event: Event) -> None:
        if self.state is None:
            self._entry = str(event.meta["entry"])
            self.state = evolve(None, event)
        elif event.event_type == kinds.EXECUTION_SEEDED:
            self._fold_seed(event)
        elif event.event_type not in _EXECUTION:
            run = run_of(event)
            if run is None:
                return
            if self._holds(event, run):
                self._fold(event)
                self._forget_output(run)
            elif event.event_type == kinds.STEP_DECIDED:
                targets: Any = event.meta["targets"]
                self._lost.update((run.step, target) for target in targets)

    def _fold_seed(self, event: Event) -> None:
        """A part of what this execution began with: without the outcomes of a loop that does not hold."""
        assert self.state is not None
        before = self.state.requested_steps
        is_about_nobody = event.meta.get("step", "") not in ("", *self.state.loop_state)
        self._fold(event._replace(meta={"n": event.meta["n"]}) if is_about_nobody else event)
        after = self.state.requested_steps
        # A loop that does not hold is requested again, and so may be its next run: requests that meet are one.
        met = {step: (*before[step], *after[step]) for step in before if after[step] != before[step]}
        if met:
            self.state = self.state.changed({"requested_steps": {**after, **met}})

    def _fold(self, event: Event) -> None:
        state = self.state
        assert state is not None
        self.state = evolve(state, event._replace(stream_version=state.version + 1))

    def _forget_output(self, run: StepRun) -> None:
        """Of a reopened loop its frames are looked at in the end: what the fold collects of them would only grow."""
        state = self.state
        stage = state.loop_state.get(run.step) if state is not None and run in self._reopened else None
        if state is not None and stage is not None and stage.outputs and stage.outputs[-1].origin is None:
            less = stage._replace(outputs=stage.outputs[:-1])
            self.state = state.changed({"loop_state": {**state.loop_state, run.step: less}})

    def _holds(self, event: Event, run: StepRun) -> bool:
        if run not in self._begun:
            self._begun.add(run)
            if not self._may_begin(event, run):
                self._dropped.add(run)
                self._request_again(event, run)
        if run in self._dropped:
            return False
        if run in self._reopened:
            if event.event_type == kinds.LOOP_DONE:
                self._dropped.add(run)
                self._found.append(run)
                return False
            if event.event_type in FRAME_EVENTS:
                self._frames.setdefault(run, Frames()).see((event,))
        return True

    def _request_again(self, event: Event, run: StepRun) -> None:
        """A loop that this execution began with does not hold: nobody in this ledger has requested it."""
        state = self.state
        if state is not None and state.is_seeding:
            parents: Any = event.meta.get("parents") or ()
            requested = {**state.requested_steps, run.step: tuple(parents)}
            self.state = state.changed({"requested_steps": requested})

    def _may_begin(self, event: Event, run: StepRun) -> bool:
        if run not in self._reopened and run not in self._survey.holding:
            return False
        if any(found.step == run.step for found in self._found):
            # A run before it is open again: this one comes when that has ended.
            return False
        parents: Any = event.meta.get("parents") or ()
        if not parents or event.meta.get("closing") is True:
            # The first step of all; any other begins by itself only when all is over.
            return run == (self._entry, 1)
        return not any((parent, run.step) in self._lost for parent in parents)
