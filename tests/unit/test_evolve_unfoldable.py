"""An event that cannot be folded stops its execution, by an error that everybody who folds knows."""

from __future__ import annotations

import pytest

from noetl.core import kinds
from noetl.core.errors import LedgerCorrupt, Terminal
from noetl.core.execution.evolve import evolve
from tests.support.playbooks import Simulated, graph, step


@pytest.mark.parametrize("event_type", [kinds.COMMAND_ISSUED, kinds.LOOP_STARTED, kinds.FRAME_DISPATCHED])
def test_members_that_are_missing_are_a_corrupt_ledger(event_type: str) -> None:
    run = Simulated(graph(step("start")))
    state, last = run.state, run.events[-1]
    poison = last._replace(event_type=event_type, meta={}, stream_version=state.version + 1)
    with pytest.raises(LedgerCorrupt, match="cannot be folded") as caught:
        evolve(state, poison)
    assert isinstance(caught.value, Terminal)
    assert str(poison.event_id) in str(caught.value)
