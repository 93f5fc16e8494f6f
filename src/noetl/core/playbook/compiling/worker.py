"""What the worker renders: the fields, rules and writes of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from noetl.core.expression import CompiledValue, literal_value
from noetl.core.playbook.compiled import Assignment, CompiledRule, CompiledTask
from noetl.core.playbook.compiling.texts import Templates, target_of
from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.keychain.secrecy import AUTH_FIELDS, entry_meant
from noetl.core.playbook.model import Rule, Step, Task
from noetl.core.playbook.needs import Needs, mentions_of, needs_of
from noetl.core.playbook.programs import needs_of_program, program_of
from noetl.core.playbook.scripts import FIELD as SCRIPT
from noetl.core.playbook.scripts import pinned_uri, takes_script

# Fields that are run as they stand: braces in them are their own.
PROGRAM_FIELDS: Mapping[str, frozenset[str]] = {"spark": frozenset(("code",))}
# Fields that are templates only if they parse as one: program text legitimately contains braces.
LENIENT_FIELDS: Mapping[str, frozenset[str]] = {"python": frozenset(("code",))}


class WorkerCompiler:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def tasks(self, step: Step) -> tuple[CompiledTask, ...]:
        labels = {task.label: number for number, task in enumerate(step.tasks)}
        return tuple(self._task(step, task, labels) for task in step.tasks)

    def _task(self, step: Step, task: Task, labels: Mapping[str, int]) -> CompiledTask:
        templates = Templates(self._findings, step, task)
        lenient = LENIENT_FIELDS.get(task.kind, frozenset())
        programs = PROGRAM_FIELDS.get(task.kind, frozenset())
        fields = {
            name: literal_value(value)
            if name in programs and isinstance(value, str)
            else templates.text(
                entry_meant(value) if name in AUTH_FIELDS else value, (*task.place, name), is_program=name in lenient
            )
            for name, value in task.config.items()
            if value is not None
        }
        task_input = templates.text(dict(task.input), (*task.place, "input"))
        timeout = None if task.timeout is None else templates.text(task.timeout, (*task.place, "timeout"))
        _refuse_secrets(templates, task, {**fields, "input": task_input}, timeout)
        return CompiledTask(
            label=task.label,
            kind=task.kind,
            fields=fields,
            lenient=lenient,
            input=task_input,
            sets=_sets(templates, task.set, (*task.place, "set"), bare="local"),
            rules=tuple(_rule(templates, rule, labels[task.label], labels) for rule in task.rules),
            fails_unmatched=task.fails_unmatched,
            timeout=timeout,
            has_script=SCRIPT in fields and takes_script(task.kind),
            hints=task.output,
            limit=task.limit,
        )


def _refuse_secrets(
    templates: Templates, task: Task, fields: Mapping[str, CompiledValue], timeout: CompiledValue | None
) -> None:
    """The fields of a task may hold secrets, with two exceptions."""
    if timeout is not None:
        templates.refuse_secrets(timeout, (*task.place, "timeout"))
    if task.kind == "playbook":
        reason = "what a playbook is started with is recorded: let it have an entry in its own keychain"
        for name, value in fields.items():
            templates.refuse_secrets(value, (*task.place, name), reason=reason)


def _sets(templates: Templates, block: Mapping[str, object], place: Path, *, bare: str) -> tuple[Assignment, ...]:
    assignments = []
    for name, value in block.items():
        scope, path = target_of(name, bare=bare)
        compiled = templates.value(value, (*place, name))
        assignments.append(Assignment(scope=scope, path=path, value=compiled))
    return tuple(assignments)


def _rule(templates: Templates, rule: Rule, number: int, labels: Mapping[str, int]) -> CompiledRule:
    to = None
    if rule.to is not None:
        to = max(number - 1, 0) if rule.to in ("previous", "prev") else labels[rule.to]
    then = rule.then_place
    when = None
    if rule.when is not None:
        assert isinstance(rule.when, str | bool)
        when = templates.condition(rule.when, (*rule.place, "when"))
    return CompiledRule(
        when=when,
        do=rule.do,
        attempts=templates.value(rule.attempts, (*then, "attempts")),
        backoff=rule.backoff,
        delay=None if rule.delay is None else templates.value(rule.delay, (*then, "delay")),
        to=to,
        sets=_sets(templates, rule.set, (*then, "set"), bare="ctx"),
    )


def scripts_of(step: Step) -> tuple[str | None, ...]:
    """The scripts of a step's tasks; None for one that is known only when its task runs."""
    found = [task for task in step.tasks if SCRIPT in task.config and takes_script(task.kind)]
    return tuple(dict.fromkeys(pinned_uri(task.kind, task.config) for task in found))


def needs_of_tasks(tasks: Iterable[CompiledTask]) -> Needs:
    """Which names a step's command must carry."""
    needs = needs_of(mention for task in tasks for mention in task_mentions(task))
    for task in tasks:
        if task.kind == "python":
            # What a script reads is told by its text, which is no part of the playbook.
            needs |= needs_of_program(program_of(_sources(task)))
    return needs


def _sources(task: CompiledTask) -> dict[str, object]:
    return {name: task.fields[name].source for name in ("code", "code_b64") if name in task.fields}


def task_mentions(task: CompiledTask) -> Iterator[tuple[str, ...]]:
    values = [*task.fields.values(), task.input, *(a.value for a in task.sets)]
    for assignment in (*task.sets, *(a for rule in task.rules for a in rule.sets)):
        # Whoever writes a part of a value must know the rest: the whole may have to be stored anew.
        if assignment.scope == "ctx" and len(assignment.path) > 1:
            yield ("ctx", assignment.path[0])
    for rule in task.rules:
        if rule.when is not None:
            yield from mentions_of(rule.when)
        values += [a.value for a in rule.sets] + [rule.attempts] + ([rule.delay] if rule.delay else [])
    if task.timeout is not None:
        values.append(task.timeout)
    for value in values:
        yield from mentions_of(value)
