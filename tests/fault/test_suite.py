"""The short form of the fault suite: a few faults of every sort over real processes, and a checker that can fail."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from noetl.points import POINTS
from tests.fault.suite.checker import check
from tests.fault.suite.cluster import ROOT, Shape
from tests.fault.suite.faults import kills, surroundings
from tests.fault.suite.findings import Findings
from tests.fault.suite.nemesis import Strike
from tests.fault.suite.report import BEGIN, PAGE, matrix, quantile, told, write
from tests.fault.suite.stage import Outcome, Stage, stage, submitted
from tests.fault.suite.workload import HEAD, Volume
from tests.support.aio import asynchronous

SHAPE = Shape(servers=1, workers=2, projectors=0, has_own_postgres=False)
SEED = 7


def expect_good(outcome: Outcome) -> None:
    """The checker's word; how long things took is for runs on a machine of their own."""
    assert outcome.findings.is_clean, told(outcome)
    assert outcome.findings.executions, "nothing ran"


@asynchronous
async def test_killed_at_random_and_at_named_moments_nothing_is_lost_or_doubled() -> None:
    names = ("server.advanced", "worker.stored", "payload.renamed", "projector.folded")
    async with stage("short", "a few kills", seed=SEED, shape=SHAPE, volume=Volume(items=60)) as found:
        async with found.driven():
            await found.nemesis.at_random({"server": 1, "worker": 1}, pause=(0.2, 0.6))
            for name in names:
                await kills.strike_point(found, name, "kill")
        await found.judge()
    expect_good(found.outcome)
    assert {strike.moment for strike in found.outcome.strikes} == {"at random", *names}


@asynchronous
async def test_answers_that_were_lost_double_nothing() -> None:
    outcome = await surroundings.lost_answers(SEED, SHAPE, seconds=3.0, share=0.1)
    expect_good(outcome)
    assert outcome.strikes, "no answer was lost"


# --- the checker can fail ------------------------------------------------------------------------------------

