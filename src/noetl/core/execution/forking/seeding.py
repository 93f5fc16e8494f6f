"""The seed of a new execution: another one's state at a moment, with some loops open again, as its first events.

Pure: which rows of a frame succeeded stands in payloads, and comes in as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from noetl.core import kinds
from noetl.core.codec import canonical_bytes, parse_json
from noetl.core.event import Draft, Event
from noetl.core.execution.forking.folding import MAPPINGS, OUTPUT, SINGLE, ranges_of
from noetl.core.execution.forking.outputs import is_whole
from noetl.core.execution.looping import loops, telling
from noetl.core.execution.looping.windows import Range, common, rows_in
from noetl.core.execution.state import ExecutionState, FrameOutput, Part, Stage
from noetl.core.limits import SEED_EVENT_BYTES, SEED_RANGES_PER_OUTPUT

# What the first event of an execution says only of itself, and not of its playbook and its inputs.
_OWN = frozenset(("fork", "parent", "depth", "due_at"))
_REQUESTED = "requested_steps"


class Reopened(NamedTuple):
    """A loop whose rows run again, except those that `outputs` have outcomes of."""

    stage: Stage
    outputs: tuple[FrameOutput, ...]

    @property
    def open_rows(self) -> int:
        return self.stage.total - sum(rows_in(ranges_of(output)) for output in self.outputs)


class Seed(NamedTuple):
    """The first event and those that bring the state."""

    initialized: Draft
    drafts: tuple[Draft, ...]


# --- what a loop keeps -----------------------------------------------------------------------------------


def must_be_opened(stage: Stage, output: FrameOutput) -> bool:
    """Whether only the payload of a frame tells which of its rows succeeded."""
    return not is_whole(stage) and 0 < output.failed < output.rows


def kept_outputs(stage: Stage, succeeded: Mapping[int, Sequence[Range]], *, origin: int) -> tuple[FrameOutput, ...]:
    """What the new execution need not run: the outcomes of rows that succeeded.  `succeeded` has these rows for the
    outputs, by their place, that had to be opened."""
    found: list[FrameOutput] = []
    for place, output in enumerate(stage.outputs):
        known = output if output.origin is not None else output._replace(origin=origin)
        if output.failed == 0 and (output.error is None or not is_whole(stage)):
            # Also of a frame that was given up when all of its rows had an outcome.
            found.append(known._replace(error=None))
        elif place in succeeded:
            found.extend(_cut(known, succeeded[place]))
    return tuple(found)


def _cut(output: FrameOutput, rows: Sequence[Range]) -> Iterator[FrameOutput]:
    """The part of an output that its good rows are.  Nothing is copied: ranges of what is stored."""
    parts = output.parts
    if output.reference is not None:
        parts = (Part(output.reference, ((output.first, output.first + output.rows),)),)
    for part in parts:
        good = common(part.ranges, rows)
        for start in range(0, len(good), SEED_RANGES_PER_OUTPUT):
            some = good[start : start + SEED_RANGES_PER_OUTPUT]
            first, end = some[0][0], some[-1][1]
            cut = Part(part.reference, tuple(some), shift=part.shift)
            yield output._replace(first=first, rows=end - first, reference=None, parts=(cut,), error=None, failed=0)


# --- events ----------------------------------------------------------------------------------------------


def seed(first: Event, state: ExecutionState, reopened: Sequence[Reopened], *, position: int, kind: str) -> Seed:
    """The events of a new execution that begins with `state`: that of the execution whose `first` event this is, as far
    as it holds at a position.  Its content, its inputs and all that it was bound to are the same."""
    before = _without(state, reopened)
    first_names = [name for name in (*SINGLE, *MAPPINGS) if name != _REQUESTED]
    drafts: list[Draft] = [_part({"state": some}) for some in _chunks(_members(before, first_names))]
    for one in reopened:
        drafts.extend(_opened(one.stage))
    if state.requested_steps:
        # An opening uses up what is requested of its step: here that is for the run behind the reopened one.
        drafts.extend(_part({"state": some}) for some in _chunks(_members(state, [_REQUESTED])))
    for one in reopened:
        drafts.extend(_kept(one))
    numbered = []
    seeds = 0
    for draft in drafts:
        key, meta = draft.transition_key, draft.meta
        if draft.event_type == kinds.EXECUTION_SEEDED:
            seeds += 1
            key, meta = kinds.seeded_key(seeds), {"n": seeds, **meta}
        # As it is read back: whoever folds it now and whoever replays it must see the same order of keys.
        numbered.append(draft._replace(transition_key=key, meta=_stored(meta)))
    fork = {"execution_id": str(state.execution_id), "position": position, "kind": kind, "seeds": seeds}
    own = {**{name: value for name, value in first.meta.items() if name not in _OWN}, "fork": fork}
    initialized = Draft(event_type=kinds.PLAYBOOK_INITIALIZED, transition_key=kinds.INITIALIZED_KEY, meta=_stored(own))
    return Seed(initialized, tuple(numbered))


def _stored(meta: Mapping[str, object]) -> Mapping[str, object]:
    document: Any = parse_json(canonical_bytes(meta))
    return document  # type: ignore[no-any-return]


def _without(state: ExecutionState, reopened: Sequence[Reopened]) -> ExecutionState:
    """A state in which some loops have not begun: their own event begins them."""
    runs = dict(state.runs)
    for one in reopened:
        before = one.stage.run - 1
        if before:
            runs[one.stage.step] = before
        else:
            runs.pop(one.stage.step, None)
    return state.changed({"runs": runs})


def _opened(stage: Stage) -> Iterator[Draft]:
    yield telling.reopened(stage)
    opened = loops.Opened(stage.collection, stage.total, stage.policy)
    draft = loops.started(stage.stage_id, stage.step, stage.run, opened, parents=list(stage.parents))
    yield draft if stage.claimed is None else draft._replace(meta={**draft.meta, "claimed": stage.claimed})
    yield from telling.fanout_started(stage._replace(is_told=True))


def _members(state: ExecutionState, names: Iterable[str]) -> Iterator[tuple[str, str | None, object]]:
    """Field, key and value of what is seeded of some fields; what has its default is not."""
    for name in names:
        value = getattr(state, name)
        if name in MAPPINGS:
            for key, member in value.items():
                yield name, key, MAPPINGS[name].encode(member)
        elif value:
            yield name, None, value


def _chunks(members: Iterable[tuple[str, str | None, object]]) -> Iterator[dict[str, Any]]:
    """Parts of a state, each small enough for an event.  There is always one."""
    chunk: dict[str, Any] = {}
    size = 0
    for name, key, value in members:
        length = len(canonical_bytes([name, key, value]))
        if size + length > SEED_EVENT_BYTES and chunk:
            yield chunk
            chunk, size = {}, 0
        size += length
        if key is None:
            chunk[name] = value
        else:
            chunk.setdefault(name, []).append([key, value])
    yield chunk


def _kept(loop: Reopened) -> Iterator[Draft]:
    """What a loop has kept, by reference.  At least one event: nothing is decided before the last one."""
    about = {"step": loop.stage.step}
    chunk: list[object] = []
    size = 0
    for output in sorted(loop.outputs, key=lambda one: one.first):
        document = OUTPUT.encode(output)
        length = len(canonical_bytes(document))
        if size + length > SEED_EVENT_BYTES and chunk:
            yield _part({**about, "outputs": chunk}, loop.stage.stage_id)
            chunk, size = [], 0
        chunk.append(document)
        size += length
    yield _part({**about, "outputs": chunk}, loop.stage.stage_id)


def _part(meta: Mapping[str, object], stage_id: str | None = None) -> Draft:
    return Draft(event_type=kinds.EXECUTION_SEEDED, transition_key="", meta=meta, stage_id=stage_id)
