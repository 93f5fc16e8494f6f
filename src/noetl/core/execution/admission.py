"""Whether a step may run when it is its turn (dsl §2.4).  First the folds, then what the router decides.

A step that waits for the answer to a question about its admission is live, so that joins wait for it, but its run
has not begun: `runs` counts it when it is admitted or turned down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from noetl.core.errors import TemplateFailed
from noetl.core.event import Event
from noetl.core.execution.state import ExecutionState, entry_from_json
from noetl.core.execution.values import Scene, holds
from noetl.core.execution.writes import without
from noetl.core.limits import ERROR_MESSAGE_CHARS_MAX, STEPS_SKIPPED_AT_ONCE_MAX, WARNINGS_MAX
from noetl.core.playbook.compiled import CompiledAdmission

Changes = dict[str, Any]

# Why a step was turned down: by a rule, by its deprecated guard, or because the execution is failing meanwhile.
DENIED, GUARDED, FAILING = "admission", "guard", "failing"


# --- folds -----------------------------------------------------------------------------------------------


def admitting(state: ExecutionState, step: str, run: int, *, closing: bool) -> Changes:
    """A question about a step whose turn it is."""
    return {
        "issued_steps": {**state.issued_steps, step: run},
        "requested_steps": without(state.requested_steps, step),
        "is_closing": state.is_closing or closing,
    }


def turned_down(state: ExecutionState, step: str, run: int, *, closing: bool) -> Changes:
    """The end of a turn in which the step did not begin: its requests are used up.  Nothing for a step that ran."""
    if state.runs.get(step, 0) >= run:
        return {}
    requested = state.requested_steps
    return {
        "runs": {**state.runs, step: run},
        "requested_steps": requested if step in state.issued_steps else without(requested, step),
        "is_closing": state.is_closing or closing,
    }


def requested(state: ExecutionState, event: Event, before: Mapping[str, tuple[str, ...]]) -> Changes:
    """The steps that a decision requests, and what its arcs give to their runs.  Requests that meet are one; their
    `args` are merged, and the later one wins."""
    targets: Any = event.meta.get("targets", ())
    given: Any = event.meta.get("args") or {}
    after, args = dict(before), state.args
    for target in targets:
        known = args.get(target, {}) if target in after else {}
        own = {name: entry_from_json(document) for name, document in given.get(target, {}).items()}
        if own or (target in args and not known):
            args = {**without(args, target), **({target: {**known, **own}} if own else {})}
        after[target] = (*after.get(target, ()), str(event.meta["step"]))
    return {"requested_steps": after} if args is state.args else {"requested_steps": after, "args": args}


# --- decisions -------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """`turned_down` is None for a step that may run; with an `error` the execution fails."""

    turned_down: str | None
    warnings: tuple[str, ...] = ()
    error: Mapping[str, object] | None = None


def verdict(scene: Scene, admission: CompiledAdmission) -> Verdict:
    """Rules first, then the guard: who is denied leads nowhere.  Raises NeedsWorker when data is needed."""
    warnings: list[str] = []
    if not _is_admitted(scene, admission, warnings):
        return Verdict(DENIED, tuple(warnings))
    if admission.guard is None:
        return Verdict(None, tuple(warnings))
    try:
        is_on = holds(scene, admission.guard)
    except TemplateFailed as error:
        return Verdict(GUARDED, tuple(warnings), _error("routing_error", scene.owner, f"its `when` failed: {error}"))
    return Verdict(None if is_on else GUARDED, tuple(warnings))


def _is_admitted(scene: Scene, admission: CompiledAdmission, warnings: list[str]) -> bool:
    """The first rule that matches says it; a condition that fails does not match."""
    for number, (when, allow) in enumerate(admission.rules):
        try:
            if when is None or holds(scene, when):
                return allow
        except TemplateFailed as error:
            if len(warnings) < WARNINGS_MAX:
                warnings.append(f"admit rule {number}: {error}"[:ERROR_MESSAGE_CHARS_MAX])
    return True


def runaway(step: str) -> Mapping[str, object]:
    """Steps that are skipped lead to each other in a circle: nothing else would ever end it."""
    return _error("routing_error", step, f"more than {STEPS_SKIPPED_AT_ONCE_MAX:,} steps were skipped in a row")


def _error(code: str, step: str, message: str) -> Mapping[str, object]:
    text = f"step {step!r}: {message}"[:ERROR_MESSAGE_CHARS_MAX]
    return {"kind": "template", "code": code, "retryable": False, "message": text}
