"""The drivers of a worker, by what is fixed with them.

At most SPARK_DRIVERS_WARM_MAX are kept without a job; whoever needs another one has it at once, and the least recently
used of those that idle ends instead.  How many can run at all is bounded by the number of jobs at a time."""

from __future__ import annotations

import asyncio

from noetl.adapters.spark.driver.driver import Driver
from noetl.adapters.spark.driver.settings import DriverSettings
from noetl.adapters.spark.driver.statics import StaticConf
from noetl.core import limits


class Drivers:
    def __init__(self, settings: DriverSettings) -> None:
        self._settings = settings
        self._current: dict[StaticConf, Driver] = {}
        self._idle: dict[StaticConf, asyncio.TimerHandle] = {}  # least recently used first
        self._ending: set[Driver] = set()

    @property
    def pids(self) -> tuple[int, ...]:
        """Those that take jobs."""
        return tuple(driver.pid for driver in self._current.values())

    def take(self, statics: StaticConf) -> Driver:
        """A driver for one job, which starts now if it has to.  Raises OSError when no process can be started."""
        timer = self._idle.pop(statics, None)
        if timer is not None:
            timer.cancel()
        driver = self._current.get(statics)
        if driver is None:
            self._make_room()
            conf = {key: value for key, value in sorted(statics) if self._settings.conf.get(key) != value}
            loop = asyncio.get_running_loop()
            driver = Driver(self._settings, conf, loop=loop, on_end=lambda ended: self._forget(statics, ended))
            self._current[statics] = driver
        driver.users += 1
        return driver

    def give_back(self, statics: StaticConf, driver: Driver) -> None:
        driver.users -= 1
        if driver.users or self._current.get(statics) is not driver:
            return
        loop = asyncio.get_running_loop()
        self._idle[statics] = loop.call_later(self._settings.idle_seconds, self._end, statics)
        while len(self._idle) > limits.SPARK_DRIVERS_WARM_MAX:
            self._end(next(iter(self._idle)))

    async def close(self) -> None:
        """End all, politely at first; returns when none is left."""
        for statics in tuple(self._current):
            self._end(statics)
        for driver in tuple(self._ending):
            await driver.ended()

    def _make_room(self) -> None:
        while self._idle and len(self._current) >= limits.SPARK_DRIVERS_WARM_MAX:
            self._end(next(iter(self._idle)))

    def _end(self, statics: StaticConf) -> None:
        timer = self._idle.pop(statics, None)
        if timer is not None:
            timer.cancel()
        driver = self._current.pop(statics)
        self._ending.add(driver)
        driver.stop()

    def _forget(self, statics: StaticConf, driver: Driver) -> None:
        self._ending.discard(driver)
        if self._current.get(statics) is driver:
            del self._current[statics]
            timer = self._idle.pop(statics, None)
            if timer is not None:
                timer.cancel()
