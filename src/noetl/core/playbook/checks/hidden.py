"""Names of a playbook that a name of the language hides (dsl §7.3): what is read is not what was meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from noetl.core.playbook.compiled import CompiledStep, ServerExpression
from noetl.core.playbook.compiling.worker import task_mentions
from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.model import Playbook, Step
from noetl.core.playbook.needs import FACTS

_EVERYWHERE = FACTS | {"workload", "ctx", "steps", "iter"}
_PIPELINE = _EVERYWHERE | {"input", "output", "outcome", "error", "results", "_prev", "_task", "_attempt", "step"}
_LOOP = _PIPELINE | {"loop", "frame", "_index", "loop_index", "_total"}


def check_hidden(
    playbook: Playbook, steps: Sequence[CompiledStep], expressions: Iterable[ServerExpression], findings: Findings
) -> None:
    """Only of names that some template reads: whoever writes `workload.path` knows what it does."""
    own = [frozenset(mention[0] for task in step.tasks for mention in task_mentions(task)) for step in steps]
    asked = frozenset(root for one in expressions for root in (one.value or one.template).roots)
    everywhere = asked.union(*own)
    for key in playbook.workload:
        if key in _EVERYWHERE & everywhere:
            message = f"workload key {key!r} is hidden by the name {key!r} of the language: read it as workload.{key}"
            findings.warn("hidden_name", message, ("workload", key))
    for step, read in zip(playbook.steps, own, strict=True):
        for name, what, instead, place in _made(step, everywhere, read):
            message = f"step {step.name!r}: {what} {name!r} is hidden by the name {name!r} of the language: {instead}"
            findings.warn("hidden_name", message, place, step=step.name)


def _made(step: Step, everywhere: frozenset[str], read: frozenset[str]) -> Iterator[tuple[str, str, str, Path]]:
    """The names that a step makes and that are hidden: the name, what it is, how it can be read, its place."""
    if step.name in _EVERYWHERE & everywhere:
        yield step.name, "its own name", f"read its result as steps['{step.name}']", (*step.place, "step")
    loop = step.loop
    if loop is not None and loop.iterator in _LOOP & read:
        yield loop.iterator, "the iterator", f"read it as iter.{loop.iterator}", (*loop.place, "iterator")
    for task in step.tasks if step.is_pipeline else ():
        if task.label in _PIPELINE & read:
            yield task.label, "the label", f"read it as results.{task.label}", task.place
