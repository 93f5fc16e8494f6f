"""Spark jobs in driver processes: the port that tools see."""

from __future__ import annotations

import asyncio

from noetl.adapters.spark.driver.driver import Driver, lost_failure
from noetl.adapters.spark.driver.inbox import Cancelled, JobEnd, Lost, Refused
from noetl.adapters.spark.driver.pool import Drivers
from noetl.adapters.spark.driver.settings import DriverSettings
from noetl.adapters.spark.driver.statics import Statics
from noetl.core import limits
from noetl.core.errors import Failure
from noetl.ports.data.compute import JobListener, JobOutcome, SparkJob


class DriverCompute:
    """Bound to the event loop that runs the first job."""

    def __init__(self, settings: DriverSettings) -> None:
        self._drivers = Drivers(settings)
        self._statics = Statics()
        # First come, first served; a job that waits for a driver to start has its place already.
        self._places = asyncio.Semaphore(settings.jobs_max)
        self._is_closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        """The drivers that take jobs now."""
        return self._drivers.pids

    async def run(self, job: SparkJob, listener: JobListener) -> JobOutcome:
        async with self._places:
            for _ in range(limits.SPARK_RESTARTS_MAX):
                if self._is_closed:
                    return JobOutcome(failure=lost_failure("this worker runs no more Spark jobs: it is closing"))
                end = await self._run_once(job, listener)
                if isinstance(end, JobOutcome):
                    return end
                if isinstance(end, Refused):
                    self._statics.learn(end.keys)
                elif isinstance(end, Lost) and end.has_begun:
                    return JobOutcome(failure=lost_failure(end.message))
                # Otherwise the driver was gone before it had heard of the job: nothing of it ran.
            return _given_up(end)

    async def close(self) -> None:
        """Ends all drivers, politely and then by force; jobs under way fail as those of a lost driver."""
        self._is_closed = True
        await self._drivers.close()

    async def _run_once(self, job: SparkJob, listener: JobListener) -> JobEnd:
        statics = self._statics.of(job.conf)
        try:
            driver: Driver = self._drivers.take(statics)
        except OSError as error:
            return JobOutcome(failure=lost_failure(f"no Spark driver can be started: {error.strerror or error}"))
        try:
            failure = await driver.started(listener)
            return JobOutcome(failure=failure) if failure is not None else await driver.run(job, listener)
        finally:
            self._drivers.give_back(statics, driver)


def _given_up(end: JobEnd) -> JobOutcome:
    if isinstance(end, Refused):
        message = f"Spark does not take these settings: {', '.join(end.keys)}"
        return JobOutcome(failure=Failure(kind="config", code="SPARK_CONF_REFUSED", message=message))
    assert not isinstance(end, Cancelled), "nobody cancelled it"
    return JobOutcome(failure=lost_failure(end.message if isinstance(end, Lost) else "the Spark driver is gone"))
