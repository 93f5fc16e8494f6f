"""The memory of a pipeline run and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from noetl.core import limits
from noetl.core.credential_keys import without_credentials
from noetl.core.errors import Failure
from noetl.core.expression import View
from noetl.core.reference import Payload
from noetl.engine.work.calling.caller import Caller
from noetl.engine.work.children import ChildOutcome, ChildRequest
from noetl.engine.work.frames.profile import FrameProfile
from noetl.engine.work.pipeline.outcome import TaskOutcome


@dataclass(slots=True)
class Wait:
    """A retry that is too far away to hold a slot for."""

    delay_seconds: float
    task: str


@dataclass(slots=True)
class Run:
    """The memory of one pipeline run; what a resume point keeps and gives back."""

    index: int = 0
    attempts: dict[str, int] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    results: dict[str, object] = field(default_factory=dict)
    failures: dict[str, dict[str, object]] = field(default_factory=dict)
    scopes: dict[str, dict[str, object]] = field(default_factory=lambda: {"iter": {}, "step": {}, "local": {}})
    writes: list[dict[str, Any]] = field(default_factory=list)
    executed: int = 0
    stored: dict[str, Mapping[str, object]] = field(default_factory=dict)
    """Where results of single tasks are that were stored on their own: names beside their own, by label."""
    scripts: dict[str, Mapping[str, object]] = field(default_factory=dict)
    """References of the scripts that were fetched on the way."""
    used: dict[str, object] = field(default_factory=dict)
    """What was read, and which credentials were used, before a resume point."""
    returns: int = 0
    """How often it went back because something that a task had stored was gone."""
    jobs: list[dict[str, Any]] = field(default_factory=list)
    """What the last jobs of its tasks cost."""
    child: ChildOutcome | None = None
    """What became of the execution that the task at `index` started; it goes on with that."""

    @property
    def has_parts(self) -> bool:
        """Whether something that a task gave is stored on its own: then its value is a view."""
        # Plain loops: every row asks.
        for value in self.results.values():
            if isinstance(value, View):
                return True
        for scope in self.scopes.values():
            for value in scope.values():
                if isinstance(value, View):
                    return True
        return any(isinstance(item["v"], View) for item in self.writes) if self.writes else False

    def note_job(self, task: str, tried: int, job: Mapping[str, object], *, row: int | None) -> None:
        """Remember what a job cost, as it may be recorded; of many only the last ones."""
        entry: dict[str, Any] = {"task": task, "try": tried} | ({} if row is None else {"row": row})
        shown: Any = without_credentials(dict(job))
        self.jobs = [*self.jobs, {**shown, **entry}][-limits.JOBS_RECORDED_MAX :]

    def to_json(self) -> dict[str, object]:
        return {
            name: getattr(self, name)
            for name in (
                *("index", "attempts", "order", "results", "failures", "scopes", "executed", "scripts", "stored"),
                *("used", "returns", "jobs"),
            )
        }


@dataclass(slots=True)
class Ended:
    """How a pipeline ended."""

    run: Run
    failure: Failure | None = None
    wait: Wait | None = None
    child: ChildRequest | None = None
    last: TaskOutcome | None = None
    variables: dict[str, object] = field(default_factory=dict)
    tasks: list[dict[str, object]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    payloads: list[Payload] = field(default_factory=list)
    """Small tables that tasks made: they travel with the fact about the pipeline."""
    is_broken: bool = False
    """Whether a rule said `break`: a row of a cursor ends its slot with it."""


@dataclass(slots=True)
class Warn:
    """Notes what a pipeline must tell.  No method of the pipeline: one that knows itself would not be gone when it is
    forgotten, and there is one for every row."""

    warnings: list[str]
    caller: Caller

    def __call__(self, message: str) -> None:
        if len(self.warnings) < limits.WARNINGS_MAX:
            self.warnings.append(self.caller.scrubbed(message))


@dataclass(slots=True)
class RowScope:
    """What is special about a pipeline that runs for one row of a frame: it waits inside the worker, user code may read
    these names, the context is at hand, and `reserved` names are the same for all rows."""

    names: Mapping[str, object]
    variables: dict[str, object]
    caller: Caller
    reserved: frozenset[str]
    index: int | None = None
    """Of the row in its loop; None when the whole frame is one run."""
    profile: FrameProfile | None = None
    """Where the costs of its tasks are added."""
