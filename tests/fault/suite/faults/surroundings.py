"""F5, F6, F8, F11, F18: what is around the processes fails, lies or is in the way."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import asyncpg

from tests.fault.suite.cluster import Cluster, Shape
from tests.fault.suite.nemesis import Strike, asked
from tests.fault.suite.proxy import Proxy, proxied
from tests.fault.suite.stage import Outcome, Stage, stage
from tests.fault.suite.workload import Volume

APPEND_SECONDS_MAX = 2.0
DRAIN_SECONDS_MAX = 60.0
RESIDENT_MB_MAX = 600.0
INTRUDER_SECONDS_MAX = 10.0


# --- Postgres ------------------------------------------------------------------------------------------------


def crash_postgres(cluster: Cluster) -> None:
    """As after a power failure: no checkpoint, every connection cut."""
    found = cluster.postgres.postgres.running()
    assert found is not None
    os.kill(found.pid, signal.SIGQUIT)
    while not cluster.postgres.postgres.has_ended(found):
        time.sleep(0.02)


async def start_postgres(cluster: Cluster) -> None:
    await asyncio.to_thread(cluster.postgres.postgres.start)
    while await asked(cluster, "SELECT 1") is None:
        await asyncio.sleep(0.02)


async def head_of_ledger(cluster: Cluster) -> int:
    rows = await asked(cluster, "SELECT sum(next_position) AS n FROM noetl.execution_shard")
    return -1 if rows is None else int(rows[0]["n"])


async def until_appended(cluster: Cluster, seconds: float) -> float:
    """Seconds until the ledger grows again."""
    begun, before = time.monotonic(), await head_of_ledger(cluster)
    while time.monotonic() - begun < seconds:
        if await head_of_ledger(cluster) > before:
            return time.monotonic() - begun
        await asyncio.sleep(0.02)
    return float("inf")


async def postgres_restarts(seed: int, shape: Shape, *, times: int, pause: tuple[float, float]) -> Outcome:
    """F5."""
    says = f"{times} immediate restarts of Postgres"
    async with stage("F5", says, seed=seed, shape=shape) as found:
        slowest = 0.0
        async with found.driven():
            for _ in range(times):
                await asyncio.sleep(found.chance.uniform(*pause))
                await asyncio.to_thread(crash_postgres, found.cluster)
                await start_postgres(found.cluster)
                seconds = await until_appended(found.cluster, 30.0)
                found.nemesis.strikes.append(Strike("postgres", "immediate restart", seconds))
                slowest = max(slowest, seconds)
        found.outcome.expect("seconds until the first append", slowest, at_most=APPEND_SECONDS_MAX)
        _expect_alive(found)
        await found.judge()
    return found.outcome


async def postgres_away(seed: int, shape: Shape, *, seconds: float) -> Outcome:
    """F6."""
    async with stage("F6", f"Postgres down for {seconds:g} s", seed=seed, shape=shape) as found:
        async with found.driven():
            await asyncio.sleep(3.0)
            await asyncio.to_thread(crash_postgres, found.cluster)
            await asyncio.sleep(seconds)
            _expect_alive(found)
            found.outcome.expect("resident MB of the largest process", _resident_mb(found), at_most=RESIDENT_MB_MAX)
            await start_postgres(found.cluster)
            found.driver.stop()
            begun = time.monotonic()
            await found.driver.until_quiet(seconds=DRAIN_SECONDS_MAX)
            drained = time.monotonic() - begun
            found.nemesis.strikes.append(Strike("postgres", f"away for {seconds:g} s", drained))
        found.outcome.expect("seconds until everything was drained", drained, at_most=DRAIN_SECONDS_MAX)
        await found.judge()
    return found.outcome


def _expect_alive(found: Stage) -> None:
    for node in found.cluster.nodes:
        if not node.is_alive:
            found.outcome.missed.append(f"{node.role} {node.number} ended by itself: {node.text()[-500:]}")


def _resident_mb(found: Stage) -> float:
    sizes = []
    for node in found.cluster.nodes:
        if node.is_alive:
            pages = int(Path(f"/proc/{node.pid}/statm").read_text().split()[1])
            sizes.append(pages * os.sysconf("SC_PAGE_SIZE") / 1024**2)
    return max(sizes)


# --- the network ---------------------------------------------------------------------------------------------


async def lost_answers(seed: int, shape: Shape, *, seconds: float, share: float = 0.05) -> Outcome:
    """F8: between everybody and the servers, after the request was served."""
    says = f"{share:.0%} of all answers of servers are lost"
    async with stage("F8", says, seed=seed, shape=replace(shape, workers=0)) as found, AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(proxied(Proxy(node.port, share, found.chance)))
            for node in found.cluster.of("server")
        ]
        found.cluster.worker_urls = [proxy.url for proxy in proxies]
        for _ in range(shape.workers):
            await found.cluster.add("worker").start()
        for proxy in proxies:
            proxy.is_losing = True
        async with found.driven():
            await asyncio.sleep(seconds)
        lost = sum(proxy.lost for proxy in proxies)
        found.nemesis.strikes.extend(Strike("network", "an answer is lost") for _ in range(lost))
        found.outcome.figures["answers"] = sum(proxy.answers for proxy in proxies)
        if not lost:
            found.outcome.missed.append("no answer was lost")
        await found.judge()
    return found.outcome


# --- clocks --------------------------------------------------------------------------------------------------


async def wrong_clocks(seed: int, shape: Shape, *, seconds: float, minutes: float = 10.0) -> Outcome:
    """F11: every process has a clock of its own, and in the middle of it all some step back."""
    async with stage("F11", f"clocks wrong by up to {minutes:g} min, stepping back", seed=seed, shape=shape) as found:
        for node in found.cluster.nodes:
            node.signal(signal.SIGTERM)
        for node in found.cluster.nodes:
            assert node.process is not None
            await asyncio.to_thread(node.process.wait, 30)
        for number, node in enumerate(found.cluster.nodes):
            sign = 1 if number % 2 else -1
            await node.start(clock=sign * found.chance.uniform(0.5, 1.0) * minutes * 60)
        async with found.driven():
            for _ in range(3):
                await asyncio.sleep(seconds / 3)
                node = found.chance.choice(found.cluster.nodes)
                node.signal(signal.SIGUSR1)
                found.nemesis.strikes.append(Strike(node.role, "its clock steps back by 60 s"))
        await found.judge()
        twice = await asked(
            found.cluster,
            "SELECT event_id FROM noetl.event WHERE execution_id >= 4194304 GROUP BY 1 HAVING count(*) > 1",
        )
        found.outcome.expect("ids that were given twice", len(twice or ()), at_most=0)
        again = await asked(
            found.cluster,
            "SELECT 1 FROM noetl.event WHERE event_type IN ('frame.abandoned')"
            " OR (event_type = 'command.claimed' AND meta->>'attempt' <> '1')",
        )
        # Nobody died: whatever was given out a second time was taken from a living one.
        found.outcome.expect("commands and frames taken from the living", len(again or ()), at_most=0)
    return found.outcome


# --- others in the database ----------------------------------------------------------------------------------


async def intruders(seed: int, shape: Shape, *, times: int, seconds: float = 6.0) -> Outcome:
    """F18: somebody locks a shard's row in an open transaction, reads everything, and vacuums."""
    volume = Volume(open_max=16, loop_share=0.0)
    async with stage("F18", "open transactions of intruders", seed=seed, shape=shape, volume=volume) as found:
        slowest_others, slowest_own = 0.0, 0.0
        async with found.driven():
            for _ in range(times):
                await asyncio.sleep(1.0)
                others, own = await _intrude(found, found.chance.randrange(shape.shards), seconds)
                found.nemesis.strikes.append(Strike("postgres", "a shard's row is locked", own))
                slowest_others, slowest_own = max(slowest_others, others), max(slowest_own, own)
        found.outcome.expect("seconds that another shard waited", slowest_others, at_most=3.0)
        found.outcome.expect("seconds until the locked shard went on", slowest_own, at_most=INTRUDER_SECONDS_MAX)
        await found.judge()
    return found.outcome


