"""A compiled playbook: what the router evaluates and what the worker renders, every template parsed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from noetl.core.errors import Problem
from noetl.core.expression import Atom, AtomPlan, CompiledValue, Template
from noetl.core.playbook.model import Action, Loop, Mode, Playbook
from noetl.core.playbook.needs import Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerExpression:
    """One expression that the router evaluates, with the plan that spares it the data.

    `key` is made of ordinals, because the names of steps and values may contain anything."""

    key: str
    template: Template
    plan: AtomPlan
    needs: Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerValue:
    """A YAML value whose templates the router evaluates: a skeleton and the expressions that fill it."""

    skeleton: object
    leaves: tuple[tuple[tuple[str | int, ...], ServerExpression], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One entry of a `set` block.  `scope` is ctx, iter, step or local; `path` the keys below it."""

    scope: str
    path: tuple[str, ...]
    value: CompiledValue
    server: ServerValue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledArc:
    target: str
    when: ServerExpression | None
    sets: tuple[Assignment, ...]
    mentions_failure: bool


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledLoop:
    """`server` and `max_in_flight` are what the router evaluates; `collection` is the same for a worker."""

    loop: Loop
    collection: CompiledValue
    server: ServerValue
    max_in_flight: ServerValue
    needs: Needs


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPlaybook:
    digest: str
    playbook: Playbook
    steps: Mapping[str, CompiledStep]
    expressions: Mapping[str, ServerExpression]
    warnings: tuple[Problem, ...]
