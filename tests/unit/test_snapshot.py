"""Snapshots: a state comes back exactly, and whatever does not fit is as if it were not there."""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.core.execution.looping.profile import Profile, TaskCost
from noetl.core.execution.placing.places import Places
from noetl.core.execution.state import (
    Child,
    Claim,
    Command,
    CommandStatus,
    Entry,
    ExecutionState,
    Frame,
    FrameOutput,
    Job,
    Looped,
    Parent,
    Part,
    Pending,
    Script,
    Shards,
    Slot,
    Stage,
    StagePolicy,
    Status,
    StepResult,
)
from noetl.core.snapshot import snapshot as module
from noetl.core.snapshot.fields import coder_of
from noetl.core.snapshot.snapshot import (
    Snapshot,
    restore,
    state_checksum,
    state_document,
    state_from_document,
    take,
)

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6
)
REFERENCE = {"kind": "payload", "uri": "noetl://t", "sha256": "a" * 64, "bytes": 3}


KNOWN = (
    *(Entry, StepResult, Part, Claim, Frame, FrameOutput, Child, Job, Script, Parent, Command, StagePolicy, Slot),
    *(Shards, TaskCost, Profile, Stage, Looped, Pending, Places, ExecutionState),
)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation of the state; every field is filled, also where it has a default."""
    if kind is object:
        return VALUES
    if kind is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if kind in KNOWN:
        return records(kind)
    origin, given = get_origin(kind), get_args(kind)
    if origin is types.UnionType:
        return st.one_of([values(one) for one in given])
    if origin is tuple:
        if given[-1] is Ellipsis:
            return st.lists(values(given[0]), max_size=2).map(tuple)
        return st.tuples(*(values(one) for one in given))
    if origin is Mapping:
        return st.dictionaries(values(given[0]), values(given[1]), max_size=2)
    if origin is Sequence:
        # Where nothing was recorded there is the default.
        return st.lists(values(given[0]), min_size=1, max_size=2) | st.just(())
    strategy: st.SearchStrategy[Any] = st.from_type(kind)
    return strategy


@functools.cache
def records(kind: Any) -> st.SearchStrategy[Any]:
    if kind is Entry:
        # One level of parts is enough.
        flat = st.builds(Entry, VALUES, st.none() | st.just(REFERENCE), st.tuples(st.text(), st.integers()))
        patches = st.lists(st.tuples(st.tuples(st.text()), flat), max_size=2).map(tuple)
        return st.builds(Entry, VALUES, st.none() | st.just(REFERENCE), st.just(("a", 0)), patches)
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: values(hints[name]) for name in hints})


def through(state: ExecutionState) -> ExecutionState:
    restored = restore(take(state, shard_id=1, position=2))
    assert restored is not None
    return restored


def order_of(value: Any) -> Any:
    """Keys as they stand, so that their order is compared too."""
    return json.dumps(state_document(value))


@pytest.mark.parametrize("kind", KNOWN[:-1], ids=lambda kind: kind.__name__)
def test_every_part_of_a_state_comes_back_exactly(kind: Any) -> None:
    coder = coder_of(kind)

    @settings(max_examples=12, deadline=None)
    @given(records(kind))
    def check(value: Any) -> None:
        restored = coder.decode(json.loads(json.dumps(coder.encode(value))))
        assert restored == value
        assert _kinds(restored) == _kinds(value)

    check()


@pytest.mark.parametrize("name", get_type_hints(ExecutionState))
def test_every_field_of_a_state_comes_back_exactly(name: str) -> None:
    @settings(max_examples=4, deadline=None)
    @given(values(get_type_hints(ExecutionState)[name]))
    def check(value: Any) -> None:
        state = replace(ExecutionState(execution_id=3), **{name: value})
        restored = through(state)
        assert restored == state
        assert order_of(restored) == order_of(state)
        assert _kinds(restored) == _kinds(state)

    check()


def _kinds(value: Any) -> Any:
    """The types of everything in a state: a list is no tuple, and a text is no member of an enumeration."""
    members = getattr(value, "__dict__", None)
    if members is not None:
        return type(value), {name: _kinds(member) for name, member in members.items() if not name.startswith("_")}
    if isinstance(value, dict):
        return dict, [(key, _kinds(member)) for key, member in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [_kinds(member) for member in value]
    if isinstance(value, Entry):
        return Entry, [_kinds(getattr(value, name)) for name in ("value", "reference", "path", "patches")]
    return type(value)


def full_state() -> ExecutionState:
    part = Part(REFERENCE, ((0, 2), (5, 6)), 1)
    frame = Frame(number=2, first=0, rows=9, concurrency=4, parts=(part,), heartbeats=1)
    command = Command("s#1/2", "s", 1, "frame", CommandStatus.CLAIMED, attempt=2, frame=frame)
    stage = Stage(
        *("s#1", "s", 1),
        collection=Entry(None, REFERENCE, ("rows", 0), ((("k",), Entry({"b": 1, "a": 2})),)),
        slots={1: Slot(3, is_open=True), 2: Slot()},
        outputs=(FrameOutput(0, 3, REFERENCE), FrameOutput(3, 3, None, (part,), {"code": "x"}, 1)),
        timed_rows=2.0,
    )
    return ExecutionState(
        execution_id=2**62 + 1,
        status=Status.RUNNING,
        version=12,
        last_event_id=2**62 + 99,
        commands={"s#1/2": command},
        loop_state={"s": stage},
        requested_steps={"z": (), "a": ("s",)},
        step_results={"t": StepResult(1, "ok", REFERENCE, {"k": {"v": [1, 2.0, None]}}, selected=["x"])},
    )


def test_numbers_tuples_and_the_order_of_keys_survive() -> None:
    restored = through(full_state())
    assert restored == full_state()
    assert list(restored.requested_steps) == ["z", "a"]
    entry = restored.loop_state["s"].collection
    assert entry is not None
    inner: Any = entry.patches[0][1].value
    assert list(inner) == ["b", "a"]
    assert type(restored.loop_state["s"].timed_rows) is float


def test_the_checksum_does_not_depend_on_the_order_of_keys() -> None:
    state = full_state()
    other = state.changed({"requested_steps": {"a": ("s",), "z": ()}})
    assert order_of(other) != order_of(state)
    assert state_checksum(other) == state_checksum(state)
    assert state_checksum(state.changed({"requested_steps": {"z": ()}})) != state_checksum(state)


def test_what_has_its_default_takes_no_room() -> None:
    assert state_document(ExecutionState(execution_id=3)) == {"execution_id": 3}
    assert state_from_document({"execution_id": 3}) == ExecutionState(execution_id=3)


MISFITS = {
    "of another fold": {"code_version": "0"},
    "folded through other upcasters": {"upcaster_digest": "0" * 64},
    "with another checksum": {"checksum": "0" * 64},
    "over other payloads": {"payload_root": "0" * 64},
    "of another execution": {"execution_id": 7},
    "of another version": {"stream_version": 11},
    "of another event": {"last_event_id": 11},
    "of another tenant": {"tenant_id": "other"},
    "of another organization": {"organization_id": "other"},
    "that is torn": {"state": b'{"execution_id":'},
    "that is no text": {"state": b"\xff\xfe\x00"},
    "that is no object": {"state": b"[]"},
    "that is empty": {"state": b""},
}


@pytest.mark.parametrize("fields", MISFITS.values(), ids=MISFITS)
def test_a_snapshot_is_ignored(fields: dict[str, Any]) -> None:
    good = take(full_state(), shard_id=1, position=20)
    assert restore(good) == full_state()
    assert restore(replace(good, **fields)) is None


def test_one_changed_byte_is_noticed() -> None:
    good = take(full_state(), shard_id=1, position=20)
    for place in range(0, len(good.state), 7):
        changed = good.state[:place] + bytes([good.state[place] ^ 1]) + good.state[place + 1 :]
        assert restore(replace(good, state=changed)) is None, place


def test_the_root_is_of_the_payloads_that_the_state_names() -> None:
    def root(state: ExecutionState) -> str:
        return take(state, shard_id=1, position=1).payload_root

    state = full_state()
    assert root(state.changed({"version": 13})) == root(state)
    other = {**REFERENCE, "sha256": "b" * 64}
    assert root(state.changed({"variables": {"x": Entry(None, other)}})) != root(state)
    # A digest that is a value of the user's names nothing.
    assert root(state.changed({"variables": {"x": Entry({"sha256": "b" * 64})}})) == root(state)


def test_a_field_that_snapshots_cannot_keep_shows_at_once() -> None:
    with pytest.raises(AssertionError, match="snapshots cannot keep"):
        coder_of(set[str])
    with pytest.raises(AssertionError, match="apart"):
        coder_of(Entry | Slot)


def test_the_bytes_of_a_state_are_not_shown() -> None:
    assert "execution_id" in repr(take(full_state(), shard_id=1, position=1))
    assert "loop_state" not in repr(take(full_state(), shard_id=1, position=1))
    assert module.Snapshot is Snapshot
