"""F3 and F14: a long loop whose process is killed in the middle, and work that kills whoever does it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.fault.suite.cluster import Node, Shape
from tests.fault.suite.decisions import (
    deciders_of,
    frames_held,
    is_of,
    owner_of,
    until_begun_again,
    until_decided,
)
from tests.fault.suite.nemesis import Strike, asked, holdings
from tests.fault.suite.poison import AppendingLedger
from tests.fault.suite.stage import Outcome, Stage, stage, submitted
from tests.fault.suite.workload import HEAD, Volume
from tests.fault.test_loop_kill import IN_FLIGHT, ITEM_SECONDS, PERSIST_SECONDS, PLAYBOOK, check_loop, read_journal

LEASE_SECONDS = 1.5
RESUME_SECONDS_MAX = 5.0


async def half_of_a_loop(seed: int, shape: Shape, *, items: int, victims: tuple[str, ...]) -> Outcome:
    """F3: once for each victim; `all` is every process at the same moment."""
    says = f"SIGKILL at half of a loop of {items} items"
    async with stage("F3", says, seed=seed, shape=shape, volume=Volume(open_max=0)) as found:
        for victim in victims:
            await _killed_at_half(found, items, victim)
        await found.judge()
    return found.outcome


async def _killed_at_half(found: Stage, items: int, victim: str) -> None:
    cluster, outcome = found.cluster, found.outcome
    journal = cluster.folder / f"journal-{victim}"
    text = PLAYBOOK.format(items=items, in_flight=IN_FLIGHT, seconds=ITEM_SECONDS, journal=journal)
    execution_id = await submitted(found, text, f"half-{victim}")
    await _until(lambda: len(read_journal(journal).ended) >= items // 2)
    nodes = cluster.nodes if victim == "all" else [await _holder(found, victim, execution_id)]
    instances = [node.instance for node in nodes]
    sessions = [one for name in instances for one in (await holdings(cluster, name)).sessions]
    deciders = await deciders_of(cluster, execution_id)
    if victim == "server" and not is_of(deciders[-1], instances):
        outcome.missed.append("the server that was killed is not the one that decided about the loop")
    for node in nodes:
        node.kill()
    since = time.monotonic()
    held = await frames_held(cluster, execution_id, sessions)
    if victim != "server" and not held:
        outcome.missed.append(f"nothing of the loop was under way at the end ({victim})")
    # Where another server is left, that one must take over: one that comes back at once might be faster.
    starting = None if victim == "server" else asyncio.gather(*(node.start() for node in nodes))
    waits = {}
    if victim != "worker":
        waits["another decided about the loop"] = until_decided(cluster, execution_id, instances, since)
    if victim != "server":
        waits["its frames were begun again"] = until_begun_again(cluster, execution_id, sessions, since)
    times = await asyncio.gather(*waits.values())
    await (starting or asyncio.gather(*(node.start() for node in nodes)))
    found.nemesis.strikes.append(Strike(victim, "half of a loop", max(times)))
    await found.driver.until_quiet(seconds=120)
    check_loop(await _events(found, execution_id), items)
    for what, seconds in zip(waits, times, strict=True):
        name = f"seconds until {what}, after the lease ({victim})"
        outcome.expect(name, seconds - LEASE_SECONDS, at_most=RESUME_SECONDS_MAX)
    at_most = IN_FLIGHT + IN_FLIGHT * PERSIST_SECONDS / ITEM_SECONDS
    outcome.expect(f"items that ran again ({victim})", read_journal(journal).repeated, at_most=at_most)


async def _holder(found: Stage, role: str, execution_id: int) -> Node:
    """The server that decides about the loop, or a worker that has a part of it."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        if role == "server":
            owner = await owner_of(found.cluster, execution_id)
            if owner is not None:
                return owner
            continue
        for node in found.cluster.of("worker"):
            sessions = (await holdings(found.cluster, node.instance)).sessions
            if await frames_held(found.cluster, execution_id, sessions):
                return node
    raise AssertionError(f"no {role} has anything to do with the loop")


async def _events(found: Stage, execution_id: int) -> list[dict[str, Any]]:
    status, answer = await found.cluster.any_server("GET", f"/api/executions/{execution_id}/events")
    assert status == 200, answer
    events: list[dict[str, Any]] = answer["events"]
    return events


