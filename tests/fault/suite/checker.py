"""What must hold whatever happened, read from the raw tables and the oracle.  Nothing of the engine is asked."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from tests.fault.suite.oracle import Oracle
from tests.fault.suite.replaying import differences
from tests.fault.suite.workload import Driver

CLOSING = ("playbook.completed", "playbook.failed", "execution.cancelled")
FIRST_EXECUTION = 4_194_304
"""Below are the executions of the system."""


@dataclass(slots=True)
class Findings:
    """What is wrong, sorted by what it means to a user."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    events: int = 0
    executions: int = 0
    rows: int = 0
    repeated: int = 0
    """Items whose effect the oracle saw more than once: a tool may run twice, and its outcome is recorded once."""
    references: int = 0
    set_aside: set[int] = field(default_factory=set)
    """Executions that could not be folded.  Whoever poisoned them knows how many there must be."""

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.duplicated or self.broken)

    def text(self) -> str:
        """One line when all is well, else everything."""
        figures = (
            f"{self.executions} executions, {self.events} events, {self.references} references, {self.rows} rows, "
            f"{self.repeated} items ran again"
        )
        if self.is_clean:
            return f"clean: {figures}"
        wrong = [
            f"{name}: {one}"
            for name, found in (("lost", self.lost), ("duplicated", self.duplicated), ("broken", self.broken))
            for one in found[:8]
        ]
        return "\n".join([f"NOT clean: {figures}", *wrong])


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
        "SELECT shard_id, position, execution_id, stream_version, event_type, transition_key, command_id, frame_id,"
        " meta::text AS meta, result::text AS result, payload_ref::text AS payload_ref, writes::text AS writes"
        " FROM noetl.event ORDER BY shard_id, position"
    )
    found.events = len(events)
    streams = _streams(events)
    _positions(events, before, await connection.fetch(_HEADS), found)
    await _projection(connection, found)
    for execution_id, story in streams.items():
        if execution_id in found.set_aside:
            found.executions += 1
            continue
        _story(execution_id, story, found, may_fail=may_fail)
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


def _story(execution_id: int, story: Sequence[Any], found: Findings, *, may_fail: bool) -> None:
    """One execution by its events alone."""
    found.executions += 1
    versions = [event["stream_version"] for event in story]
    if versions != list(range(1, len(story) + 1)):
        number = next(n for n, version in enumerate(versions) if version != n + 1)
        around = [
            f"{event['stream_version']}@{event['position']} {event['transition_key']}"
            for event in story[max(0, number - 2) : number + 2]
        ]
        found.broken.append(f"execution {execution_id}: versions are not in order: {', '.join(around)}")
    for key, count in Counter(event["transition_key"] for event in story).items():
        if count > 1:
            found.duplicated.append(f"execution {execution_id}: {key} {count} times")
    ends = [event for event in story if event["event_type"] in CLOSING]
    if len(ends) != 1:
        kind = found.lost if not ends else found.duplicated
        kind.append(f"execution {execution_id} has {len(ends)} ends; last is {story[-1]['transition_key']}")
        return
    if story[-1] is not ends[0]:
        found.broken.append(f"execution {execution_id}: {story[-1]['event_type']} stands behind its end")
    if ends[0]["event_type"] != CLOSING[0]:
        if not may_fail:
            found.lost.append(f"execution {execution_id} ended as {ends[0]['event_type']}: {ends[0]['result']}")
        return
    _commands(execution_id, story, found)
    _frames(execution_id, story, found)


def _commands(execution_id: int, story: Sequence[Any], found: Findings) -> None:
    issued = Counter(event["command_id"] for event in story if event["event_type"] == "command.issued")
    ended = Counter(event["command_id"] for event in story if event["transition_key"].startswith("command.terminal/"))
    for command_id, count in ended.items():
        if count > 1:
            found.duplicated.append(f"execution {execution_id}: command {command_id} ended {count} times")
    for command_id in issued.keys() ^ ended.keys():
        found.lost.append(f"execution {execution_id}: command {command_id} was issued or ended, and not both")


def _frames(execution_id: int, story: Sequence[Any], found: Findings) -> None:
    """Every row of a loop is in exactly one committed frame."""
    windows, committed, totals = {}, [], {}
    for event in story:
        meta = json.loads(event["meta"])
        if event["event_type"] == "frame.dispatched":
            windows[event["frame_id"]] = (meta["first"], meta["rows"])
        elif event["event_type"] == "frame.committed":
            committed.append(event["frame_id"])
        elif event["event_type"] == "loop.started":
            totals[meta["step"]] = meta["total"]
    if len(totals) != 1:
        return
    rows = Counter(index for name in committed for index in range(windows[name][0], sum(windows[name])))
    (total,) = totals.values()
    missing = set(range(total)) - set(rows)
    if missing and not any(event["event_type"] == "frame.failed" for event in story):
        found.lost.append(f"execution {execution_id}: {len(missing)} of {total} rows are in no committed frame")
    found.duplicated.extend(
        f"execution {execution_id}: row {index} was committed {count} times"
        for index, count in rows.items()
        if count > 1
    )


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
