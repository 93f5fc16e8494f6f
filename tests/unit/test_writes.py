"""Writes to the context: many rows write the same few names, and what still counts is all that is recorded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.execution.state import Entry
from noetl.core.execution.writes import compacted, write

NAMES = st.sampled_from(["a", "b", "c"])
WRITES = st.lists(
    st.builds(
        lambda path, value: {"path": path, "v": value},
        st.lists(NAMES, min_size=1, max_size=3),
        st.one_of(st.integers(0, 9), st.dictionaries(NAMES, st.integers(0, 9), max_size=2)),
    ),
    max_size=12,
)


@given(WRITES)
def test_what_is_left_out_would_have_changed_nothing(writes: list[dict[str, Any]]) -> None:
    before = {"a": Entry({"b": {"c": 1}, "x": 2}), "d": Entry(3)}
    kept = compacted(writes)
    assert write(before, kept) == write(before, writes)
    paths = [tuple(item["path"]) for item in kept]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize(
    ("paths", "kept"),
    [
        ([], []),
        ([["a"], ["a"], ["a"]], [2]),
        ([["a", "b"], ["a"]], [1]),
        ([["a"], ["a", "b"]], [0, 1]),
        ([["a"], ["a", "b"], ["a"], ["b"]], [2, 3]),
        ([["a", "b"], ["a", "c"], ["a", "b"]], [1, 2]),
        ([["a", "b"], ["a", "bc"]], [0, 1]),
    ],
)
def test_a_later_write_replaces_those_to_it_and_below_it(paths: list[list[str]], kept: list[int]) -> None:
    writes = [{"path": path, "v": number} for number, path in enumerate(paths)]
    assert [item["v"] for item in compacted(writes)] == kept
