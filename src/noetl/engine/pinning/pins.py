"""What a playbook is bound to, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from noetl.core.errors import Problem
from noetl.core.limits import WARNING_CHARS_MAX
from noetl.core.playbook.scripts import scripts_digest
from noetl.core.reference import Payload
from noetl.ports.catalog import CatalogEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A playbook on its way in: a text that was handed in, with the `scripts` that came along, by path; or the text of
    a version of the catalog, which has its scripts.  `beside` are paths that come into the catalog with it."""

    text: str
    file: str
    scripts: Mapping[str, str] = field(default_factory=dict)
    entry: CatalogEntry | None = None
    beside: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """`scripts` by path: `{ref, names}`.  `playbooks` by path: `{id, version, sha256}`.  `catalog` is the version that
    is started, `{id, version}`, None for a text.  `payloads` must be durable with whatever names them."""

    scripts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    playbooks: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    catalog: Mapping[str, object] | None = None
    payloads: Sequence[Payload] = ()
    warnings: tuple[Problem, ...] = ()

    @property
    def scripts_sha256(self) -> str:
        return scripts_digest({uri: script["ref"]["sha256"] for uri, script in self.scripts.items()})

    def to_meta(self, warnings_max: int) -> dict[str, object]:
        """The members of an execution's first event; those that are empty are not there."""
        members: dict[str, object] = {
            "catalog": self.catalog,
            "scripts": {uri: script["ref"] for uri, script in self.scripts.items()},
            "script_names": {uri: script["names"] for uri, script in self.scripts.items()},
            "playbooks": self.playbooks,
            "warnings": recorded(self.warnings, warnings_max),
        }
        return {name: value for name, value in members.items() if value}


def recorded(warnings: Iterable[Problem], limit: int) -> list[dict[str, object]]:
    """Warnings as they are kept: bounded, and without the name of a file that only its author has."""
    found = list(warnings)
    kept = [_document(one) for one in found[:limit]]
    if len(found) > limit:
        kept[-1] = {"code": "more_warnings", "message": f"and {len(found) - limit + 1:,} more"}
    return kept


def _document(problem: Problem) -> dict[str, object]:
    message = problem.message.encode("utf-8", "replace").decode("utf-8")
    document: dict[str, object] = {"code": problem.code, "message": message[:WARNING_CHARS_MAX]}
    for name in ("line", "column", "step", "field"):
        value = getattr(problem, name)
        if value is not None:
            document[name] = value
    return document