ANY = "(SELECT execution_id FROM noetl.stream WHERE closed ORDER BY execution_id LIMIT 1)"
LAST = f"execution_id = {ANY} AND position = (SELECT max(position) FROM noetl.event WHERE execution_id = {ANY})"
FIRST = "(SELECT min(execution_id) FROM noetl.event WHERE event_type = 'frame.committed')"
FAILED, CANCELLED = (
    f"(SELECT max(execution_id) FROM noetl.event WHERE event_type = '{kind}')"
    for kind in ("playbook.failed", "execution.cancelled")
)
PLANTED: dict[str, tuple[str, str]] = {
    "a position is missing": (f"DELETE FROM noetl.event WHERE {LAST}", "lost"),
    "an execution has no end": (
        f"UPDATE noetl.event SET event_type = 'step.decided' WHERE {LAST}",
        "lost",
    ),
    "a command ended and was never issued": (
        f"UPDATE noetl.event SET event_type = 'step.decided' WHERE execution_id = {ANY}"
        " AND event_type = 'command.issued'",
        "lost",
    ),
    "a frame was never committed": (
        f"UPDATE noetl.event SET event_type = 'frame.heartbeat' WHERE execution_id = {FIRST}"
        " AND event_type = 'frame.committed'",
        "lost",
    ),
    "a row is in two frames": (
        "UPDATE noetl.event SET meta = (meta::jsonb || '{\"first\": 0}')::json WHERE event_type = 'frame.dispatched'"
        f" AND execution_id = {FIRST}",
        "duplicated",
    ),
    "a transition is there twice": (
        f"DROP INDEX noetl.uidx_event_transition;"
        f" UPDATE noetl.event SET transition_key = 'playbook.initialized' WHERE execution_id = {ANY}"
        " AND event_type = 'command.claimed'",
        "duplicated",
    ),
    "the second loop of an execution has a shard without an end": (
        "UPDATE noetl.event SET event_type = 'step.decided' WHERE transition_key = 'loop.shard.terminal/second#1/1'",
        "lost",
    ),
    "a loop counts more than its frames": (
        "UPDATE noetl.event SET meta = (meta::jsonb || '{\"done\": 21}')::json"
        " WHERE transition_key = 'loop.done/first#1'",
        "broken",
    ),
    "an execution that failed is shown as running": (
        f"UPDATE noetl.execution SET status = 'RUNNING' WHERE execution_id = {FAILED}",
        "broken",
    ),
    "a command of an execution that failed has no end": (
        f"UPDATE noetl.event SET event_type = 'step.decided' WHERE execution_id = {FAILED}"
        " AND event_type IN ('command.completed', 'command.failed')",
        "lost",
    ),
    "a frame of a loop that failed was begun and has no end": (
        f"UPDATE noetl.event SET event_type = 'frame.heartbeat' WHERE execution_id = {FAILED}"
        " AND event_type IN ('frame.committed', 'frame.failed')",
        "lost",
    ),
    "a frame was ended by an attempt that did not hold it": (
        "UPDATE noetl.event SET meta = (meta::jsonb || '{\"attempt\": 9}')::json WHERE event_type = 'frame.started'"
        f" AND execution_id = {FAILED}",
        "broken",
    ),
    "a loop of an execution that was cancelled has no end": (
        f"UPDATE noetl.event SET event_type = 'step.decided' WHERE execution_id = {CANCELLED}"
        " AND event_type = 'loop.done'",
        "lost",
    ),
    "a frame that was held has no end though its execution was cancelled": (
        f"UPDATE noetl.event SET event_type = 'frame.heartbeat' WHERE execution_id = {CANCELLED}"
        " AND event_type IN ('frame.committed', 'frame.failed')",
        "lost",
    ),
    "something comes behind the end": (
        "UPDATE noetl.event SET event_type = 'step.decided', transition_key = 'moved' WHERE event_type ="
        f" 'execution.cancelled'; UPDATE noetl.event SET event_type = 'execution.cancelled' WHERE execution_id ="
        f" {CANCELLED} AND event_type = 'execution.cancel_requested'",
        "broken",
    ),
    "a payload is gone": ("DELETE FROM noetl.payload", "lost"),
    "a payload has other bytes": ("UPDATE noetl.payload SET content = 'other'", "broken"),
    "the projection lies": ("UPDATE noetl.execution SET status = 'RUNNING'", "broken"),
    "the projection is behind": ("UPDATE noetl.execution SET applied_position = applied_position - 1", "broken"),
    "a timer is left": (
        f"INSERT INTO noetl.timer (execution_id, name, shard_id, due_at) SELECT {ANY}, 'late', 0, now()",
        "broken",
    ),
    "a dead process has a lease": (
        "INSERT INTO noetl.runtime (runtime_id, node_number, instance, kind, leased_until, alive_until)"
        " VALUES (999999, 1023, 'nobody-1', 'host', 'infinity', 'infinity');"
        " UPDATE noetl.execution_shard SET owner_runtime_id = 999999 WHERE shard_id = 0",
        "broken",
    ),
}


# A loop behind a loop, the second a fan-out of which every shard fails once.
LOOPS = """
workflow:
  - step: first
    loop: {in: "{{ range(20) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 4, frame: {max_rows: 5}}}
    tool: {kind: noop}
    next: second
  - step: second
    loop: {in: "{{ range(6) | list }}", iterator: n, spec: {mode: fanout, max_in_flight: 2, fanout: {shard_size: 2}}}
    tool:
      kind: python
      input: {n: "{{ n }}"}
      code: |
        import pathlib
        mark = pathlib.Path("FOLDER") / f"ran-{n}"
        has_run = mark.exists()
        mark.touch()
        result = {"n": n} if has_run else 1 // 0
"""


