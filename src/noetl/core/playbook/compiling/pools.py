"""Pools: which workers a step is for.  A kind of task that needs a process of its own kind has a pool of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

POOL_DEFAULT = "default"
POOL_SPARK = "spark"
POOL_OF_KIND: Mapping[str, str] = {"spark": POOL_SPARK}


def pool_of(kinds: Iterable[str]) -> str:
    """Of a step with tasks of these kinds: all of them run in one place, so the first that is particular decides."""
    return next((POOL_OF_KIND[kind] for kind in kinds if kind in POOL_OF_KIND), POOL_DEFAULT)
