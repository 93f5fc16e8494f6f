"""Tests over a copy of the product, in a process of their own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.fault.guards.copying import ROOT
from tests.fault.guards.witness import REPORT, SERVER
from tests.support.databases import connected
from tests.support.postgres import RunningServer, embedded_server

TIMEOUT_SECONDS = 240.0
_OWN = ("NOETL_", "PYTEST_", "COV_", "PYTHONPATH")


class Failure(NamedTuple):
    test: str
    is_about_behaviour: bool
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    passed: list[str]
    failed: list[Failure]
    output: str

    def missed_by(self, test: str) -> list[Failure]:
        """How a test, whatever its parameters, noticed that something must not be."""
        return [one for one in self.failed if one.is_about_behaviour and is_of(one.test, test)]


def is_of(nodeid: str, test: str) -> bool:
    """Whether this is the test, perhaps with one of its parameters."""
    return nodeid == test or nodeid.startswith(f"{test}[")


def run(tests: Sequence[str], *, over: Path, server: RunningServer | None = None) -> Outcome:
    """Run tests over the product in a folder.  Raises AssertionError when they could not run or ran over another."""
    assert tests, "without a name all tests would run"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_OWN)}
    with tempfile.TemporaryDirectory(prefix="noetl-guards-") as folder:
        report = Path(folder) / "report.json"
        environment |= {"PYTHONPATH": str(over), REPORT: str(report)}
        if server is not None:
            environment[SERVER] = _address(server)
        plugins = ("-p", "no:cacheprovider", "-p", "tests.fault.guards.witness")
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", *plugins, f"--basetemp={folder}/tests", *tests]
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert report.exists(), f"the tests did not run:\n{ended.stdout}"
        told: dict[str, Any] = json.loads(report.read_text("utf-8"))
    assert Path(told["package"]).is_relative_to(over), f"the tests ran over {told['package']}"
    return Outcome(passed=told["passed"], failed=[Failure(**one) for one in told["failed"]], output=ended.stdout)


@contextmanager
def quick_server() -> Iterator[RunningServer]:
    """A server for all of them.  It syncs nothing: it never has to survive, and the databases of so many runs would
    keep the disk busy for minutes."""
    with embedded_server() as server:
        asyncio.run(_stop_syncing(server.dsn(database="postgres", user="postgres")))
        yield server


async def _stop_syncing(dsn: str) -> None:
    async with connected(dsn) as connection:
        await connection.execute("ALTER SYSTEM SET fsync = off")
        await connection.execute("SELECT pg_reload_conf()")


def _address(server: RunningServer) -> str:
    address = server.address
    known = {"home": str(server.home), "socket_dir": str(address.socket_dir), "port": address.port, "pid": address.pid}
    return json.dumps(known)
