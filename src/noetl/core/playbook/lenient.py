"""A playbook's parts as far as they can be read, for looking at a text whose errors somebody else tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from noetl.core.playbook.document import Findings, read_document
from noetl.core.playbook.limits.reading import read_limits
from noetl.core.playbook.model import Step
from noetl.core.playbook.reading.kinds import LANGUAGE_KINDS
from noetl.core.playbook.reading.steps import read_steps
from noetl.core.playbook.reading.tasks import Tools
from noetl.core.playbook.reading.workbook import read_workbook
from noetl.core.playbook.scripts import pinned_uri


@dataclass(frozen=True, slots=True)
class Parts:
    root: Mapping[str, object]
    workload: Mapping[str, object]
    steps: tuple[Step, ...]


def read_parts(text: str, *, file: str) -> Parts:
    """Raises PlaybookInvalid only for a text that is no document at all."""
    document = read_document(text, file=file)
    root = document.value if isinstance(document.value, dict) else {}
    findings = Findings(document)
    tools = Tools(
        kinds=LANGUAGE_KINDS,
        workbook=read_workbook(root.get("workbook"), findings, LANGUAGE_KINDS),
        limits=read_limits(root.get("limits"), findings),
    )
    workload = root.get("workload")
    return Parts(
        root=root,
        workload=workload if isinstance(workload, dict) else {},
        steps=read_steps(root.get("workflow"), findings, tools),
    )


def script_paths(text: str, *, file: str) -> tuple[str, ...]:
    """The files that a playbook's tasks name as their scripts.  Raises PlaybookInvalid as `read_parts` does."""
    tasks = [task for step in read_parts(text, file=file).steps for task in step.tasks]
    found = (pinned_uri(task.kind, task.config) for task in tasks)
    return tuple(dict.fromkeys(uri for uri in found if uri is not None))
