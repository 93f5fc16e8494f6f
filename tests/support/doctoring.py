"""An engine that decides and does nothing else of its own accord: what a test breaks stays so until it is fixed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noetl.engine.doctor.doctor import Doctor
from noetl.engine.doctor.finding import Finding, Thresholds
from noetl.settings import Settings, read_settings
from noetl.wiring.doctor.checks import doctor_of
from noetl.wiring.engine import Engine
from tests.support.databases import connected, own_shards
from tests.support.engine import Running


@dataclass(slots=True)
class Patient:
    engine: Engine
    settings: Settings
    address: str
    group: asyncio.TaskGroup
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def running(self) -> Running:
        return Running(self.engine)

    def doctor(self, **thresholds: Any) -> Doctor:
        """Without patience: what a test breaks was not on its way."""
        chosen = {"settle_seconds": 0.01, **thresholds}
        return doctor_of(self.engine, self.settings, self.address, thresholds=Thresholds(**chosen))

    def project(self) -> None:
        """Have a projector from now on."""
        self.tasks.append(self.group.create_task(self.engine.projecting.run()))

    async def execute(self, statement: str, *values: object) -> None:
        async with connected(self.address) as connection:
            await connection.execute(statement, *values)

    async def fetch(self, statement: str, *values: object) -> list[Any]:
        async with connected(self.address) as connection:
            return list(await connection.fetch(statement, *values))


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def of(findings: list[Finding], code: str) -> list[Finding]:
    return [finding for finding in findings if finding.code == code]


@asynccontextmanager
async def patient(address: str, home: Path) -> AsyncIterator[Patient]:
    settings = read_settings({"NOETL_HOME": str(home), "NOETL_SHARD_LEASE_SEC": "600"})
    engine = Engine(settings, address, instance="patient", has_worker=False)
    await engine.open()
    assert engine.serving.node is not None
    engine.decider.own(await own_shards(address, engine.serving.node.runtime_id, "patient"))
    try:
        async with asyncio.TaskGroup() as group:
            found = Patient(engine, settings, address, group)
            found.tasks.append(group.create_task(engine.decider.run()))
            yield found
            for task in found.tasks:
                task.cancel()
    finally:
        await engine.close()
