"""A host that ends itself at a named point between the bytes of a result and the event that names them.  It is a real
one: only the ports on the way are watched.

    python -m tests.support.mortal_host <point> <times> run playbook.yaml

The points, in order: `landed` a child has left a table for the worker; `stored` its bytes are durable; `shared` others
on this machine can map it; `told` the fact is ready and not in the ledger; `appended` it is."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from noetl.adapters.arrow.tables import ArrowTables
from noetl.adapters.session.in_process import InProcessSession
from noetl.cli.main import main
from noetl.core import kinds
from noetl.engine.payloads import Payloads
from noetl.ports.session import Fact

POINTS = ("landed", "stored", "shared", "told", "appended")


class Watch:
    def __init__(self, point: str, times: int) -> None:
        self._point, self._times = point, times

    def at(self, point: str) -> None:
        if point == self._point:
            self._times -= 1
            if self._times == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def install(watch: Watch) -> None:
    keep_of: Any = ArrowTables.keep_unless_small
    shared_of: Any = ArrowTables._shared
    indexed_of: Any = Payloads.keep_indexed
    report_of: Any = InProcessSession.report

    async def keep(self: ArrowTables, *arguments: object, **options: object) -> object:
        watch.at("landed")
        return await keep_of(self, *arguments, **options)

    def shared(self: ArrowTables, *arguments: object, **options: object) -> object:
        watch.at("stored")
        found = shared_of(self, *arguments, **options)
        watch.at("shared")
        return found

    async def keep_indexed(self: Payloads, *arguments: object, **options: object) -> object:
        watch.at("landed")
        found = await indexed_of(self, *arguments, **options)
        watch.at("stored")
        return found

    async def report(self: InProcessSession, fact: Fact) -> None:
        has_result = fact.event_type in (kinds.COMMAND_COMPLETED, kinds.FRAME_COMMITTED)
        if has_result:
            watch.at("told")
        await report_of(self, fact)
        if has_result:
            watch.at("appended")

    ArrowTables.keep_unless_small = keep  # type: ignore[method-assign, assignment]
    ArrowTables._shared = shared  # type: ignore[method-assign, assignment]
    Payloads.keep_indexed = keep_indexed  # type: ignore[method-assign, assignment]
    InProcessSession.report = report  # type: ignore[method-assign]


if __name__ == "__main__":
    point, times, *words = sys.argv[1:]
    install(Watch(point, int(times)))
    sys.argv = ["noetl", *words]
    sys.exit(main())
