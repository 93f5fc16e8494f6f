"""How a process that runs for long looks after its objects."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000
"""So many new objects are looked at together.  The interpreter's own 700 are a few rows of a loop: rows die by being
forgotten, and to look at them each time took an eighth of their cost."""
YOUNG_OBJECTS_ANSWERING = 2_000
"""The same where somebody waits for answers of milliseconds and no rows run: a look at 20,000 takes longer than they
may."""


def settle_memory(*, is_answering: bool = False) -> None:
    """What a start loads stays: a full collection that looks at it lets every request wait for a tenth of a second."""
    gc.collect()
    gc.freeze()
    if is_answering:
        gc.set_threshold(YOUNG_OBJECTS_ANSWERING, 20, 100)
    else:
        gc.set_threshold(YOUNG_OBJECTS, 10, 10)
