"""Which result led to which: every result that names a payload has an id, that of its event, and points back to one
before it.

The chain is one of references.  A step that gave nothing to refer to, because it failed, was skipped or could not
begin, is passed over: whatever it requests points to what led to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl.core.errors import EnvelopeInvalid
from noetl.core.event import Event
from noetl.core.execution.state import Command, ExecutionState, Stage
from noetl.core.execution.writes import without
from noetl.core.limits import CREDENTIALS_RECORDED_MAX, INPUTS_RECORDED_MAX

_DIGEST_CHARS = 64
Changes = dict[str, Any]


def ref_id_of(event: Event) -> int | None:
    """The id of the result that an event names; None when there is nothing to refer to."""
    result: Any = event.result
    return event.event_id if result is not None and result["reference"] is not None else None


# --- what led to something -------------------------------------------------------------------------------


def result_of(state: ExecutionState, step: str | None) -> int | None:
    """The result of a step's last turn, or what led to it when that turn gave none."""
    if step is None:
        return None
    known = state.leads.get(step)
    if known is not None:
        return known
    result = state.step_results.get(step)
    return None if result is None else result.ref_id


def led_by(state: ExecutionState, steps: Sequence[str]) -> int | None:
    """The result of the last of the steps that requested something; for the first step of an execution that a task
    started, the result that led to that task."""
    for step in reversed(steps):
        found = result_of(state, step)
        if found is not None:
            return found
    return None if state.parent is None else state.parent.ref_id


def led_to(state: ExecutionState, meta: Mapping[str, Any], stage: Stage | None) -> int | None:
    """What leads to a command that is issued: to the writing of a loop's result the frame that ended last, to a
    question about a step that has ended that step's own result."""
    if meta["kind"] == "seal" and stage is not None:
        return stage.parent_ref if stage.last_ref is None else stage.last_ref
    if "parents" in meta:
        return led_by(state, meta["parents"])
    return result_of(state, meta["step"])


def source_of(state: ExecutionState, sha256: str) -> int | None:
    """The result of a step that has a digest."""
    for result in state.step_results.values():
        if result.reference is not None and result.reference.get("sha256") == sha256:
            return result.ref_id
    return None


# --- what a worker says it has used ----------------------------------------------------------------------


def with_known_inputs(state: ExecutionState, meta: Mapping[str, object]) -> Mapping[str, object]:
    """What a fact says besides, with `inputs` as they are recorded: numbers of results, also where the worker knew only
    a digest that is the one of a step's result.  Raises EnvelopeInvalid: what is recorded is walked by queries."""
    if "inputs" not in meta and "credentials" not in meta:
        return meta
    names = meta.get("credentials", [])
    is_right = isinstance(names, list) and len(names) <= CREDENTIALS_RECORDED_MAX
    if not is_right or not all(isinstance(name, str) and name for name in names):  # type: ignore[attr-defined]
        raise EnvelopeInvalid(f"credentials are at most {CREDENTIALS_RECORDED_MAX} names")
    given = meta.get("inputs", [])
    if not isinstance(given, list) or len(given) > INPUTS_RECORDED_MAX:
        raise EnvelopeInvalid(f"inputs are at most {INPUTS_RECORDED_MAX} references")
    found = {tuple(one.items()): one for one in (_input(state, one) for one in given)}
    return {**meta, "inputs": list(found.values())} if found else meta


def _input(state: ExecutionState, given: object) -> dict[str, object]:
    name, value = next(iter(given.items())) if isinstance(given, Mapping) and len(given) == 1 else ("", "")
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if name == "ref_id" and text.isascii() and text.isdigit() and 0 < int(text) < 2**63:
        return {"ref_id": int(text)}
    if name == "sha256" and len(text) == _DIGEST_CHARS and not text.strip("0123456789abcdef"):
        ref_id = source_of(state, text)
        return {"sha256": text} if ref_id is None else {"ref_id": ref_id}
    raise EnvelopeInvalid("an input is {ref_id} or {sha256}: the number of a result, or the digest of a payload")


# --- folds -----------------------------------------------------------------------------------------------


def passed(state: ExecutionState, step: str, ref_id: int | None) -> Changes:
    """A turn of a step is over that gave nothing to refer to: what led to it leads on."""
    if ref_id is None:
        return returned(state, step)
    return {"leads": {**state.leads, step: ref_id}}


def returned(state: ExecutionState, step: str) -> Changes:
    """A turn of a step is over that gave a result."""
    return {"leads": without(state.leads, step)} if step in state.leads else {}


def collected(state: ExecutionState, event: Event, command: Command) -> Changes:
    """A worker has made, or found, the collection of a loop: its frames come from there."""
    ref_id, stage = ref_id_of(event), state.loop_state.get(command.step)
    if command.kind != "collect" or ref_id is None or stage is None:
        return {}
    return {"loop_state": {**state.loop_state, command.step: stage._replace(parent_ref=ref_id)}}
