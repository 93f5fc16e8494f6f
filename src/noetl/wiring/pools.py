"""The pools that a process serves, and how many commands of each it takes at a time."""

from __future__ import annotations

from noetl.core.playbook.compiling.pools import POOL_DEFAULT, POOL_SPARK
from noetl.settings import Settings


def embedded_slots(settings: Settings) -> dict[str, int]:
    """Of a host that works itself.  Jobs of Spark have slots of their own: they are long, and everything else goes on
    beside them."""
    return {pool: worker_slots(settings, pool) for pool in (POOL_DEFAULT, POOL_SPARK)}


def worker_slots(settings: Settings, pool: str) -> int:
    """Of a worker that says nothing about it.  More jobs than run at a time would only wait inside, on their time."""
    return settings.spark_jobs if pool == POOL_SPARK else settings.worker_slots
