"""What a playbook counts on outside of its own text and writes out: the files of its scripts, other playbooks.

What a template makes is known only when its task runs, and is nobody's business here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from noetl.core.errors import Problem
from noetl.core.playbook.document import Document, Path
from noetl.core.playbook.model import Playbook
from noetl.core.playbook.scripts import is_literal, pinned_uri

PLAYBOOK_KIND = "playbook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """`name` is the path of a file or of a playbook; `version` is that of a playbook, None for the newest."""

    name: str
    step: str
    task: str
    kind: str
    line: int
    column: int
    version: int | None = None

    def problem(self, code: str, message: str, *, file: str, field: str) -> Problem:
        said = f"step {self.step!r}, task {self.task!r}: {message}"
        return Problem(code, said, file, self.line, self.column, self.step, field)


def script_uses(playbook: Playbook, document: Document) -> tuple[Use, ...]:
    """The scripts whose path is written out."""
    return tuple(_script_uses(playbook, document))


def _script_uses(playbook: Playbook, document: Document) -> Iterator[Use]:
    for step in playbook.steps:
        for task in step.tasks:
            uri = pinned_uri(task.kind, task.config)
            if uri is not None:
                line, column = document.position((*task.place, "script", "uri"))
                yield Use(name=uri, step=step.name, task=task.label, kind=task.kind, line=line, column=column)


def playbook_uses(playbook: Playbook, document: Document) -> tuple[Use, ...]:
    """The playbooks that tasks start and whose path is written out."""
    return tuple(_playbook_uses(playbook, document))


def _playbook_uses(playbook: Playbook, document: Document) -> Iterator[Use]:
    for step in playbook.steps:
        for task in step.tasks:
            path, version = task.config.get("path"), task.config.get("version")
            if task.kind != PLAYBOOK_KIND or not is_literal(path) or not path:
                continue
            place: Path = (*task.place, "path")
            line, column = document.position(place)
            number = int(version) if isinstance(version, int | str) and str(version).isdecimal() else None
            if number is not None or version in (None, "", "latest"):
                yield Use(
                    name=str(path),
                    step=step.name,
                    task=task.label,
                    kind=task.kind,
                    line=line,
                    column=column,
                    version=number,
                )