async def _until(condition: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the loop stands still"
        await asyncio.sleep(0.02)


# --- F14 -----------------------------------------------------------------------------------------------------

# The child of the worker looks for the worker, who is above the process that forks children.
DEADLY = """
workflow:
  - step: start
    tool: {{kind: python, code: "result = list(range({frames}))"}}
    next: rows
  - step: rows
    loop:
      in: "{{{{ start }}}}"
      iterator: n
      spec: {{mode: parallel, max_in_flight: 16, frame: {{max_rows: 1, max_attempts: 2}}}}
    spec: {{policy: {{failure: {{mode: best_effort}}}}}}
    tool:
      kind: python
      input: {{n: "{{{{ n }}}}"}}
      code: |
        import os, pathlib, signal
        pid = os.getppid()
        while pid > 1:
            words = pathlib.Path(f"/proc/{{pid}}/cmdline").read_bytes().split(b"\\0")
            above = int(pathlib.Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[1])
            if b"worker" in words:
                os.kill(pid, signal.SIGKILL)
            pid = above
        result = n
"""


async def deadly_frames(seed: int, shape: Shape, *, frames: int) -> Outcome:
    """F14: frames that kill their worker fail after their attempts; the rest of the workload does not suffer."""
    says, volume = f"{frames} frames that kill their worker", Volume(unhappy_share=0.0)
    async with stage("F14", says, seed=seed, shape=shape, volume=volume) as found:
        reviving = asyncio.ensure_future(_revive(found))
        try:
            async with found.driven():
                execution_id = await submitted(found, HEAD % "deadly" + DEADLY.format(frames=frames), "deadly")
                await _until_closed(found, execution_id)
        finally:
            reviving.cancel()
        events = await _events(found, execution_id)
        ends = [event["event_type"] for event in events if event["transition_key"].startswith("frame.terminal/")]
        if ends != ["frame.failed"] * frames:
            found.outcome.missed.append(f"{len(ends)} deadly frames ended, as {sorted(set(ends))}")
        attempts = [event["meta"]["attempt"] for event in events if event["event_type"] == "frame.started"]
        found.outcome.expect("attempts at a deadly frame", max(attempts), at_most=2)
        await found.judge(may_fail=True)
        await _expect_others_completed(found, execution_id)
    return found.outcome


# It waits in a pool that has no worker: open, and in nobody's way.
WAITING = """
workflow:
  - step: start
    tool: {kind: spark, sql: "select 1 as one"}
"""


async def poison(seed: int, shape: Shape, *, events: int) -> Outcome:
    """F14: events that nobody can fold are set aside with their executions, and with nothing else."""
    async with stage("F14p", f"{events} events that cannot be folded", seed=seed, shape=shape) as found:
        before = await _completed_in(found, 5.0)
        poisoned = set()
        async with AppendingLedger(found.cluster.dsn) as ledger:
            for number in range(events):
                execution_id = await submitted(found, HEAD % "waiting" + WAITING, f"poisoned-{number}")
                await ledger.append_poison(execution_id)
                poisoned.add(execution_id)
                found.nemesis.strikes.append(Strike("ledger", "an event cannot be folded"))
        after = await _completed_in(found, 5.0)
        found.outcome.figures |= {"runs per second before": before, "runs per second with them": after}
        found.outcome.expect("slowdown of the others", before / max(after, 0.01), at_most=2.0)
        await found.judge()
        wrong = found.outcome.findings.set_aside ^ poisoned
        found.outcome.expect("executions set aside by mistake, or not set aside", len(wrong), at_most=0)
    return found.outcome


async def _completed_in(found: Stage, seconds: float) -> float:
    """Plain runs that end in a second, one after the other."""
    begun, count = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        run = await found.driver.submit(is_loop=False)
        await _until_closed(found, found.driver.acknowledged[run])
        count += 1
    return round(count / (time.monotonic() - begun), 2)


async def _revive(found: Stage) -> None:
    """Start workers again that were killed from inside."""
    while True:
        for node in found.cluster.of("worker"):
            if not node.is_alive:
                found.nemesis.strikes.append(Strike("worker", "killed by its own frame"))
                await node.start()
        await asyncio.sleep(0.05)


async def _until_closed(found: Stage, execution_id: int, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        rows = await asked(found.cluster, "SELECT closed FROM noetl.stream WHERE execution_id = $1", execution_id)
        if rows and rows[0]["closed"]:
            return
        await asyncio.sleep(0.02)
    found.outcome.missed.append(f"execution {execution_id} did not end in {seconds:g} s")


async def _expect_others_completed(found: Stage, deadly: int) -> None:
    rows = await asked(
        found.cluster,
        "SELECT execution_id FROM noetl.event WHERE event_type = 'playbook.failed' AND execution_id <> $1",
        deadly,
    )
    found.outcome.expect("other executions that failed", len(rows or ()), at_most=0)
