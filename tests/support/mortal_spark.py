"""A host whose Spark driver, or which itself, ends at a named point on the way from a job to the event that publishes
its data.

    python -m tests.support.mortal_spark <driver|worker> <point> <mark> run playbook.yaml

The points, in order: `before_write` and `after_write` of the job's data; `after_commit_message`: the worker has been
told of the files; `after_event`: the ledger names them.  The file `mark` tells that it happened; it happens once."""

from __future__ import annotations

import functools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from noetl.adapters.session.in_process import InProcessSession
from noetl.adapters.spark.driver.compute import DriverCompute
from noetl.adapters.spark.driver.settings import DriverSettings
from noetl.cli.main import main
from noetl.core import kinds
from noetl.ports.session import Fact
from noetl.tools.spark.listener import Listener
from noetl.wiring import spark as wiring

ROOT = Path(__file__).parents[2]
WORKER_POINTS = ("before_write", "after_commit_message", "after_event")


class Watch:
    def __init__(self, side: str, point: str, mark: str) -> None:
        self.side, self.point, self.mark = side, point, Path(mark)
        self.computes: list[DriverCompute] = []

    def at(self, point: str) -> None:
        if point != self.point or self.mark.exists():
            return
        victims = [pid for compute in self.computes for pid in compute.pids] if self.side == "driver" else [os.getpid()]
        self.mark.touch()
        for pid in victims:
            os.kill(pid, signal.SIGKILL)


def install(watch: Watch) -> None:
    run_of: Any = DriverCompute.run
    intended_of: Any = Listener.intended
    report_of: Any = InProcessSession.report

    async def run(self: DriverCompute, *arguments: object) -> object:
        watch.computes = [self]
        outcome = await run_of(self, *arguments)
        if watch.side == "worker":
            watch.at("after_commit_message")
        return outcome

    async def intended(self: Listener, *arguments: object) -> None:
        await intended_of(self, *arguments)
        if watch.side == "worker":
            watch.at("before_write")

    async def report(self: InProcessSession, fact: Fact) -> None:
        await report_of(self, fact)
        if fact.event_type == kinds.COMMAND_COMPLETED and watch.computes:
            watch.at("after_event")

    DriverCompute.run = run  # type: ignore[method-assign, assignment]
    Listener.intended = intended  # type: ignore[method-assign, assignment]
    InProcessSession.report = report  # type: ignore[method-assign]
    if watch.side == "driver":
        environment = {"PYTHONPATH": str(ROOT), "MORTAL_POINT": watch.point, "MORTAL_MARK": str(watch.mark)}
        made: Any = functools.partial(DriverSettings, module="tests.support.mortal_driver", environment=environment)
        module: Any = wiring
        module.DriverSettings = made


if __name__ == "__main__":
    side, point, mark, *words = sys.argv[1:]
    install(Watch(side, point, mark))
    sys.argv = ["noetl", *words]
    sys.exit(main())
