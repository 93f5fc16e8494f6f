"""F16 and F20: more work than there is room for, and servers that come and go."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import asyncpg

from tests.fault.suite.cluster import Node, Shape
from tests.fault.suite.decisions import deciders_of, owner_of, until_decided
from tests.fault.suite.nemesis import Strike, asked, holdings, until_let_go
from tests.fault.suite.oracle import ACKNOWLEDGED, REFUSED, UNKNOWN
from tests.fault.suite.stage import Outcome, Stage, stage, submitted
from tests.fault.suite.workload import CHAIN, HEAD, Volume

RESIDENT_MB_MAX = 600.0
NORMAL_SECONDS_MAX = 30.0
TAKEOVER_SECONDS_MAX = 10.0
PROBES = 3
PLAIN_LEASES = {"NOETL_SHARD_LEASE_SEC": "6", "NOETL_SHARD_HEARTBEAT_SEC": "2"}


# --- F16 -----------------------------------------------------------------------------------------------------


async def overload(seed: int, shape: Shape, *, seconds: float, clients: int) -> Outcome:
    """Many more clients than there is room for; afterwards the door is as quick as before.  What was accepted is worked
    off in its turn: that it takes its time is no trouble."""
    says = f"{clients} clients submit without a pause for {seconds:g} s"
    async with stage("F16", says, seed=seed, shape=shape, volume=Volume(open_max=0)) as found:
        before = await _answered(found)
        answers: Counter[str] = Counter()
        deadline = time.monotonic() + seconds
        largest = 0.0
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(_hammer(found, f"client{number}", deadline, answers))
            while time.monotonic() < deadline:
                largest = max(largest, _largest_mb(found))
                await asyncio.sleep(0.5)
        begun = time.monotonic()
        while (after := await _answered(found)) > max(0.5, 3 * before):
            if time.monotonic() - begun > 2 * NORMAL_SECONDS_MAX:
                break
        normal = time.monotonic() - begun
        found.outcome.figures |= {f"answers: {name}": count for name, count in answers.items()}
        found.outcome.figures |= {
            "seconds of an answer before": round(before, 3),
            "seconds of an answer after": round(after, 3),
        }
        found.outcome.expect("resident MB of the largest server", largest, at_most=RESIDENT_MB_MAX)
        found.outcome.expect("timeouts", answers["timeout"], at_most=0)
        found.outcome.expect("refusals without Retry-After", answers["503 without Retry-After"], at_most=0)
        if not answers["503"]:
            found.outcome.missed.append("nothing was refused: that was no overload")
        found.outcome.expect("seconds until normal", normal, at_most=NORMAL_SECONDS_MAX)
        found.nemesis.strikes.append(Strike("clients", "overload", normal))
        found.outcome.figures["submissions per second that were offered"] = round(sum(answers.values()) / seconds, 1)
        found.outcome.figures["seconds until a new run had ended"] = round(await _until_new_ended(found), 1)
        await found.driver.until_quiet(seconds=300)
        found.outcome.figures["seconds until all of it was worked off"] = round(time.monotonic() - begun, 1)
        await found.judge()
    return found.outcome


async def _answered(found: Stage) -> float:
    """Seconds until a submission is acknowledged."""
    begun = time.monotonic()
    await found.driver.submit(is_loop=False)
    return time.monotonic() - begun


async def _until_new_ended(found: Stage) -> float:
    """Seconds from a submission after the overload to its end, behind all that was accepted before."""
    begun = time.monotonic()
    run = await found.driver.submit(is_loop=False)
    while not await _is_closed(found, found.driver.acknowledged[run]) and time.monotonic() - begun < 300:
        await asyncio.sleep(0.1)
    return time.monotonic() - begun


async def _hammer(found: Stage, name: str, deadline: float, answers: Counter[str]) -> None:
    """A client without manners: it does not wait, whatever it is told.  What it was told goes to the oracle."""
    assert found.cluster.session is not None
    number = 0
    while time.monotonic() < deadline:
        number += 1
        run = f"{name}-{number}"
        body = {"playbook": CHAIN, "payload": {"run": run, "items": 1, "parts": 1}}
        head = {"Authorization": f"Bearer {found.cluster.environment['NOETL_TOKEN']}", "Idempotency-Key": run}
        limit = aiohttp.ClientTimeout(total=20)
        url = f"{found.chance.choice(found.cluster.urls)}/api/executions"
        try:
            async with found.cluster.session.post(url, json=body, headers=head, timeout=limit) as answer:
                if answer.status == 201:
                    execution_id = int((await answer.json())["execution_id"])
                    answers["201"] += 1
                    found.driver.expected[run] = 1
                    await found.driver.oracle.note(run, ACKNOWLEDGED, execution_id)
                else:
                    has_advice = "Retry-After" in answer.headers
                    answers[str(answer.status) if has_advice else f"{answer.status} without Retry-After"] += 1
                    await found.driver.oracle.note(run, REFUSED)
        except TimeoutError:
            answers["timeout"] += 1
            found.driver.expected[run] = 1
            await found.driver.oracle.note(run, UNKNOWN)
        except aiohttp.ClientError:
            answers["broken"] += 1
            found.driver.expected[run] = 1
            await found.driver.oracle.note(run, UNKNOWN)


def _largest_mb(found: Stage) -> float:
    pages = [int(Path(f"/proc/{node.pid}/statm").read_text().split()[1]) for node in found.cluster.of("server")]
    return max(pages) * os.sysconf("SC_PAGE_SIZE") / 1024**2


# --- F20 -----------------------------------------------------------------------------------------------------

_FENCE_LOG = """
CREATE TABLE public.fence_log (shard_id integer, epoch bigint, owner bigint, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION public.log_fence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.fence_log (shard_id, epoch, owner) VALUES (new.shard_id, new.epoch, new.owner_runtime_id);
    RETURN NULL;
END $$;
CREATE TRIGGER fence AFTER UPDATE ON noetl.execution_shard FOR EACH ROW
WHEN (old.epoch IS DISTINCT FROM new.epoch OR old.owner_runtime_id IS DISTINCT FROM new.owner_runtime_id)
EXECUTE FUNCTION public.log_fence();
"""


async def rebalance(seed: int, shape: Shape, *, more_shards: int) -> Outcome:
    """Three servers, then one, then four, then twice as many shards for new executions; leases as shipped."""
    shape = Shape(servers=3, workers=shape.workers, projectors=shape.projectors, slots=shape.slots, extra=PLAIN_LEASES)
    async with stage("F20", "3 servers, 1, 4; more shards", seed=seed, shape=shape) as found:
        await _log_fences(found)
        async with found.driven():
            await asyncio.sleep(3.0)
            servers = found.cluster.of("server")
            probes = [await _probes(found, node) for node in servers[1:]]
            dead = [node.instance for node in servers[1:]]
            lost = zip(servers[1:], probes, strict=True)
            await asyncio.gather(*(_lost_server(found, node, own, dead) for node, own in lost))
            await asyncio.sleep(2.0)
            joined = found.cluster.add("server")
            await asyncio.gather(*(node.start() for node in (*servers[1:], joined)))
            seconds = await _until_shared(found, 4)
            found.outcome.expect("seconds until four servers had their shares", seconds, at_most=TAKEOVER_SECONDS_MAX)
            if more_shards:
                await _widen(found, more_shards)
        await _expect_one_owner(found)
        await found.judge()
    return found.outcome


async def _log_fences(found: Stage) -> None:
    connection = await asyncpg.connect(found.cluster.postgres.dsn(database=found.cluster.database, user="postgres"))
    try:
        await connection.execute(_FENCE_LOG)
        await connection.execute("GRANT ALL ON public.fence_log TO noetl")
    finally:
        await connection.close()


# One row at a time, each with a decision behind it, for longer than a server needs to be missed.
PROBE = """
workflow:
  - step: rows
    loop:
      in: "{{ range(60) | list }}"
      iterator: n
      spec: {mode: sequential, frame: {max_rows: 1, max_attempts: 100}}
    tool: {kind: postgres, auth: oracle, command: "SELECT pg_sleep(0.2)"}
"""


async def _probes(found: Stage, node: Node) -> list[int]:
    """Executions in shards of a server that need a decision again and again."""
    probes: list[int] = []
    for number in range(10 * PROBES):
        run = f"probe-{node.number}-{number}"
        execution_id = await submitted(found, HEAD % "probe" + PROBE, run, url=node.url)
        if await owner_of(found.cluster, execution_id) is node:
            probes.append(execution_id)
        if len(probes) == PROBES:
            break
    deadline = time.monotonic() + 30.0
    for execution_id in probes:
        while len(await deciders_of(found.cluster, execution_id)) < 3 and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
    return probes


async def _lost_server(found: Stage, node: Node, probes: Sequence[int], dead: Sequence[str]) -> None:
    """`probes` are in its shards, `dead` are all that are killed at this moment."""
    cluster, outcome = found.cluster, found.outcome
    what = await holdings(cluster, node.instance)
    probes = [one for one in probes if await owner_of(cluster, one) is node and not await _is_closed(found, one)]
    node.kill()
    since = time.monotonic()
    decided = asyncio.gather(*(until_decided(cluster, one, dead, since) for one in probes))
    let_go = await until_let_go(cluster, what, since)
    seconds = max(await decided, default=None)
    found.nemesis.strikes.append(Strike("server", "gone for good", seconds))
    if let_go is None or seconds is None:
        outcome.missed.append(f"server {node.number} had nothing that anybody could miss")
        return
    for name, value in (("had another owner", let_go), ("decided again", seconds)):
        outcome.expect(f"seconds until shards of server {node.number} {name}", value, at_most=TAKEOVER_SECONDS_MAX)


async def _is_closed(found: Stage, execution_id: int) -> bool:
    rows = await asked(found.cluster, "SELECT closed FROM noetl.stream WHERE execution_id = $1", execution_id)
    return bool(rows and rows[0]["closed"])


async def _until_shared(found: Stage, servers: int) -> float:
    """Seconds until every server owns its share."""
    begun = time.monotonic()
    while time.monotonic() - begun < 60:
        rows = await asked(
            found.cluster,
            "SELECT s.owner_runtime_id, count(*) AS n FROM noetl.execution_shard AS s JOIN noetl.runtime AS r"
            " ON r.runtime_id = s.owner_runtime_id WHERE r.alive_until > clock_timestamp() GROUP BY 1",
        )
        counts = [row["n"] for row in rows or ()]
        total = sum(counts)
        if len(counts) == servers and max(counts) <= -(-total // servers):
            return time.monotonic() - begun
        await asyncio.sleep(0.05)
    return float("inf")


async def _widen(found: Stage, shards: int) -> None:
    """More shards for new executions: migrate, then one server after the other comes back with the new count."""
    environment = {
        **found.cluster.environment,
        "NOETL_SHARD_COUNT": str(shards),
        "NOETL_HOME": str(found.cluster.folder),
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "noetl", "migrate", env=environment)
    assert await process.wait() == 0
    for node in found.cluster.of("server"):
        node.signal(signal.SIGTERM)
        assert node.process is not None
        await asyncio.to_thread(node.process.wait, 30)
        node.extra["NOETL_SHARD_COUNT"] = str(shards)
        await node.start()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        rows = await asked(found.cluster, "SELECT max(shard_id) AS n FROM noetl.stream")
        if rows and rows[0]["n"] >= found.cluster.shape.shards:
            return
        await asyncio.sleep(0.2)
    found.outcome.missed.append("no new execution came into one of the new shards")


async def _expect_one_owner(found: Stage) -> None:
    """By the log of the fence: an epoch has one owner, and epochs only rise."""
    rows = await asked(found.cluster, "SELECT shard_id, epoch, owner FROM public.fence_log ORDER BY at")
    owners: dict[tuple[int, int], set[int]] = {}
    highest: dict[int, int] = {}
    for row in rows or ():
        if row["epoch"] < highest.get(row["shard_id"], 0):
            found.outcome.missed.append(f"the epoch of shard {row['shard_id']} went back to {row['epoch']}")
        highest[row["shard_id"]] = row["epoch"]
        if row["owner"] is not None:
            owners.setdefault((row["shard_id"], row["epoch"]), set()).add(row["owner"])
    for (shard_id, epoch), found_owners in owners.items():
        if len(found_owners) > 1:
            found.outcome.missed.append(f"shard {shard_id} had {len(found_owners)} owners in epoch {epoch}")
    found.outcome.figures["changes of owners"] = len(rows or ())
