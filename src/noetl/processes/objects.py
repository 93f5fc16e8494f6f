"""How a process that runs for long looks after its objects."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000
"""So many new objects are looked at together.  The interpreter's own 700 are a few rows of a loop: rows die by being
forgotten, and to look at them each time took an eighth of their cost."""


def settle_memory() -> None:
    """What a start loads stays: a full collection that looks at it lets every request wait for a tenth of a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
