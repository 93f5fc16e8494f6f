"""A cluster with its driver, its nemesis and its checker: what every fault needs."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.fault.suite.checker import check
from tests.fault.suite.cluster import Cluster, Shape, cluster
from tests.fault.suite.findings import Findings
from tests.fault.suite.nemesis import Holdings, Nemesis, Strike
from tests.fault.suite.oracle import ACKNOWLEDGED, Oracle
from tests.fault.suite.workload import Driver, Volume

QUIET_SECONDS_MAX = 120.0


@dataclass(slots=True)
class Outcome:
    """What one fault of the list came to."""

    name: str
    says: str
    seed: int
    strikes: list[Strike] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    figures: dict[str, float] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    """Figures that were not reached, in words."""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return self.findings.is_clean and not self.missed

    def expect(self, name: str, value: float, *, at_most: float = math.inf, at_least: float = 0.0) -> None:
        """`at_least` is for what must have happened for the fault to mean anything; times before a lease's end count as
        good ones."""
        self.figures[name] = round(value, 3)
        if not value <= at_most:
            self.missed.append(f"{name} is {value:.2f} and not at most {at_most:g}")
        if at_least and not value >= at_least:
            self.missed.append(f"{name} is {value:.2f} and not at least {at_least:g}")


@dataclass(slots=True)
class Stage:
    cluster: Cluster
    driver: Driver
    nemesis: Nemesis
    chance: random.Random
    outcome: Outcome
    watched: dict[str, Holdings] = field(default_factory=dict)
    """What processes held when somebody last looked, by their own names."""

    @asynccontextmanager
    async def driven(self) -> AsyncIterator[None]:
        """With the workload under way; afterwards all of it has ended."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.driver.drive())
            try:
                yield
            finally:
                self.driver.stop()
        seconds = await self.driver.until_quiet(seconds=QUIET_SECONDS_MAX)
        self.outcome.expect("seconds until all had ended", seconds, at_most=QUIET_SECONDS_MAX)

    async def judge(self, *, may_fail: bool = False) -> None:
        """The checker's word.  What is derived has a moment to arrive, and leases of the dead to run out."""
        deadline = time.monotonic() + 15.0
        while True:
            findings = await check(self.driver, may_fail=may_fail)
            if findings.is_clean or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.5)
        self.outcome.findings = findings
        self.outcome.missed += [
            f"{count} submissions were answered with {what}" for what, count in self.driver.wrong.items()
        ]
        self.outcome.strikes = self.nemesis.strikes


@asynccontextmanager
async def stage(name: str, says: str, *, seed: int, shape: Shape, volume: Volume | None = None) -> AsyncIterator[Stage]:
    """Everything of one seed: which process, which moment, which run."""
    chance = random.Random(f"{name}/{seed}")
    outcome = Outcome(name, says, seed)
    begun = time.monotonic()
    async with cluster(shape) as found:
        await found.start()
        driver = Driver(found, Oracle(found.oracle_dsn), chance, volume or Volume())
        await driver.prepare()
        yield Stage(found, driver, Nemesis(found, chance), chance, outcome)
    outcome.seconds = time.monotonic() - begun


async def submitted(found: Stage, text: str, run: str, *, url: str | None = None) -> int:
    """A playbook of a fault's own, known to the oracle; at one server, or at whichever answers."""
    body = {"playbook": text, "payload": {}}
    if url is None:
        status, answer = await found.cluster.any_server("POST", "/api/executions", body=body)
    else:
        status, answer = await found.cluster.request("POST", "/api/executions", body=body, url=url)
    assert status in (200, 201), answer
    execution_id = int(answer["execution_id"])
    await found.driver.oracle.note(run, ACKNOWLEDGED, execution_id)
    return execution_id
