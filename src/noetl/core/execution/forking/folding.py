"""The fold of an execution's seeds: the state it begins with, part by part.  Its own events alone give its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

from noetl.core import kinds
from noetl.core.event import Event
from noetl.core.execution.looping.windows import Range, merged, rows_in
from noetl.core.execution.state import ExecutionState, Fork, FrameOutput, Stage
from noetl.core.execution.writes import integer
from noetl.core.snapshot.fields import Coder, coder_of

Changes = dict[str, Any]

_HINTS = get_type_hints(ExecutionState)


def _members(name: str) -> Coder:
    """The coder of the values of a mapping."""
    return coder_of(get_args(_HINTS[name])[1])


# What a state is seeded with.  Mappings travel as pairs, so that their order outlives canonical JSON: routing may
# depend on it.
MAPPINGS: Mapping[str, Coder] = {
    name: _members(name)
    for name in (
        *("variables", "step_results", "completed_steps", "requested_steps", "runs", "skipped_steps", "args"),
        *("ended_loops", "playbooks", "leads"),
    )
}
SINGLE = ("last_step", "has_leaf_end")
OUTPUT: Coder = coder_of(FrameOutput)


def fork_of(meta: Mapping[str, Any]) -> Fork | None:
    """What the first event of an execution says about where it comes from."""
    told = meta.get("fork")
    if told is None:
        return None
    return Fork(int(told["execution_id"]), integer(told["position"]), str(told["kind"]), integer(told["seeds"]))


def _seeded(state: ExecutionState, event: Event) -> Changes | None:
    fork, meta = state.fork, event.meta
    number = integer(meta["n"])
    if fork is None or number != fork.seen + 1:
        return None
    changes: Changes = {"fork": fork._replace(seen=number)}
    given: Any = meta.get("state", {})
    for name, value in given.items():
        if name in SINGLE:
            changes[name] = value
        else:
            coder = MAPPINGS[name]
            changes[name] = {**getattr(state, name), **{key: coder.decode(member) for key, member in value}}
    if "outputs" in meta:
        outputs: Any = meta["outputs"]
        step = str(meta["step"])
        kept = _kept(state.loop_state[step], tuple(OUTPUT.decode(one) for one in outputs))
        changes["loop_state"] = {**state.loop_state, step: kept}
    return changes


def _kept(stage: Stage, outputs: tuple[FrameOutput, ...]) -> Stage:
    """A stage with outcomes that another execution has come to."""
    ranges = [one for output in outputs for one in ranges_of(output)]
    shards = stage.shards
    if stage.policy.shard_retries is not None:
        shards = shards._replace(succeeded=shards.succeeded + len(outputs))
    return stage._replace(
        outputs=(*stage.outputs, *outputs),
        kept=_joined(stage.kept, merged(ranges)),
        done=stage.done + rows_in(ranges),
        shards=shards,
    )


def _joined(kept: tuple[Range, ...], more: tuple[Range, ...]) -> tuple[Range, ...]:
    """Parts come in order: what is already there need not be looked at again."""
    if kept and more and kept[-1][0] <= more[0][0]:
        return (*kept[:-1], *merged((kept[-1], *more)))
    return merged((*kept, *more))


def ranges_of(output: FrameOutput) -> tuple[tuple[int, int], ...]:
    """The rows that an output has outcomes of."""
    if output.reference is not None:
        return ((output.first, output.first + output.rows),)
    return merged(one for part in output.parts for one in part.ranges)


FOLDS: Mapping[str, Callable[[ExecutionState, Event], Changes | None]] = {kinds.EXECUTION_SEEDED: _seeded}
