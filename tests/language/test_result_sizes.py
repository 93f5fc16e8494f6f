"""Events stay small whatever the data is: what they say about results has few bytes, in every example."""

from __future__ import annotations

from noetl.core.codec import canonical_bytes
from tests.support.language import EXAMPLES, Case, World

RESULT_BYTES_P99_MAX = 2048


def test_results_in_events_stay_small(world: World) -> None:
    sizes = []
    for path in EXAMPLES:
        told = world.play(Case(path.stem, path.read_text()))
        sizes += [len(canonical_bytes(event.result)) for event in told.events if event.result is not None]
    sizes.sort()
    assert len(sizes) > 80
    assert sizes[int(len(sizes) * 0.99)] < RESULT_BYTES_P99_MAX
