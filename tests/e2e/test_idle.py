"""A system without work: it appends nothing, asks little, holds few connections and hardly uses the processor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from noetl.bench.measure import cpu_seconds
from noetl.settings import read_settings
from noetl.wiring.databases import control_dsn, embedded_postgres
from tests.support.cli import cli, wait_until
from tests.support.databases import connected
from tests.support.server import Place, place
from tests.support.yaml import playbook, write

CONNECTIONS_MAX = 15
QUERIES_PER_SECOND_MAX = 60.0
CPU_SHARE_MAX = 0.15
# Longer than a checkpoint and a heartbeat take: what the last execution caused has happened.
SETTLE_SECONDS = 3.0
WORK = playbook("workflow: [{step: only, tool: {kind: noop}}]")
_NOW = """
SELECT (SELECT sum(next_position) FROM noetl.execution_shard)::bigint AS events,
       (SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()) AS queries,
       (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
           AND backend_type = 'client backend') AS connections
"""
_BEHIND = """
SELECT count(*) FROM noetl.execution_shard s LEFT JOIN noetl.projection_checkpoint p USING (shard_id)
 WHERE coalesce(p.position, 0) < s.next_position - 1
"""


@dataclass(frozen=True, slots=True)
class Quiet:
    appended: int
    queries_per_second: float
    connections: int
    cpu_share: float


def measured(address: str, pids: list[int], seconds: float) -> Quiet:
    """What happens in a while without work."""

    async def now() -> tuple[int, int, int]:
        async with connected(address) as database:
            row = await database.fetchrow(_NOW)
            return row["events"], row["queries"], row["connections"]

    before, cpu, begun = asyncio.run(now()), cpu_seconds(pids), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - begun
    used = cpu_seconds(pids) - cpu
    after = asyncio.run(now())
    return Quiet(after[0] - before[0], (after[1] - before[1]) / passed, after[2], used / passed)


@contextmanager
def idle_system(**extra: str) -> Iterator[Place]:
    """A server, a projector and a worker that have done something and have nothing more to do."""
    with place(**extra) as server:
        server.start_server("--no-projector")
        server.start("projector")
        server.start_worker()
        assert server.finish(server.submit(WORK))["status"] == "COMPLETED"
        address = server.environment["NOETL_POSTGRES_DSN"]

        async def behind() -> int:
            async with connected(address) as database:
                return int(await database.fetchval(_BEHIND))

        wait_until(lambda: asyncio.run(behind()) == 0, seconds=60, what=f"everything is projected\n{server.logs()}")
        time.sleep(SETTLE_SECONDS)
        yield server


def of(server: Place, seconds: float) -> Quiet:
    pids = [process.pid for process in server.processes]
    return measured(server.environment["NOETL_POSTGRES_DSN"], pids, seconds)


def check(quiet: Quiet) -> None:
    print(quiet)
    assert quiet.appended == 0, quiet
    assert quiet.queries_per_second < QUERIES_PER_SECOND_MAX, quiet
    assert quiet.cpu_share < CPU_SHARE_MAX, quiet
    assert 0 < quiet.connections <= CONNECTIONS_MAX, quiet


def test_an_idle_system_appends_nothing_and_asks_and_holds_little() -> None:
    with idle_system() as server:
        check(of(server, 4.0))


def test_so_does_an_embedded_host() -> None:
    with cli() as noetl:
        assert noetl("up").code == 0
        assert noetl("run", write(noetl.home, WORK)).code == 0
        time.sleep(SETTLE_SECONDS)
        postgres = embedded_postgres(read_settings(noetl.environment())).running()
        pid = noetl.host_pid()
        assert postgres is not None
        assert pid is not None
        check(measured(control_dsn(postgres), [pid], 4.0))


@pytest.mark.long
def test_an_idle_system_appends_nothing_in_a_minute_also_after_a_rush() -> None:
    with idle_system() as server:
        for execution_id in [server.submit(WORK) for _ in range(200)]:
            assert server.finish(execution_id)["status"] == "COMPLETED"
        time.sleep(SETTLE_SECONDS)
        check(of(server, 60.0))
