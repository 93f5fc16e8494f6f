"""A playbook as the user wrote it, normalised.  Values are still YAML values; `compile.py` compiles them.

`place` is the path of a part in the document, from which a finding gets its line and column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from noetl.core.permits.rates import Allowance
from noetl.core.playbook.document import Path
from noetl.core.playbook.storage.hints import NO_HINTS, Hints


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
    then_place: Path = field(default=(), compare=False, repr=False)


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
    output: Hints = NO_HINTS
    limit: str | None = None
    """The shared limit that each of its calls counts for."""
    place: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arc:
    """`args` is the deprecated payload for the target's run; its values are writes to ctx as well."""

    step: str
    when: object = None
    set: Mapping[str, object] = field(default_factory=dict)
    args: Mapping[str, object] = field(default_factory=dict)
    place: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    mode: Mode
    arcs: tuple[Arc, ...]


class LoopMode(StrEnum):
    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"
    CURSOR = "cursor"
    FANOUT = "fanout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where the rows of a loop are claimed: a statement in a database of the user."""

    kind: str
    auth: object
    claim: object
    options: Mapping[str, object] = field(default_factory=dict)
    place: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A step that runs once per item of a collection, or once per row that a cursor claims.

    The values of `frame`, `fanout` and `locality` are as they are written, and may be templates; `is_best_effort` is
    None when the document does not say."""

    collection: object
    iterator: str
    mode: LoopMode
    max_in_flight: object
    is_best_effort: bool | None = None
    frame: Mapping[str, object] = field(default_factory=dict)
    fanout: Mapping[str, object] = field(default_factory=dict)
    locality: Mapping[str, object] = field(default_factory=dict)
    cursor: Cursor | None = None
    place: Path = field(default=(), compare=False, repr=False)

    @property
    def is_sequential(self) -> bool:
        return self.mode is LoopMode.SEQUENTIAL


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitRule:
    """One rule of admission.  `when` None is the catch-all."""

    when: object
    allow: bool
    place: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`next` None means that the document has no `next` key at all, which matters for the implicit end.  `admit` says
    whether the step may run when it is its turn; `when` is the deprecated guard, None when there is none."""

    name: str
    tasks: tuple[Task, ...]
    is_pipeline: bool
    next: Next | None
    set: Mapping[str, object]
    loop: Loop | None = None
    timeout_seconds: float | None = None
    admit: tuple[AdmitRule, ...] = ()
    when: object = None
    output: Hints = NO_HINTS
    place: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeychainEntry:
    """What a playbook calls a secret, and where it comes from."""

    name: str
    kind: str
    config: Mapping[str, object]
    scope: str | None = None
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
    keychain: tuple[KeychainEntry, ...] = ()
    limits: Mapping[str, Allowance] = field(default_factory=dict)
