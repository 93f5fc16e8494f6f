"""The effective workload: defaults under the request's payload (dsl §1.3)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.core.playbook.workload import merge, request_payload

VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
MAPPINGS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@pytest.mark.parametrize(
    ("defaults", "payload", "merged"),
    [
        ({}, {}, {}),
        ({"a": 1}, {}, {"a": 1}),
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "d": 4}}, {"a": {"b": 3, "c": 2, "d": 4}}),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"c": 9}}}, {"a": {"b": {"c": 9, "d": 2}}}),
        ({"a": {"b": 1}}, {"a": 7}, {"a": 7}),
        ({"a": 7}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_the_payload_wins_and_mappings_merge(defaults: Any, payload: Any, merged: object) -> None:
    assert merge(defaults, payload) == merged


@settings(max_examples=40)
@given(MAPPINGS, MAPPINGS)
def test_merging_keeps_every_value_of_the_payload_and_changes_neither(defaults: Any, payload: Any) -> None:
    before = copy.deepcopy((defaults, payload))
    merged = merge(defaults, payload)
    assert (defaults, payload) == before
    assert merged.keys() == defaults.keys() | payload.keys()
    for key, value in payload.items():
        if not isinstance(value, dict):
            assert merged[key] == value
    assert merge(defaults, {}) == defaults
    assert merge(merged, payload) == merged


@pytest.mark.parametrize(
    ("payload", "effective"),
    [
        ({"a": 1}, {"a": 1}),
        ({"ctx": {"a": 1}}, {"a": 1}),
        ({"workload": {"a": 1}}, {"a": 1}),
        ({"workload": {"a": 1}, "ctx": {"b": 2}, "c": 3}, {"a": 1, "b": 2, "c": 3}),
        ({"ctx": {"a": {"b": 1}}, "a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"ctx": 7, "workload": "text"}, {"ctx": 7, "workload": "text"}),
        ({"ctx": {"deep": {"ctx": {"a": 1}}}}, {"deep": {"ctx": {"a": 1}}}),
    ],
)
def test_ctx_and_workload_of_a_payload_are_merged_one_level_up(payload: Any, effective: object) -> None:
    before = copy.deepcopy(payload)
    assert request_payload(payload) == effective
    assert payload == before
