"""What must hold of one execution that has ended, however it ended, by its events alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fault.suite.findings import Findings

CLOSING = ("playbook.completed", "playbook.failed", "execution.cancelled")
_TAKEN = ("command.claimed", "frame.started")
_WAITS = ("task.waiting", "child.started")
_ENDED = ("command.completed", "command.failed", "frame.committed", "frame.failed")


def check_story(execution_id: int, story: Sequence[Any], found: Findings, *, allowed: Collection[str]) -> None:
    """`allowed` are the ends that it may have."""
    found.executions += 1
    name = f"execution {execution_id}"
    versions = [event["stream_version"] for event in story]
    if versions != list(range(1, len(story) + 1)):
        number = next(n for n, version in enumerate(versions) if version != n + 1)
        around = [
            f"{event['stream_version']}@{event['position']} {event['transition_key']}"
            for event in story[max(0, number - 2) : number + 2]
        ]
        found.broken.append(f"{name}: versions are not in order: {', '.join(around)}")
    for key, count in Counter(event["transition_key"] for event in story).items():
        if count > 1:
            found.duplicated.append(f"{name}: {key} {count} times")
    ends = [event for event in story if event["event_type"] in CLOSING]
    if len(ends) != 1:
        kind = found.lost if not ends else found.duplicated
        kind.append(f"{name} has {len(ends)} ends; last is {story[-1]['transition_key']}")
        return
    if story[-1] is not ends[0]:
        found.broken.append(f"{name}: {story[-1]['event_type']} stands behind its end")
    if ends[0]["event_type"] not in allowed:
        found.lost.append(f"{name} ended as {ends[0]['event_type']}: {ends[0]['result']}")
    events = [(number, event, json.loads(event["meta"])) for number, event in enumerate(story)]
    _work(name, events, found)
    _loops(name, events, found)


Told = Sequence[tuple[int, Any, Mapping[str, Any]]]
"""Events with their numbers in the story and what they say."""


# --- commands and frames -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Work:
    """A command or a frame: numbers are places in the story."""

    given_out: int | None = None
    taken: list[tuple[int, int]] = field(default_factory=list)
    """When, and as which attempt."""
    waits: list[int] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    stage_id: str | None = None

    def is_held_at(self, number: int) -> bool:
        """Whether somebody had taken it then and not let go."""
        taken = [when for when, _ in self.taken if when < number]
        waits = [when for when in self.waits if when < number]
        return bool(taken) and (not waits or taken[-1] > waits[-1])


def _work(name: str, events: Told, found: Findings) -> None:
    """Everything that was given out has one end, unless the end of its loop or of its execution took it back."""
    pieces: dict[str, Work] = {}
    for number, event, meta in events:
        work_id = event["frame_id"] or event["command_id"]
        if work_id is None:
            continue
        work = pieces.setdefault(work_id, Work())
        kind = event["event_type"]
        if kind in ("command.issued", "frame.dispatched"):
            work.given_out = number if work.given_out is None else work.given_out
            work.stage_id = event["stage_id"] if kind == "frame.dispatched" else None
        elif kind in _TAKEN:
            work.taken.append((number, meta["attempt"]))
        elif kind in _WAITS:
            work.waits.append(number)
        elif kind in _ENDED:
            work.ends.append((number, meta["attempt"]))
    endless = Endless.of(events)
    for work_id, work in pieces.items():
        who = f"{name}: {work_id}"
        if len(work.ends) > 1:
            found.duplicated.append(f"{who} ended {len(work.ends)} times")
        if work.given_out is None:
            found.lost.append(f"{who} was taken or ended, and never given out")
        elif not work.ends:
            found.lost.extend(f"{who} {what}" for what in endless.wrong_with(work_id, work))
        else:
            found.broken.extend(f"{who} {what}" for what in _wrong_end(work))


def _wrong_end(work: Work) -> list[str]:
    """The last word is that of the attempt that held it, and nobody begins what has ended."""
    ((ended, attempt), *_) = work.ends
    held = [taken for when, taken in work.taken if when < ended]
    wrong = [f"was ended by attempt {attempt} while {held[-1]} held it"] if held and held[-1] != attempt else []
    if any(when > ended for when, _ in work.taken):
        wrong.append("was taken after its end")
    return wrong


@dataclass(slots=True)
class Endless:
    """What may be without an end of its own."""

    cancelled: int | None
    """When somebody asked for the end of the execution."""
    unconfirmed: Collection[str]
    stopped: Collection[str]
    """Loops that came to no good end."""

    @classmethod
    def of(cls, events: Told) -> Endless:
        asked = [number for number, event, _ in events if event["event_type"] == "execution.cancel_requested"]
        stopped = {
            event["stage_id"]
            for _, event, meta in events
            if event["event_type"] == "loop.done" and meta["status"] != "ok"
        }
        return cls(asked[0] if asked else None, events[-1][2].get("unconfirmed", ()), stopped)

    def wrong_with(self, work_id: str, work: Work) -> list[str]:
        if work_id in self.unconfirmed:
            return []
        if self.cancelled is not None:
            if any(when > self.cancelled for when, _ in work.taken):
                return ["was taken after the execution was to end, and has no end"]
            return ["was held when the execution was to end, and has no end"] if work.is_held_at(self.cancelled) else []
        if work.stage_id in self.stopped:
            return ["was begun, its loop has ended, and it has not"] if work.taken else []
        return ["was given out and has no end"]


# --- loops ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Loop:
    total: int
    is_cursor: bool
    is_fanout: bool
    windows: dict[str, tuple[int, int]] = field(default_factory=dict)
    ends: dict[str, tuple[str, Mapping[str, int]]] = field(default_factory=dict)
    """By frame: how it ended, and its rows by outcome."""
    shards: list[tuple[int, int]] = field(default_factory=list)
    done: Mapping[str, Any] | None = None


def _loops(name: str, events: Told, found: Findings) -> None:
    loops: dict[str, Loop] = {}
    for _, event, meta in events:
        if event["event_type"] == "loop.started":
            is_fanout = "shard_retries" in meta["policy"]
            loops[event["stage_id"]] = Loop(meta["total"], meta.get("cursor") is not None, is_fanout)
        loop = loops.get(event["stage_id"])
        if loop is None:
            continue
        if event["event_type"] == "frame.dispatched":
            loop.windows[event["frame_id"]] = (meta["first"], meta["rows"])
        elif event["event_type"] in ("frame.committed", "frame.failed"):
            loop.ends[event["frame_id"]] = (event["event_type"], meta["outcomes"])
        elif event["event_type"] in ("loop.shard.done", "loop.shard.failed"):
            loop.shards.append((meta["first"], meta["rows"]))
        elif event["event_type"] == "loop.done":
            loop.done = meta
    for stage_id, loop in loops.items():
        who = f"{name}: loop {stage_id}"
        if loop.done is None:
            found.lost.append(f"{who} has no end")
            continue
        _counts(who, loop, loop.done, found)
        if not loop.is_cursor:
            _rows(who, loop, loop.done, found)


def _counts(who: str, loop: Loop, done: Mapping[str, Any], found: Findings) -> None:
    """The loop counts what its frames counted.  A shard of a fan-out that runs again counts once."""
    counted = sum(outcomes["success"] + outcomes["failed"] for _, outcomes in loop.ends.values())
    if not loop.is_fanout and counted != done["done"]:
        found.broken.append(f"{who} counts {done['done']} rows, its frames {counted}")
    if loop.is_cursor and done["status"] == "ok":
        rows = sum(sum(outcomes.values()) for _, outcomes in loop.ends.values())
        if rows != done["total"]:
            found.lost.append(f"{who} had {done['total']} rows, {rows} are in frames")


def _rows(who: str, loop: Loop, done: Mapping[str, Any], found: Findings) -> None:
    """Every row of a loop that ended well is in exactly one frame that ended; none is in two that were committed."""
    ended = [(kind, loop.windows[frame]) for frame, (kind, _) in loop.ends.items() if frame in loop.windows]
    committed = [window for kind, window in ended if kind == "frame.committed"]
    failed = [window for kind, window in ended if kind == "frame.failed"]
    if loop.is_fanout:
        committed, failed = loop.shards, []
    rows = Counter(index for first, count in committed for index in range(first, first + count))
    found.duplicated.extend(
        f"{who}: row {index} was committed {count} times" for index, count in rows.items() if count > 1
    )
    missing = set(range(loop.total)) - set(rows)
    missing -= {index for first, count in failed for index in range(first, first + count)}
    if missing and done["status"] == "ok":
        found.lost.append(f"{who}: {len(missing)} of {loop.total} rows are in no frame that ended")
