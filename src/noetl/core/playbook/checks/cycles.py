"""Circles that nothing but a failure ends: arcs that always fire, and jumps back that always match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from noetl.core.expression import constant_truth
from noetl.core.playbook.compiled import CompiledArc, CompiledRule, CompiledStep, CompiledTask
from noetl.core.playbook.compiling.graph import knots
from noetl.core.playbook.document import Findings
from noetl.core.playbook.model import Action, Mode, Playbook

_NAMED_MAX = 10


def check_cycles(playbook: Playbook, steps: Sequence[CompiledStep], findings: Findings) -> None:
    # A time limit of the execution is a bound, and whoever set one meant it.
    if playbook.timeout_seconds is None:
        _check_arcs(playbook, steps, findings)
    for step, compiled in zip(playbook.steps, steps, strict=True):
        circle = _jumping_for_ever(compiled.tasks)
        if circle:
            first = step.tasks[circle[0]]
            names = _listed(compiled.tasks[number].label for number in circle)
            advice = "let a rule with `when` break or continue"
            message = f"step {step.name!r}: the tasks {names} are repeated without end: {advice}"
            findings.warn("unbounded_loop", message, first.place, step=step.name)


def _check_arcs(playbook: Playbook, steps: Sequence[CompiledStep], findings: Findings) -> None:
    number_of = {step.name: number for number, step in enumerate(steps)}
    runs = [number_of[name] for name in (playbook.entry, playbook.final_step, "end") if name in number_of]
    can_run = 0
    for number in runs:
        can_run |= 1 << number | steps[number].reaches
    targets = [list(_always(step, steps, number_of)) for step in steps]
    for knot in knots(targets):
        number = min(knot)
        if (len(knot) > 1 or number in targets[number]) and can_run >> number & 1:
            step = playbook.steps[number]
            names = _listed(steps[one].name for one in sorted(knot))
            circle = f"the steps {names} lead to each other" if len(knot) > 1 else "it leads to itself"
            message = f"step {step.name!r}: {circle} without end: guard an arc with `when`"
            findings.warn("unbounded_loop", message, (*step.place, "next"), step=step.name)


def _always(step: CompiledStep, steps: Sequence[CompiledStep], number_of: dict[str, int]) -> Iterator[int]:
    """The steps that always run after this one has succeeded."""
    for arc in step.arcs:
        truth = _truth(arc)
        if truth is False:
            continue
        if truth is True and arc.target in number_of:
            target = number_of[arc.target]
            # Rules of admission may end the branch.
            if steps[target].admission is None or not steps[target].admission.rules:  # type: ignore[union-attr]
                yield target
        if step.mode is Mode.EXCLUSIVE:
            # Of these the first that matches fires: behind a guard nothing is certain.
            return


def _truth(arc: CompiledArc | CompiledRule) -> bool | None:
    """Whether an arc or a rule always matches (True), never (False), or it depends (None)."""
    if arc.when is None:
        return True
    return constant_truth(arc.when.template if isinstance(arc, CompiledArc) else arc.when)


def _jumping_for_ever(tasks: Sequence[CompiledTask]) -> list[int]:
    """The tasks of a circle that a pipeline enters for certain and never leaves, in their order."""
    path: list[int] = []
    seen: dict[int, int] = {}
    number: int | None = 0
    while number is not None and number < len(tasks):
        if number in seen:
            return path[seen[number] :]
        seen[number] = len(path)
        path.append(number)
        number = _next(tasks[number], number)
    return []


def _next(task: CompiledTask, number: int) -> int | None:
    """The task that follows a success for certain; None when there is none."""
    for rule in task.rules:
        truth = _truth(rule)
        if truth is True:
            if rule.do is Action.CONTINUE:
                return number + 1
            return rule.to if rule.do is Action.JUMP else None
        if truth is None and rule.do is not Action.RETRY:
            return None
    return number + 1


def _listed(names: Iterator[str]) -> str:
    found = [repr(name) for name in names]
    rest = f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
    return ", ".join(found[:_NAMED_MAX]) + rest
