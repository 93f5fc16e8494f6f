"""Payloads, shared memory, partitions, disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from noetl.core.errors import CollectionBusy
from noetl.core.ids import quarters_from
from noetl.engine.collecting.report import DELETED, NOMINATED, Report
from noetl.engine.doctor.clocks import moment_of
from noetl.engine.doctor.finding import (
    CHECK_FAILED,
    DISK_FULL,
    PARTITION_MISSING,
    PAYLOAD_ORPHAN,
    SEGMENT_STALE,
    Finding,
    Thresholds,
)
from noetl.ports.clock import Clock
from noetl.ports.durability.partitions import Partitions

QUARTERS_NEEDED = 2
GIGABYTE = 1024**3
Collect = Callable[[bool], Awaitable[Report]]
"""One run of the collector, dry or not."""


class Swept(NamedTuple):
    segments: int
    bytes: int


class SharedSegments(Protocol):
    """The shared memory of this node.  Both may take a while, and are called in a thread."""

    def stale(self) -> Swept:
        """What dead processes left."""
        ...

    def sweep(self) -> None: ...


class Disk(NamedTuple):
    place: str
    free_bytes: int
    total_bytes: int


class OrphanPayloads:
    """By a dry run of the collector, which ends after a while: what it has not seen by then it does not tell."""

    def __init__(self, collect: Collect, thresholds: Thresholds) -> None:
        self._collect = collect
        self._thresholds = thresholds

    async def look(self) -> list[Finding]:
        try:
            async with asyncio.timeout(self._thresholds.collect_seconds_max):
                report = await self._collect(True)
        except CollectionBusy:
            return []  # somebody is at it
        except TimeoutError:
            return [
                Finding(
                    code=CHECK_FAILED,
                    what=f"the payloads are too many to be looked at in {self._thresholds.collect_seconds_max:g} s",
                    where="payloads",
                    do="run `noetl gc --dry-run`",
                )
            ]
        heap = report.total([NOMINATED, DELETED])
        if not heap.count:
            return []
        return [
            Finding(
                code=PAYLOAD_ORPHAN,
                what=f"nothing names {heap.count:,} payloads of {heap.bytes:,} bytes",
                where="payloads",
                do="run `noetl gc`, now and again after its grace; `noetl doctor --fix` runs it once",
                can_fix=True,
            )
        ]

    async def fix(self, _findings: Sequence[Finding]) -> None:
        await self._collect(False)


class StaleSegments:
    def __init__(self, segments: SharedSegments) -> None:
        self._segments = segments

    async def look(self) -> list[Finding]:
        found = await asyncio.to_thread(self._segments.stale)
        if not found.segments:
            return []
        return [
            Finding(
                code=SEGMENT_STALE,
                what=f"{found.segments:,} segments of shared memory, {found.bytes:,} bytes, are of dead processes",
                where="shared memory of this node",
                do="the next process with tables removes them; `noetl doctor --fix` does so now",
                can_fix=True,
            )
        ]

    async def fix(self, _findings: Sequence[Finding]) -> None:
        await asyncio.to_thread(self._segments.sweep)


class MissingPartitions:
    def __init__(self, partitions: Partitions, clock: Clock) -> None:
        self._partitions = partitions
        self._clock = clock

    async def look(self) -> list[Finding]:
        there = {one.quarter for one in await self._partitions.found()}
        return [
            Finding(
                code=PARTITION_MISSING,
                what=f"there is no partition event_{quarter.name}: no execution can begin in that quarter",
                where=f"quarter {quarter.name}",
                do="run `noetl migrate` as the owner of the database; `noetl doctor --fix` makes it where it may",
                can_fix=True,
            )
            for quarter in quarters_from(moment_of(self._clock), QUARTERS_NEEDED)
            if quarter not in there
        ]

    async def fix(self, _findings: Sequence[Finding]) -> None:
        await self._partitions.ensure(moment_of(self._clock))


class FullDisk:
    def __init__(self, disk: Callable[[], Disk], thresholds: Thresholds) -> None:
        self._disk = disk
        self._thresholds = thresholds

    async def look(self) -> list[Finding]:
        disk = await asyncio.to_thread(self._disk)
        if disk.free_bytes >= disk.total_bytes * self._thresholds.disk_free_share_min:
            return []
        return [
            Finding(
                code=DISK_FULL,
                what=f"{disk.free_bytes / GIGABYTE:.1f} of {disk.total_bytes / GIGABYTE:.1f} GB are free",
                where=disk.place,
                do="make room: `noetl gc` deletes payloads that nothing names; or move NOETL_HOME",
            )
        ]

    async def fix(self, _findings: Sequence[Finding]) -> None:
        """Nobody but the operator knows what may go."""
