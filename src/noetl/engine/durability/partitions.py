"""The partition keeper: makes the coming quarters of the ledger ahead of time and says which old ones could go.

Nothing is dropped: an event that is gone cannot be folded again."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Iterator, Sequence

from noetl.core.errors import NoetlError
from noetl.core.ids import Quarter, quarters_from
from noetl.ports.clock import Clock
from noetl.ports.data.counters import Sample
from noetl.ports.durability.partitions import QUARTERS_AHEAD, Partition, Partitions
from noetl.ports.durability.roles import RoleLease

LOOK_SECONDS = 3_600.0
RETRY_SECONDS = 60.0
log = logging.getLogger("noetl.partitions")


class PartitionKeeper:
    def __init__(self, partitions: Partitions, *, clock: Clock, retention_days: int) -> None:
        self._partitions = partitions
        self._clock = clock
        self._retention = datetime.timedelta(days=retention_days)
        self._ahead = 0
        self._droppable = 0

    async def run(self, _lease: RoleLease) -> None:
        while True:
            try:
                await self.look()
                seconds = LOOK_SECONDS
            except NoetlError as error:
                # There is a year until the last one is full; `noetl migrate` makes them too.
                log.warning("partitions wait", extra={"event": "partitions.unavailable", "reason": str(error)})
                seconds = RETRY_SECONDS
            await asyncio.sleep(seconds)

    async def look(self) -> None:
        now = datetime.datetime.fromisoformat(self._clock.now())
        for name in await self._partitions.ensure(now):
            log.info("a partition was made", extra={"event": "partition.made", "partition": name})
        found = await self._partitions.found()
        wanted = quarters_from(now, QUARTERS_AHEAD)
        self._ahead = len(set(wanted) & {partition.quarter for partition in found})
        going = droppable(found, now=now, retention=self._retention)
        self._droppable = len(going)
        if going:
            names = [quarter.name for quarter in going]
            log.info("partitions are older than retention", extra={"event": "partitions.old", "partitions": names})

    def samples(self) -> Iterator[Sample]:
        yield "noetl_partitions_ahead", {}, self._ahead
        yield "noetl_partitions_droppable", {}, self._droppable


def droppable(
    partitions: Sequence[Partition], *, now: datetime.datetime, retention: datetime.timedelta
) -> list[Quarter]:
    """Quarters whose last execution began before the retention and in which none is open."""
    return [
        partition.quarter
        for partition in partitions
        if partition.quarter.following().start <= now - retention and not partition.has_open
    ]
