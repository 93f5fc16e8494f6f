"""Every check of the doctor, over the engine of a server or of an embedded host."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from noetl.adapters.arrow.segments.leftovers import NodeSegments
from noetl.adapters.postgres.durability.examination import PostgresExamination
from noetl.adapters.postgres.durability.leftovers import PostgresQueueLeftovers
from noetl.adapters.postgres.durability.partitions import PostgresPartitions
from noetl.adapters.postgres.migrate import check_schema
from noetl.adapters.system.clock import SystemClock
from noetl.core.collection.plan import DAY, HOUR, Policy
from noetl.core.errors import SchemaOutdated
from noetl.engine.collecting.report import Report
from noetl.engine.doctor.commands import EndedRows, StuckCommands
from noetl.engine.doctor.doctor import Doctor
from noetl.engine.doctor.finding import Check, Thresholds
from noetl.engine.doctor.processes import DeadClaims, DeadRuntimes, ExpiredShards
from noetl.engine.doctor.projections import ForeignProjections, LaggingProjections, Quarantined
from noetl.engine.doctor.storage import Disk, FullDisk, MissingPartitions, OrphanPayloads, StaleSegments, Swept
from noetl.engine.doctor.surroundings import ClockSkew, FewConnections, PendingMigrations, UnservedPools
from noetl.settings import Settings
from noetl.wiring.engine import Engine
from noetl.wiring.stores import collect_payloads


def doctor_of(engine: Engine, settings: Settings, database: str, *, thresholds: Thresholds | None = None) -> Doctor:
    """Orders matter where one finding explains another: processes first, then what they held."""
    limits = thresholds or Thresholds()
    examination = PostgresExamination(engine.durability.pool)
    checks: list[Check] = [
        PendingMigrations(lambda: schema_trouble(database)),
        *_of_processes(engine, examination, limits),
        *_of_commands(engine, examination, limits),
        *_of_projections(engine, examination, limits),
        *_of_storage(engine, settings, database, limits),
        ClockSkew(examination, SystemClock(), limits),
        FewConnections(examination, limits),
        UnservedPools(examination, limits),
    ]
    return Doctor(checks)


async def schema_trouble(database: str) -> str | None:
    """What is wrong with the schema of a database; None when nothing is."""
    try:
        await check_schema(database)
    except SchemaOutdated as error:
        return str(error)
    return None


def _of_processes(engine: Engine, examination: PostgresExamination, limits: Thresholds) -> list[Check]:
    serving = engine.serving
    sessions = engine.shards if engine.is_deciding else serving.roster
    return [
        ExpiredShards(serving.shards),
        DeadRuntimes(examination, serving.runtimes, limits),
        DeadClaims(examination, sessions, limits),
    ]


def _of_commands(engine: Engine, examination: PostgresExamination, limits: Thresholds) -> list[Check]:
    async def elsewhere(shards: Collection[int]) -> Mapping[int, frozenset[tuple[str, int]]]:
        assert engine.serving.node is not None
        found: dict[int, set[tuple[str, int]]] = {}
        for held in await engine.serving.roster.held_elsewhere(shards, runtime_id=engine.serving.node.runtime_id):
            found.setdefault(held.execution_id, set()).add((held.command_id, held.attempt))
        return {execution_id: frozenset(held) for execution_id, held in found.items()}

    stuck = StuckCommands(
        engine.states,
        queue=engine.queue,
        executions=engine.executions,
        owner=engine.decider if engine.is_deciding else None,
        elsewhere=elsewhere,
        thresholds=limits,
    )
    return [EndedRows(examination, PostgresQueueLeftovers(engine.durability.pool), limits), stuck]


def _of_projections(engine: Engine, examination: PostgresExamination, limits: Thresholds) -> list[Check]:
    projections, projector = engine.projecting.projections, engine.projecting.projector
    return [
        ForeignProjections(projections, projector=projector),
        LaggingProjections(examination, projector=projector, thresholds=limits),
        Quarantined(projections, projector=projector, thresholds=limits),
    ]


def _of_storage(engine: Engine, settings: Settings, database: str, limits: Thresholds) -> list[Check]:
    policy = Policy(grace_seconds=settings.gc_grace_hours * HOUR, ttl_seconds=settings.gc_ttl_days * DAY)

    async def collect(is_dry_run: bool) -> Report:
        return await collect_payloads(settings, database, policy, is_dry_run=is_dry_run)

    partitions = PostgresPartitions(database, engine.durability.pool)
    return [
        OrphanPayloads(collect, limits),
        StaleSegments(_Segments(NodeSegments(node_id=settings.node_id, home=settings.home))),
        MissingPartitions(partitions, SystemClock()),
        FullDisk(lambda: _disk(settings.home), limits),
    ]


class _Segments:
    def __init__(self, segments: NodeSegments) -> None:
        self._segments = segments

    def stale(self) -> Swept:
        return Swept(*self._segments.stale())

    def sweep(self) -> None:
        self._segments.sweep()


def _disk(home: Path) -> Disk:
    usage = shutil.disk_usage(home)
    return Disk(str(home), usage.free, usage.total)
