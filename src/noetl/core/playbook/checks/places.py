"""Every template of a compiled playbook, with the place where it stands and the names that exist there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from noetl.core.expression import CompiledValue, Template
from noetl.core.playbook.checks.scopes import Scope, Scopes, TaskScopes
from noetl.core.playbook.compiled import Assignment, CompiledLoop, CompiledStep, CompiledTask, ServerValue
from noetl.core.playbook.compiling.texts import target_of, texts_in
from noetl.core.playbook.document import Path
from noetl.core.playbook.model import Playbook, Step, Task


class Place(NamedTuple):
    """One value; `templates_in` are its templates.  `task` is the task that it belongs to, None for one of the step."""

    value: CompiledValue | ServerValue | Template
    path: Path
    scope: Scope
    task: Task | None = None


def places_of(playbook: Playbook, steps: Iterable[CompiledStep], scopes: Scopes) -> Iterator[Place]:
    """The values of all steps.  Program text is left out: whatever names it seems to read are its own."""
    for step, compiled in zip(playbook.steps, steps, strict=True):
        yield from _opening(step, compiled, scopes.of_opening(step))
        for task, code, scope in zip(step.tasks, compiled.tasks, scopes.of_tasks(step), strict=True):
            yield from _of_task(task, code, scope)
        yield from _routing(step, compiled, scopes.of_routing(step))


def templates_in(place: Place) -> Iterator[tuple[Template, Path]]:
    value = place.value
    if isinstance(value, Template):
        yield value, place.path
    elif isinstance(value, ServerValue):
        for inside, expression in value.leaves:
            yield expression.template, (*place.path, *inside)
    else:
        for inside, text in texts_in(value.source):
            if "{" in text:
                yield value.template_at(inside), (*place.path, *inside)


def _opening(step: Step, compiled: CompiledStep, scope: Scope) -> Iterator[Place]:
    admission = compiled.admission
    if admission is not None:
        for rule, (when, _) in zip(step.admit, admission.rules, strict=True):
            if when is not None:
                yield Place(when.template, (*rule.place, "when"), scope)
        if admission.guard is not None:
            yield Place(admission.guard.template, (*step.place, "when"), scope)
    if compiled.loop is not None:
        yield from _of_loop(compiled.loop, scope)


def _of_loop(loop: CompiledLoop, scope: Scope) -> Iterator[Place]:
    place, spec = loop.loop.place, (*loop.loop.place, "spec")
    yield Place(loop.collection, (*place, "in"), scope)
    yield Place(loop.max_in_flight, (*spec, "max_in_flight"), scope)
    yield Place(loop.frame, (*spec, "frame"), scope)
    yield Place(loop.fanout, (*spec, "fanout"), scope)
    yield Place(loop.locality, (*spec, "locality"), scope)
    if loop.cursor is not None and loop.loop.cursor is not None:
        cursor = loop.loop.cursor.place
        yield Place(loop.cursor.claim, (*cursor, "claim"), scope)
        yield Place(loop.cursor.options, (*cursor, "options"), scope)
        yield Place(loop.cursor.auth, (*cursor, "auth"), scope)


def _of_task(task: Task, compiled: CompiledTask, scopes: TaskScopes) -> Iterator[Place]:
    for name, value in compiled.fields.items():
        if name not in compiled.lenient:
            yield Place(value, (*task.place, name), scopes.fields, task)
    yield Place(compiled.input, (*task.place, "input"), scopes.input, task)
    if compiled.timeout is not None:
        yield Place(compiled.timeout, (*task.place, "timeout"), scopes.policy, task)
    yield from _of_set(task.set, compiled.sets, (*task.place, "set"), scopes.policy, task)
    for rule, code in zip(task.rules, compiled.rules, strict=True):
        then = (*rule.place, "then")
        if code.when is not None:
            yield Place(code.when, (*rule.place, "when"), scopes.policy, task)
        yield Place(code.attempts, (*then, "attempts"), scopes.policy, task)
        if code.delay is not None:
            yield Place(code.delay, (*then, "delay"), scopes.policy, task)
        yield from _of_set(rule.set, code.sets, (*then, "set"), scopes.policy, task)


def _routing(step: Step, compiled: CompiledStep, scope: Scope) -> Iterator[Place]:
    yield from _of_set(step.set, compiled.sets, (*step.place, "set"), scope)
    for arc, code in zip(step.next.arcs if step.next is not None else (), compiled.arcs, strict=True):
        if code.when is not None:
            yield Place(code.when.template, (*arc.place, "when"), scope)
        yield from _of_set(arc.args, code.args, (*arc.place, "args"), scope)
        yield from _of_set(arc.set, code.sets, (*arc.place, "set"), scope)


def _of_set(
    block: Mapping[str, object], sets: Iterable[Assignment], path: Path, scope: Scope, task: Task | None = None
) -> Iterator[Place]:
    # What may not be written has no assignment, so the two are matched by what they write.
    values = {assignment.path: assignment.value for assignment in sets}
    for name in block:
        value = values.get(target_of(name, bare="ctx")[1])
        if value is not None:
            yield Place(value, (*path, name), scope, task)
