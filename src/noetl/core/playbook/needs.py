"""Which names an expression reads, so that a command carries these and no others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from noetl.core.expression import CompiledValue, Template

# Names that stand for the step that just completed.
COMPLETING = frozenset(("output", "outcome", "result", "response", "error", "fanin"))
# The names of dsl §7.3.  Where one exists it stands above every name that a playbook makes.
FACTS = frozenset(("execution_id", "job", "catalog_id", "parent_execution_id", "path", "version", "env"))
RESERVED = (
    COMPLETING
    | FACTS
    | {"workload", "ctx", "steps", "event", "iter", "_index", "loop_index", "_total", "loop", "frame", "fanin"}
    | {"_prev", "_task", "_attempt", "results", "input", "args", "keychain", "spec", "step"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Which names a worker must know to evaluate something; `everything` when that cannot be told."""

    names: frozenset[str]
    everything: bool

    def __or__(self, other: Needs) -> Needs:
        return Needs(names=self.names | other.names, everything=self.everything or other.everything)


def needs_of(mentions: Iterable[tuple[str, ...]], completing: str | None = None) -> Needs:
    """The names behind static paths; a scope that is read as a whole needs everything."""
    names: set[str] = set()
    everything = False
    for mention in mentions:
        root = mention[0]
        if root in ("ctx", "workload", "steps"):
            names.update(mention[1:2])
            everything = everything or len(mention) == 1
        else:
            names.add(root)
            if completing is not None and (root in COMPLETING or root == "event"):
                names.add(completing)
    return Needs(names=frozenset(names), everything=everything)


def mentions_of(value: CompiledValue | Template) -> Iterator[tuple[str, ...]]:
    """Every path that a template reads.  A root that no static path describes is read whole."""
    seen = {mention[0] for mention in value.mentions}
    yield from value.mentions
    yield from ((root,) for root in value.roots if root not in seen)
