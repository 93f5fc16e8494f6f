"""The router alone: where values are kept changes neither what it writes nor where it goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, given, settings

from noetl.core import kinds
from tests.support.loops import Looping
from tests.support.thresholds import INFINITE, USUAL, ZERO, routed, thresholds


def story(text: str, values: Mapping[str, Any]) -> dict[str, Any]:
    run = Looping(text).finish(values)
    return {
        "status": run.state.status,
        "failure": run.state.failure and (run.state.failure["step"], run.state.failure["error"]["code"]),  # type: ignore[index]
        "ctx": {name: run._entry(entry.to_json()) for name, entry in run.state.variables.items()},
        "decisions": [
            (event.meta["step"], event.meta["run"], event.meta["outcome"], event.meta["arcs"], event.meta["targets"])
            for event in run.of(kinds.STEP_DECIDED)
        ],
    }


@given(routed())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_thresholds_change_nothing_for_the_router(case: tuple[str, dict[str, Any]]) -> None:
    text, values = case
    found = []
    for limits in (INFINITE, ZERO, USUAL):
        with thresholds(limits):
            found.append(story(text, values))
    assert found[1] == found[0], text
    assert found[2] == found[0], text