@asynchronous
async def test_every_planted_defect_is_found() -> None:
    volume = Volume(open_max=0, items=120)
    async with stage("check", "no fault at all", seed=SEED, shape=SHAPE, volume=volume) as found:
        for is_loop in (False, True):
            await found.driver.submit(is_loop=is_loop)
        await found.driver.until_quiet(seconds=30)
        await submitted(found, HEAD % "loops" + LOOPS.replace("FOLDER", str(found.cluster.folder)), "loops")
        for is_cancelled in (False, True):
            await found.driver.submit_unhappy(is_cancelled=is_cancelled)
        await found.driver.until_quiet(seconds=30)
        await found.judge()
        expect_good(found.outcome)
        connection = await asyncpg.connect(found.cluster.dsn)
        try:
            for name, (text, kind) in PLANTED.items():
                planted = await _planted(found, connection, text)
                assert getattr(planted, kind), f"{name}: {planted.text()}"
        finally:
            await connection.close()
        await _check_outer_world(found)


async def _planted(found: Stage, connection: Any, text: str) -> Findings:
    """What the checker says while the defect is there; afterwards it never was."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(text)
        return await check(found.driver, connection=connection)
    finally:
        await transaction.rollback()


async def _check_outer_world(found: Stage) -> None:
    driver = found.driver
    loop = max(driver.expected, key=lambda run: driver.expected[run])
    driver.expected[loop] += 1
    assert any("had no effect" in one for one in (await check(driver)).lost)
    driver.expected[loop] -= 1
    await driver.oracle.note("never-there", "ok", 2**62)
    assert any("acknowledged and is not there" in one for one in (await check(driver)).lost)
    first, second = sorted(driver.acknowledged.values())[:2]
    await driver.oracle.note("twice", "ok", first)
    await driver.oracle.note("twice", "ok", second)
    assert any("was acknowledged as executions" in one for one in (await check(driver)).duplicated)


# --- points and report ---------------------------------------------------------------------------------------


def test_every_named_point_stands_in_the_source_and_every_point_has_a_name() -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / "src" / "noetl").rglob("*.py")]
    written = {name for text in texts for name in re.findall(r"\bpoint\(\"([a-z._]+)\"\)", text)}
    assert written == set(POINTS)


def test_the_matrix_counts_by_component_and_moment() -> None:
    outcome = Outcome("F1", "", 1, strikes=[Strike("worker", "at random", n / 10) for n in range(1, 11)])
    outcome.strikes.append(Strike("server", "at random"))
    outcome.findings.lost.append("something")
    assert matrix([outcome]) == [
        ("server", "at random", "1", "1", "0", "", "", ""),
        ("worker", "at random", "10", "1", "0", "0.5", "1.0", "1.0"),
    ]


def test_a_run_is_written_between_the_marks_and_behind_the_history(tmp_path: Path) -> None:
    page, history = tmp_path / "page.md", tmp_path / "history.jsonl"
    page.write_text(PAGE.read_text("utf-8"), "utf-8")
    outcome = Outcome("F1", "kills", 3, strikes=[Strike("worker", "at random", 1.5)], seconds=2.0)
    outcome.expect("seconds", 9.0, at_most=5.0)
    for seed in (3, 4):
        write([outcome], seed=seed, seconds=2.0, page=page, history=history)
    text = page.read_text("utf-8")
    assert text.count("| worker | at random | 1 | 0 | 0 | 1.5 | 1.5 | 1.5 |") == 1
    assert "seed 4" in text
    assert "seed 3" not in text
    assert "All 2 recorded runs together: 2 faults, lost 0, duplicated 0" in text
    assert "not reached: seconds is 9.00 and not at most 5" in text
    assert text.partition(BEGIN)[0] == PAGE.read_text("utf-8").partition(BEGIN)[0]
    lines = [json.loads(line) for line in history.read_text("utf-8").splitlines()]
    assert [(line["seed"], line["faults"], line["is_good"]) for line in lines] == [
        (3, {"worker": 1}, False),
        (4, {"worker": 1}, False),
    ]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.0), (0.99, 4.0), (0.0, 1.0)])
def test_a_quantile_is_a_value_that_was_seen(share: float, expected: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], share) == expected
