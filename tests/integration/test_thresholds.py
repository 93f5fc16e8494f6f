"""Where a value is kept changes nothing for a playbook: the same playbooks with every threshold at zero and with none
give the same values, take the same ways and end alike."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetl.core import kinds
from noetl.core.expression import bare
from noetl.engine.payloads import Payloads
from noetl.engine.stored.reader import Reader
from noetl.engine.stored.sources import settled
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import OWNER, Running, Told, running_engine
from tests.support.thresholds import INFINITE, USUAL, ZERO, playbooks, thresholds


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


async def story(engine: Running, told: Told) -> Mapping[str, Any]:
    """Everything that must not depend on where values are."""
    # Nothing that was remembered from writing: what is compared was read.
    payloads = Payloads(small=engine.engine.small_payloads, large=engine.engine.large_payloads)
    reader = Reader(payloads, **OWNER)
    state = told.state
    steps = {name: reader.step(result.to_json()) for name, result in state.step_results.items()}
    variables = {name: reader.entry(entry.to_json()) for name, entry in state.variables.items()}
    return {
        "status": state.status,
        "failure": state.failure and (state.failure["step"], state.failure["error"]["code"]),
        "result": told.result,
        "steps": {name: await settled(lambda view=view: bare(view)) for name, view in steps.items()},  # type: ignore[misc]
        "ctx": {name: await settled(lambda view=view: bare(view)) for name, view in variables.items()},  # type: ignore[misc]
        "decisions": [
            (event.meta["step"], event.meta["run"], event.meta["outcome"], event.meta["arcs"], event.meta["targets"])
            for event in told.of_type(kinds.STEP_DECIDED)
        ],
    }


async def told_with(limits: Mapping[str, int], address: str, documents: list[str]) -> list[Mapping[str, Any]]:
    with thresholds(limits), tempfile.TemporaryDirectory() as home:
        async with running_engine(address, Path(home)) as engine:
            return [await story(engine, await engine.run(document)) for document in documents]


@given(st.lists(playbooks(), min_size=4, max_size=4))
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@asynchronous
async def test_thresholds_change_nothing(address: str, documents: list[str]) -> None:
    expected = await told_with(INFINITE, address, documents)
    for limits in (ZERO, USUAL):
        found = await told_with(limits, address, documents)
        for document, one, other in zip(documents, expected, found, strict=True):
            assert other == one, document
