"""The independent judge of a ledger: looks at raw events alone, after every commit, and knows nothing of how they are
folded or decided.  Whatever the engine believes, these rules must hold of what it wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.payloads import Contents
from noetl.adapters.memory.tables import StoredEvent, event_of
from noetl.core.event import Event
from tests.simulation.frames import LoopChecker, require
from tests.simulation.watched import watch_tables

SYSTEM_IDS_MAX = 1 << 22
# Written out here and not taken from the product: a rule that asks what it judges proves nothing.
CLOSING = frozenset(("playbook.completed", "playbook.failed", "execution.cancelled"))
COMMAND_ENDS = frozenset(("command.completed", "command.failed"))
LETS_GO = COMMAND_ENDS | {"task.waiting", "child.started", "child.terminal"}
# What only whoever holds a command may say of it.
SAID_BY_HOLDER = frozenset(("command.completed", "task.waiting", "child.started", "job.intended", "job.progressed"))
_KEYS: dict[str, Callable[[Event, Any], str]] = {
    "playbook.initialized": lambda e, m: "playbook.initialized",
    "command.issued": lambda e, m: f"command.issued/{e.command_id}",
    "command.claimed": lambda e, m: f"command.claimed/{e.command_id}/{m['attempt']}",
    "command.completed": lambda e, m: f"command.terminal/{e.command_id}",
    "command.failed": lambda e, m: f"command.terminal/{e.command_id}",
    "task.waiting": lambda e, m: f"task.waiting/{e.command_id}/{m['n']}",
    "timer.fired": lambda e, m: f"timer.fired/{m['name']}",
    "step.decided": lambda e, m: f"step.decided/{m['step']}#{m['run']}",
    **{
        name: lambda e, m: f"{e.event_type}/{m['step']}#{m['run']}"
        for name in ("stage.opened", "loop.started", "loop.fanout.started", "loop.fanin.completed", "stage.closed")
    },
    **dict.fromkeys(
        ("loop.shard.done", "loop.shard.failed"),
        lambda e, m: f"loop.shard.terminal/{m['step']}#{m['run']}/{m['shard_index']}",
    ),
    "frame.dispatched": lambda e, m: f"frame.dispatched/{e.frame_id}/{m['attempt']}",
    "frame.started": lambda e, m: f"frame.started/{e.frame_id}/{m['attempt']}",
    "frame.abandoned": lambda e, m: f"frame.abandoned/{e.frame_id}/{m['attempt']}",
    "frame.heartbeat": lambda e, m: f"frame.heartbeat/{e.frame_id}/{m['attempt']}/{m['n']}",
    "cursor.claimed": lambda e, m: f"cursor.claimed/{e.frame_id}/{m['attempt']}/{m['n']}",
    "frame.committed": lambda e, m: f"frame.terminal/{e.frame_id}",
    "frame.failed": lambda e, m: f"frame.terminal/{e.frame_id}",
    "loop.done": lambda e, m: f"loop.done/{m['step']}#{m['run']}",
    "execution.cancel_requested": lambda e, m: "execution.cancel_requested",
    **dict.fromkeys(CLOSING, lambda e, m: "execution.terminal"),
}


@dataclass(slots=True)
class SeenCommand:
    """One command: `attempt` is the last claim, `is_held` that whoever made it may still speak of it."""

    attempt: int = 0
    is_held: bool = False
    is_ended: bool = False


@dataclass(slots=True)
class SeenExecution:
    """What the events of one execution have said so far."""

    shard_id: int
    version: int = 0
    keys: set[str] = field(default_factory=set)
    ids: set[int] = field(default_factory=set)
    commands: dict[str, SeenCommand] = field(default_factory=dict)
    is_cancelling: bool = False
    is_ended: bool = False


@dataclass(slots=True)
class Checker:
    """Watches every commit.  `resolves` says whether the payload of an owner with this digest is there now."""

    resolves: Callable[[str, str, str], bool] | None = None
    positions: Counter[int] = field(default_factory=Counter)
    executions: dict[int, SeenExecution] = field(default_factory=dict)
    ids: set[int] = field(default_factory=set)
    loops: LoopChecker = field(default_factory=LoopChecker)
    marks: Counter[str] = field(default_factory=Counter)

    def watch(self, database: MemoryDatabase, large: Contents) -> None:
        """From now on after every commit, and at every write of what is derived."""
        small = database.tables.payloads

        def resolves(*key: str) -> bool:
            return key in small or key in large

        self.resolves = resolves
        database.observers.append(self.observe)
        watch_tables(database)

    def observe(self, rows: Sequence[StoredEvent]) -> None:
        for row in rows:
            self.check(event_of(row))

    def check(self, event: Event) -> None:
        seen = self.executions.get(event.execution_id)
        if seen is None:
            seen = self.executions[event.execution_id] = SeenExecution(event.shard_id)
        self._check_place(event, seen)
        self._check_identity(event, seen)
        require(not seen.is_ended, "a fact behind the end", event)
        self._check_references(event)
        _check_command(event, seen)
        self.loops.observe(event)
        self._mark(event)
        if event.event_type in CLOSING:
            _check_closing(event, seen)
            seen.is_ended = True

    def _check_place(self, event: Event, seen: SeenExecution) -> None:
        """Every number of a shard and of a stream is there once, in the order of the commits."""
        self.positions[event.shard_id] += 1
        seen.version += 1
        require(event.position == self.positions[event.shard_id], f"shard {event.shard_id} has a gap", event)
        require(event.stream_version == seen.version, "a stream has a gap", event)
        require(event.shard_id == seen.shard_id, "an execution has moved to another shard", event)

    def _check_identity(self, event: Event, seen: SeenExecution) -> None:
        """One transition once, under the key that its cause gives, and an id that nobody else has."""
        require(event.event_id not in self.ids, "an id is used twice", event)
        require(event.transition_key not in seen.keys, "a transition happened twice", event)
        key_of = _KEYS.get(event.event_type)
        if key_of is not None:
            require(key_of(event, event.meta) == event.transition_key, "a key is not that of its cause", event)
        if event.causation_id is not None:
            require(event.causation_id in self.ids, "an effect before its cause", event)
        self.ids.add(event.event_id)
        seen.keys.add(event.transition_key)

    def _check_references(self, event: Event) -> None:
        """A payload is durable before the event that names it."""
        if self.resolves is None:
            return
        for one in named_payloads((event.payload_ref, event.result, event.writes, event.meta)):
            is_there = self.resolves(event.tenant_id, event.organization_id, str(one["sha256"]))
            require(is_there, f"nothing is at {one['uri']}", event)

    def _mark(self, event: Event) -> None:
        """Rare branches, so that a run can say that it took them."""
        if event.event_type == "step.decided" and event.meta["outcome"] == "skipped":
            self.marks[f"skipped by {event.meta['reason']}"] += 1
        if "phase" in event.meta:
            self.marks[f"asked to {event.meta['phase']}"] += 1

    def check_end(self) -> None:
        """When nothing is left to do, every execution has said so."""
        for execution_id, seen in self.executions.items():
            require(seen.is_ended or execution_id < SYSTEM_IDS_MAX, f"{execution_id} is not closed")


def _check_command(event: Event, seen: SeenExecution) -> None:
    """Attempts grow by one, only the last claim may speak, and it ends once."""
    name, kind, commands = event.command_id, event.event_type, seen.commands
    if kind == "execution.cancel_requested":
        # The request ends all that nobody holds, now or later: it never runs, and no further row says so.
        seen.is_cancelling = True
        for command in commands.values():
            command.is_ended |= not command.is_held
    if kind == "command.issued":
        require(name not in commands, "a command was issued twice", event)
        commands[str(name)] = SeenCommand()
    if name is None or name not in commands:
        require(kind not in (COMMAND_ENDS | {"command.claimed", "task.waiting"}), "a command nobody issued", event)
        return
    command, attempt = commands[name], event.meta.get("attempt")
    if kind == "command.claimed":
        require(not command.is_ended, "a claim of an ended command", event)
        require(attempt == command.attempt + 1, "attempts do not rise by one", event)
        command.attempt, command.is_held = command.attempt + 1, True
        return
    if kind in COMMAND_ENDS:
        require(not command.is_ended, "a second terminal event", event)
        command.is_ended = True
    if kind in SAID_BY_HOLDER:
        require(command.is_held, "a fact about a command that nobody holds", event)
    if kind in SAID_BY_HOLDER | COMMAND_ENDS:
        require(attempt == command.attempt, "a stale attempt reported", event)
    if kind in LETS_GO:
        command.is_held = False
        command.is_ended |= seen.is_cancelling


def _check_closing(event: Event, seen: SeenExecution) -> None:
    """Commands issued = commands ended, but for those of which the end itself says that nobody confirmed it."""
    unconfirmed: Any = event.meta.get("unconfirmed", ())
    left = {name for name, command in seen.commands.items() if not command.is_ended}
    require(left <= set(unconfirmed), f"{sorted(left)} were issued and never ended", event)
    require(event.event_type != "playbook.completed" or not left, "the end came before that of its commands", event)


def named_payloads(value: object) -> Iterator[dict[str, Any]]:
    """Every reference in a document, however deep."""
    if isinstance(value, dict):
        if isinstance(value.get("sha256"), str) and "uri" in value:
            yield value
        for inner in value.values():
            yield from named_payloads(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from named_payloads(inner)
