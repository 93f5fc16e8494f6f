"""Which results are stored on their own: those of steps always are, those of single tasks when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from noetl.core.playbook.model import Step
from noetl.core.playbook.storage.hints import EXTRA_NAMES, NO_HINTS, Hints

_ENVELOPES = frozenset(("output", "outcome"))

Mentions = Iterable[tuple[str, ...]]


def step_hints(step: Step) -> Hints:
    """What applies to the result of a step: of a single tool also what the tool says."""
    if step.is_pipeline or not step.tasks:
        return step.output
    return step.tasks[0].output.under(step.output)


def kept_labels(step: Step, own: Mentions, everywhere: Mentions) -> frozenset[str]:
    """The tasks of a step whose results are stored as soon as they are there: they have hints of their own, or a
    template reads where they are.  `own` is what the step's tasks read, `everywhere` what anybody reads."""
    named = {before for path in everywhere for before, name in pairwise(path) if name in EXTRA_NAMES}
    asks_all = any(path[0] in _ENVELOPES and EXTRA_NAMES.union(("ref",)).intersection(path[1:]) for path in own)
    if step.loop is not None:
        asks_all = asks_all or any(_is_about_rows(step.name, path) for path in everywhere)
    return frozenset(
        task.label
        for task in step.tasks
        if asks_all or task.label in named or (step.is_pipeline and task.output != NO_HINTS)
    )


def _is_about_rows(step: str, path: tuple[str, ...]) -> bool:
    """Whether a path leads to where the result of a row is: `each.results[0]._ref`."""
    below = path[2:] if path[0] == "steps" else path[1:]
    return step in path[:2] and below[:1] in (("results",), ("data",)) and not EXTRA_NAMES.isdisjoint(below[1:])