async def _intrude(found: Stage, shard_id: int, seconds: float) -> tuple[float, float]:
    """The longest silence of all other shards together, and that of the locked one behind the intruder's end."""
    connection = await asyncpg.connect(found.cluster.dsn)
    reader = await asyncpg.connect(found.cluster.dsn)
    try:
        await connection.execute("BEGIN")
        await connection.execute("UPDATE noetl.execution_shard SET updated_at = now() WHERE shard_id = $1", shard_id)
        query = asyncio.ensure_future(
            reader.fetchval("SELECT count(*) FROM noetl.event AS a JOIN noetl.event AS b USING (shard_id)")
        )
        silence = await _longest_silence(found, shard_id, seconds)
        await connection.execute("ROLLBACK")
        await connection.execute("VACUUM (FULL, ANALYZE) noetl.stream")
        query.cancel()
        return silence, await _until_going(found, shard_id)
    finally:
        connection.terminate()
        reader.terminate()


async def _longest_silence(found: Stage, shard_id: int, seconds: float) -> float:
    text = "SELECT sum(next_position) AS n FROM noetl.execution_shard WHERE shard_id <> $1"
    begun = last = time.monotonic()
    longest, head = 0.0, -1
    while time.monotonic() - begun < seconds:
        rows = await asked(found.cluster, text, shard_id)
        if rows and int(rows[0]["n"]) != head:
            head, last = int(rows[0]["n"]), time.monotonic()
        longest = max(longest, time.monotonic() - last)
        await asyncio.sleep(0.05)
    return longest


async def _until_going(found: Stage, shard_id: int) -> float:
    """Seconds until something is appended to the shard; 0 when nothing in it waits."""
    text = (
        "SELECT next_position AS head,"
        " EXISTS (SELECT 1 FROM noetl.stream WHERE shard_id = $1 AND NOT closed) AS is_open"
        " FROM noetl.execution_shard WHERE shard_id = $1"
    )
    begun, before = time.monotonic(), None
    while time.monotonic() - begun < 2 * INTRUDER_SECONDS_MAX:
        rows = await asked(found.cluster, text, shard_id)
        if rows:
            before = rows[0]["head"] if before is None else before
            if rows[0]["head"] > before or not rows[0]["is_open"]:
                return time.monotonic() - begun
        await asyncio.sleep(0.05)
    return float("inf")
