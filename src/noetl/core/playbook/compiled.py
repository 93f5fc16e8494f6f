"""A compiled playbook: what the router evaluates and what the worker renders, every template parsed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from noetl.core.errors import Problem
from noetl.core.expression import Atom, AtomPlan, CompiledValue, Template
from noetl.core.playbook.compiling.pools import POOL_DEFAULT
from noetl.core.playbook.model import Action, Loop, Mode, Playbook
from noetl.core.playbook.needs import Needs
from noetl.core.playbook.storage.hints import NO_HINTS, Hints
from noetl.core.playbook.uses import Use

_BY_REFERENCE = "/kept"


class Answer(StrEnum):
    """What a worker gives the router for an expression: its value, inline or by reference; its truth; or something that
    the router itself works with, which is inline even when values are not."""

    VALUE = "value"
    TRUTH = "truth"
    CONTROL = "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerExpression:
    """One expression that the router evaluates, with the plan that spares it the data.

    `key` is made of ordinals, because the names of steps and values may contain anything.  `value` is what a worker
    renders instead of a template, `answer` what the router expects of it.  What a hidden one gives looks like a
    credential: it is recorded by reference."""

    key: str
    template: Template
    plan: AtomPlan
    needs: Needs
    value: CompiledValue | None = None
    answer: Answer = Answer.VALUE
    is_hidden: bool = False

    def by_reference(self) -> ServerExpression:
        """The same expression, answered by reference only."""
        none = AtomPlan(atoms=(), residual=self.plan.residual, evaluable=False)
        return replace(self, key=self.key + _BY_REFERENCE, plan=none, is_hidden=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerValue:
    """A YAML value whose templates the router evaluates: a skeleton and the expressions that fill it.

    `whole` is all of it as one expression for a worker, for when a part of it cannot stand in an event."""

    skeleton: object
    leaves: tuple[tuple[tuple[str | int, ...], ServerExpression], ...]
    whole: ServerExpression | None = None

    @property
    def kept(self) -> ServerExpression | None:
        """The value as a worker is asked for it when it must be kept by reference, whatever its size."""
        found = self.leaves[0][1] if self.whole is None and self.leaves else self.whole
        return None if found is None else found.by_reference()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One entry of a `set` block.  `scope` is ctx, iter, step or local; `path` the keys below it."""

    scope: str
    path: tuple[str, ...]
    value: CompiledValue
    server: ServerValue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledArc:
    """`args` are written like `sets`, before them, and are known to the target's run as `args`."""

    target: str
    when: ServerExpression | None
    sets: tuple[Assignment, ...]
    mentions_failure: bool
    args: tuple[Assignment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledAdmission:
    """Whether a step may run when it is its turn: rules (`when` None is the catch-all) and the deprecated guard."""

    rules: tuple[tuple[ServerExpression | None, bool], ...] = ()
    guard: ServerExpression | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRule:
    when: Template | None
    do: Action
    attempts: CompiledValue
    backoff: str | None
    delay: CompiledValue | None
    to: int | None
    sets: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledTask:
    label: str
    kind: str
    fields: Mapping[str, CompiledValue]
    lenient: frozenset[str]
    input: CompiledValue
    sets: tuple[Assignment, ...]
    rules: tuple[CompiledRule, ...]
    fails_unmatched: bool | None
    timeout: CompiledValue | None
    has_script: bool = False
    hints: Hints = NO_HINTS
    limit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCursor:
    """`claim` and `options` are what the router evaluates when the loop opens.  So is `auth`, unless it holds secrets,
    or no template at all: then `server_auth` is None and a worker renders `auth` itself."""

    kind: str
    claim: ServerValue
    options: ServerValue
    auth: CompiledValue
    server_auth: ServerValue | None
    needs: Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledLoop:
    """`server`, `max_in_flight`, `frame`, `fanout` and `locality` are what the router evaluates; `collection` is
    `server` for a worker."""

    loop: Loop
    collection: CompiledValue
    server: ServerValue
    max_in_flight: ServerValue
    frame: ServerValue
    fanout: ServerValue
    locality: ServerValue
    needs: Needs
    cursor: CompiledCursor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    name: str
    number: int
    tasks: tuple[CompiledTask, ...]
    is_pipeline: bool
    has_next: bool
    mode: Mode
    arcs: tuple[CompiledArc, ...]
    sets: tuple[Assignment, ...]
    atoms: tuple[Atom, ...]
    needs: Needs
    reaches: int
    loop: CompiledLoop | None = None
    timeout_seconds: float | None = None
    scripts: tuple[str | None, ...] = ()
    """The scripts of its tasks by path; None for one that is known only when its task runs."""
    admission: CompiledAdmission | None = None
    hints: Hints = NO_HINTS
    reports_meta: bool = False
    """Whether the router looks at how long its last task took, and the like."""
    kept: frozenset[str] = frozenset()
    """The tasks whose results are stored on their own, as soon as they are there."""
    pool: str = POOL_DEFAULT
    """The workers that run it, and its frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledEntry:
    """An entry of the keychain.  `reads` are the entries it is made of, `needs` what all of them read."""

    name: str
    kind: str
    is_local: bool
    fields: CompiledValue
    reads: frozenset[str]
    needs: Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialUse:
    """A place of the document that names a credential of the store."""

    name: str
    field: str
    step: str | None
    line: int | None
    column: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPlaybook:
    digest: str
    playbook: Playbook
    steps: Mapping[str, CompiledStep]
    expressions: Mapping[str, ServerExpression]
    workload: Mapping[str, CompiledValue]
    warnings: tuple[Problem, ...]
    scripts: tuple[Use, ...] = ()
    playbooks: tuple[Use, ...] = ()
    keychain: Mapping[str, CompiledEntry] = field(default_factory=dict)
    credentials: tuple[CredentialUse, ...] = ()

    def expression(self, key: str) -> ServerExpression:
        """An expression of the router by the key under which a worker is asked for it."""
        found = self.expressions[key.removesuffix(_BY_REFERENCE)]
        return found.by_reference() if key.endswith(_BY_REFERENCE) else found
