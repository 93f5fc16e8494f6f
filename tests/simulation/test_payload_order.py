"""What an event names is stored before the event is: a store that takes its time holds the event up."""

from __future__ import annotations

import pytest

from noetl.adapters.memory.faults import Mishap, Outcome
from noetl.core.execution.state import Status
from tests.simulation.checker import named_payloads
from tests.simulation.checks import check_end, events_of
from tests.simulation.test_recovery import Scene, ended, start, step

SLOW = Mishap(seconds_before=5.0)
AWAY = Mishap(outcome=Outcome.NOT_DONE, seconds_before=1.0)
LATE = Mishap(outcome=Outcome.COMMITS_LATE, late_seconds=3.0)
BIG = 100_000


@pytest.mark.parametrize("mishap", [SLOW, AWAY, LATE], ids=["slow", "away", "late"])
@pytest.mark.parametrize("size", [BIG, 5 * BIG], ids=["whole", "with an index"])
def test_no_event_names_a_payload_that_is_not_there(size: int, mishap: Mishap) -> None:
    """The scene's checker looks at every commit; here is something for it to look at."""
    scene = Scene(slots=1)

    async def story() -> None:
        async with scene.process() as life:
            scene.faults.script("put", mishap)
            execution = await start(life, step("start", big=size))
            assert (await ended(life, execution, within=60)).status is Status.COMPLETED
        stored = {digest for _, _, digest in scene.large}
        named = {str(one["sha256"]) for event in events_of(scene.database, execution) for one in named_payloads(event)}
        assert stored & named, "no event names a payload of the large store"
        check_end(scene.database)

    scene.play(story())
