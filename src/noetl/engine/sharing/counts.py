"""What a server counts about its decisions, and about the facts that it records for others."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from noetl.core.errors import NoetlError, Terminal
from noetl.core.event import Sealed
from noetl.engine.sharing.frame_counts import FrameCounts
from noetl.ports.data.counters import Sample


class Refusable(Protocol):
    @property
    def input(self) -> object: ...

    def refuse(self, error: NoetlError) -> None: ...


class ControlCounts:
    """`inputs` are those that wait for the decider."""

    def __init__(self) -> None:
        self.inputs: deque[Any] = deque()
        self.decided = 0
        self.commits = 0
        self.events = 0
        self.misses = 0
        self.conflicts = 0
        self.unknown = 0
        self.recorded = 0
        self.late = 0
        self._refused: Counter[str] = Counter()
        self.frames = FrameCounts()

    def committed(self, inputs: int, events: Sequence[Sealed]) -> None:
        self.decided += inputs
        self.commits += 1
        self.events += len(events)
        self.frames.see(events)

    def refuse(self, waiting: Refusable, error: NoetlError) -> None:
        """Refuse an input, and count it.  A fact that is refused for good came too late: its attempt, or its execution,
        had ended."""
        self._refused[error.code] += 1
        self.late += hasattr(waiting.input, "fact") and isinstance(error, Terminal)
        waiting.refuse(error)

    def refuse_facts(self, error: NoetlError, count: int = 1) -> None:
        """Count facts that came to no decider: whoever told them does not hold what they are about any more."""
        self._refused[error.code] += count
        self.late += count

    def samples(self) -> Iterator[Sample]:
        yield "noetl_inputs_waiting", {}, len(self.inputs)
        yield "noetl_inputs_decided_total", {}, self.decided
        yield "noetl_commits_total", {}, self.commits
        yield "noetl_commit_events_total", {}, self.events
        yield "noetl_commit_misses_total", {}, self.misses
        yield "noetl_commit_conflicts_total", {}, self.conflicts
        yield "noetl_commit_unknown_total", {}, self.unknown
        yield "noetl_facts_recorded_total", {}, self.recorded
        yield "noetl_facts_late_total", {}, self.late
        for code, count in sorted(self._refused.items()):
            yield "noetl_inputs_refused_total", {"code": code}, count
        yield from self.frames.samples()
