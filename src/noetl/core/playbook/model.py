"""A playbook as the user wrote it, normalised.  Values are still YAML values; `compile.py` compiles them.

`place` is the path of a part in the document, from which a finding gets its line and column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from noetl.core.playbook.document import Path


class Action(StrEnum):
    CONTINUE = "continue"
    RETRY = "retry"
    JUMP = "jump"
    BREAK = "break"
    FAIL = "fail"


class Mode(StrEnum):
    EXCLUSIVE = "exclusive"
    INCLUSIVE = "inclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One policy rule.  `when` None is the catch-all."""

    when: object
    do: Action
    attempts: object = 3
    backoff: str | None = None
    delay: object = None
    to: str | None = None
    set: Mapping[str, object] = field(default_factory=dict)
    place: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One tool call of a step's pipeline."""

    label: str
    kind: str
    config: Mapping[str, object]
    input: Mapping[str, object]
    set: Mapping[str, object]
    rules: tuple[Rule, ...]
    fails_unmatched: bool | None = None
    timeout: object = None
    place: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arc:
    step: str
    when: object = None
    set: Mapping[str, object] = field(default_factory=dict)
    place: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    mode: Mode
    arcs: tuple[Arc, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A step that runs once per item of a collection."""

    collection: object
    iterator: str
    is_sequential: bool
    max_in_flight: object
    is_best_effort: bool = False
    frame_rows: int | None = None
    max_attempts: int | None = None
    retry_mode: str | None = None
    place: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`next` None means that the document has no `next` key at all, which matters for the implicit end."""

    name: str
    tasks: tuple[Task, ...]
    is_pipeline: bool
    next: Next | None
    set: Mapping[str, object]
    loop: Loop | None = None
    timeout_seconds: float | None = None
    place: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    name: str
    path: str
    metadata: Mapping[str, object]
    workload: Mapping[str, object]
    steps: tuple[Step, ...]
    entry: str
    final_step: str | None = None
    no_next_is_error: bool = False
    strict_templates: bool = False
    task_timeout_seconds: float | None = None
    timeout_seconds: float | None = None
    spec: Mapping[str, object] | None = None
