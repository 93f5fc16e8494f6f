"""What must hold whatever happened, read from the raw tables and the oracle.  Nothing of the engine is asked."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import asyncpg

from tests.fault.suite.findings import Findings
from tests.fault.suite.oracle import Oracle
from tests.fault.suite.replaying import differences
from tests.fault.suite.stories import CLOSING, check_story
from tests.fault.suite.workload import Driver

STATUSES = {"playbook.completed": "COMPLETED", "playbook.failed": "FAILED", "execution.cancelled": "CANCELLED"}
FIRST_EXECUTION = 4_194_304
"""Below are the executions of the system."""


async def check(driver: Driver, *, may_fail: bool = False, connection: Any = None) -> Findings:
    """All of it.  `may_fail` admits executions that ended as failed, and rows of them that never ran."""
    found = Findings()
    own = await asyncpg.connect(driver.cluster.dsn) if connection is None else None
    try:
        streams = await _control_plane(driver, connection or own, found, may_fail=may_fail)
    finally:
        if own is not None:
            await own.close()
    await _outer_world(driver, streams, found, may_fail=may_fail)
    return found


async def _control_plane(driver: Driver, connection: Any, found: Findings, *, may_fail: bool) -> dict[int, list[Any]]:
    before = await connection.fetch(_HEADS)
    events = await connection.fetch(
        "SELECT shard_id, position, execution_id, stream_version, event_type, transition_key, command_id, stage_id,"
        " frame_id, meta::text AS meta, result::text AS result, payload_ref::text AS payload_ref,"
        " writes::text AS writes FROM noetl.event ORDER BY shard_id, position"
    )
    found.events = len(events)
    streams = _streams(events)
    _positions(events, before, await connection.fetch(_HEADS), found)
    await _projection(connection, found)
    for execution_id, story in streams.items():
        if execution_id in found.set_aside:
            found.executions += 1
            continue
        check_story(execution_id, story, found, allowed=_allowed(driver, execution_id, may_fail=may_fail))
    await _statuses(connection, streams, found)
    await _references(connection, events, driver.cluster.payload_root, found)
    await _queue(connection, found)
    await _leases(connection, driver, found)
    return streams


def _streams(events: Sequence[Any]) -> dict[int, list[Any]]:
    streams: dict[int, list[Any]] = {}
    for event in events:
        if event["execution_id"] >= FIRST_EXECUTION:
            streams.setdefault(event["execution_id"], []).append(event)
    return streams


def _allowed(driver: Driver, execution_id: int, *, may_fail: bool) -> Collection[str]:
    """How an execution may end."""
    return CLOSING if may_fail else driver.ends.get(execution_id, CLOSING[:1])


# --- the ledger ----------------------------------------------------------------------------------------------


_HEADS = "SELECT shard_id, next_position FROM noetl.execution_shard ORDER BY shard_id"


def _positions(events: Sequence[Any], before: Sequence[Any], after: Sequence[Any], found: Findings) -> None:
    """Every position of a shard is there once, up to its counter.  A checkpoint may come between the looks."""
    by_shard: dict[int, list[int]] = {head["shard_id"]: [] for head in after}
    for event in events:
        by_shard[event["shard_id"]].append(event["position"])
    for first, last in zip(before, after, strict=True):
        positions = by_shard[first["shard_id"]]
        is_whole = positions == list(range(1, len(positions) + 1))
        if not is_whole or not first["next_position"] - 1 <= len(positions) <= last["next_position"] - 1:
            found.lost.append(f"shard {first['shard_id']}: positions are not 1 to {first['next_position'] - 1}")


# --- payloads ------------------------------------------------------------------------------------------------


def references_in(document: Any) -> Iterator[Mapping[str, Any]]:
    """Every reference to a payload, however deep."""
    if isinstance(document, dict):
        if isinstance(document.get("sha256"), str) and "store" in document:
            yield document
        for value in document.values():
            yield from references_in(value)
    elif isinstance(document, list):
        for value in document:
            yield from references_in(value)


async def _references(connection: Any, events: Sequence[Any], root: Path, found: Findings) -> None:
    named: dict[str, Mapping[str, Any]] = {}
    for event in events:
        for part in ("meta", "result", "payload_ref", "writes"):
            if event[part] is not None:
                for reference in references_in(json.loads(event[part])):
                    named[reference["sha256"]] = reference
    small = {
        row["sha256"]: row["content"] for row in await connection.fetch("SELECT sha256, content FROM noetl.payload")
    }
    found.references = len(named)
    for digest, reference in named.items():
        content = small.get(digest)
        if content is None:
            path = root / "default" / "default" / digest[:2] / digest
            content = path.read_bytes() if path.exists() else None
        if content is None:
            found.lost.append(f"payload {digest} of store {reference['store']} is named and not there")
        elif hashlib.sha256(content).hexdigest() != digest:
            found.broken.append(f"payload {digest} has other bytes")


# --- what is derived -----------------------------------------------------------------------------------------


async def _projection(connection: Any, found: Findings) -> None:
    different, found.set_aside = await differences(connection, first_id=FIRST_EXECUTION)
    found.broken.extend(different)


async def _statuses(connection: Any, streams: Mapping[int, Sequence[Any]], found: Findings) -> None:
    """What has ended stays ended, and as what it ended, whatever comes late."""
    shown = {row["execution_id"]: row for row in await connection.fetch(_SHOWN)}
    for execution_id, story in streams.items():
        ends = [event["event_type"] for event in story if event["event_type"] in CLOSING]
        if len(ends) != 1 or execution_id in found.set_aside:
            continue
        row = shown.get(execution_id)
        if row is None or not row["closed"] or row["status"] != STATUSES[ends[0]]:
            found.broken.append(f"execution {execution_id}: {ends[0]} is shown as {dict(row) if row else None}")


_SHOWN = """
SELECT execution_id, s.closed, e.status FROM noetl.stream AS s LEFT JOIN noetl.execution AS e USING (execution_id)
"""


async def _queue(connection: Any, found: Findings) -> None:
    """Nothing is open, so nothing waits."""
    for table in ("command", "timer"):
        text = f"SELECT count(*) FROM noetl.{table} WHERE execution_id <> ALL ($1::bigint[])"
        left = await connection.fetchval(text, sorted(found.set_aside))
        if left:
            found.broken.append(f"{left} rows are left in noetl.{table}")


# Who holds something by a lease that has not run out, by table.
_HOLDERS = {
    "execution_shard": "SELECT r.instance FROM noetl.execution_shard AS t JOIN noetl.runtime AS r"
    " ON r.runtime_id = t.owner_runtime_id WHERE r.alive_until > clock_timestamp()",
    "session": "SELECT r.instance FROM noetl.session AS t JOIN noetl.runtime AS r USING (runtime_id)"
    " WHERE r.alive_until > clock_timestamp() AND t.leased_until > clock_timestamp()",
    "runtime_role": "SELECT r.instance FROM noetl.runtime_role AS t JOIN noetl.runtime AS r USING (runtime_id)"
    " WHERE t.leased_until > clock_timestamp()",
    "projection_checkpoint": "SELECT p.instance FROM noetl.projection_checkpoint AS t JOIN noetl.projector AS p"
    " ON p.runtime_id = t.owner_runtime_id WHERE t.leased_until > clock_timestamp()",
}


async def _leases(connection: Any, driver: Driver, found: Findings) -> None:
    """Whoever holds a lease that has not run out is alive."""
    alive = {node.instance for node in driver.cluster.nodes if node.is_alive}
    for table, text in _HOLDERS.items():
        holders = {row["instance"] for row in await connection.fetch(text)}
        found.broken.extend(f"{one} is dead and has a lease in noetl.{table}" for one in sorted(holders - alive))


# --- the outer world -----------------------------------------------------------------------------------------


async def _outer_world(
    driver: Driver, streams: Mapping[int, Sequence[Any]], found: Findings, *, may_fail: bool
) -> None:
    """What clients were told and what really happened, against the ledger."""
    oracle: Oracle = driver.oracle
    told, effects = await oracle.executions(), await oracle.effects()
    told = {run: executions for run, executions in told.items() if not executions & found.set_aside}
    found.rows = await oracle.rows()
    for run, executions in told.items():
        if len(executions) > 1:
            found.duplicated.append(f"{run} was acknowledged as executions {sorted(executions)}")
        found.lost.extend(
            f"{run}: execution {one} was acknowledged and is not there" for one in executions - streams.keys()
        )
    known = {one for executions in told.values() for one in executions}
    extra = streams.keys() - known - found.set_aside
    if len(extra) > len(set(driver.expected) - set(told)):
        found.duplicated.append(f"{len(extra)} executions that nobody was told of, such as {sorted(extra)[:3]}")
    for run in told:
        seen, expected = effects.get(run, Counter()), driver.expected.get(run, 0)
        found.repeated += sum(count > 1 for count in seen.values())
        missing = set(range(expected)) - set(seen)
        if missing and not may_fail:
            found.lost.append(f"{run}: {len(missing)} of {expected} items had no effect")
