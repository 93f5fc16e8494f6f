"""Model → code: every template parsed once, atoms cut out of what the router evaluates, reachability as bit
sets.  The router never parses a template: `decide` works on the output of this module, cached by the
playbook's digest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from noetl.core.codec import sha256_hex
from noetl.core.errors import PlaybookInvalid, TemplateFailed, TemplateInvalid
from noetl.core.expression import (
    Atom,
    AtomPlan,
    CompiledValue,
    Template,
    atoms_of,
    compile_condition,
    compile_template,
    compile_value,
)
from noetl.core.playbook.compiled import (
    Assignment,
    CompiledArc,
    CompiledLoop,
    CompiledPlaybook,
    CompiledRule,
    CompiledStep,
    CompiledTask,
    ServerExpression,
    ServerValue,
)
from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.model import Arc, Mode, Playbook, Rule, Step, Task
from noetl.core.playbook.needs import COMPLETING, Needs, mentions_of, needs_of
from noetl.core.playbook.parse import parse_playbook

# Fields that are templates only if they parse as one: program text legitimately contains braces.
LENIENT_FIELDS: Mapping[str, frozenset[str]] = {"python": frozenset(("code",))}
_FAILURE_MENTIONS = frozenset((("output", "status"), ("output", "error"), ("outcome", "status"), ("outcome", "error")))


C = TypeVar("C")


def compile_playbook(text: str, *, file: str, kinds: frozenset[str]) -> CompiledPlaybook:
    """Parse, check and compile a document, or raise PlaybookInvalid."""
    parsed = parse_playbook(text, file=file, kinds=kinds)
    findings = Findings(parsed.document, warnings=list(parsed.warnings))
    return _Compiler(parsed.playbook, findings).compile(sha256_hex(text.encode("utf-8")))


class _Compiler:
    def __init__(self, playbook: Playbook, findings: Findings) -> None:
        self._playbook = playbook
        self._findings = findings
        self._expressions: dict[str, ServerExpression] = {}
        self._atoms: dict[str, dict[str, Atom]] = {step.name: {} for step in playbook.steps}
        # A name that is also a context or workload key may mean either at run time: no atom is cut for it.
        written = {_target(key, bare="ctx")[1][0] for key in _set_keys(playbook)}
        self._atom_steps = frozenset(
            step.name for step in playbook.steps if step.name not in written and step.name not in playbook.workload
        )

    def compile(self, digest: str) -> CompiledPlaybook:
        reach = _reachability(self._playbook)
        drafts = [self._step(number, step) for number, step in enumerate(self._playbook.steps)]
        loops = [self._loop(number, step) for number, step in enumerate(self._playbook.steps)]
        if self._findings.errors:
            raise PlaybookInvalid(self._findings.errors)
        self._warn_unreachable(reach)
        steps = {
            step.name: CompiledStep(
                name=step.name,
                number=number,
                tasks=tasks,
                is_pipeline=step.is_pipeline,
                has_next=step.next is not None,
                mode=step.next.mode if step.next else Mode.EXCLUSIVE,
                arcs=arcs,
                sets=sets,
                atoms=tuple(self._atoms[step.name].values()),
                needs=_needs(tasks),
                reaches=reach[number],
                loop=loops[number],
                timeout_seconds=step.timeout_seconds,
            )
            for number, (step, tasks, arcs, sets) in enumerate(drafts)
        }
        return CompiledPlaybook(
            digest=digest,
            playbook=self._playbook,
            steps=steps,
            expressions=self._expressions,
            warnings=tuple(self._findings.warnings),
        )

    def _warn_unreachable(self, reach: list[int]) -> None:
        playbook = self._playbook
        reached = 0
        for number, step in enumerate(playbook.steps):
            if step.name in (playbook.entry, playbook.final_step, "end"):
                reached |= 1 << number | reach[number]
        for number, step in enumerate(playbook.steps):
            if not reached >> number & 1:
                message = f"step {step.name!r}: no arc leads here, it never runs"
                self._findings.warn("unreachable_step", message, (*step.place, "step"), step=step.name)

    def _step(
        self, number: int, step: Step
    ) -> tuple[Step, tuple[CompiledTask, ...], tuple[CompiledArc, ...], tuple[Assignment, ...]]:
        labels = {task.label: n for n, task in enumerate(step.tasks)}
        tasks = tuple(self._task(step, task, labels) for task in step.tasks)
        arcs = tuple(
            self._arc(step, f"{number}/arc/{n}", arc) for n, arc in enumerate(step.next.arcs if step.next else ())
        )
        return step, tasks, arcs, self._server_sets(step, step.set, f"{number}/set", step.place)

    # --- what the router evaluates -----------------------------------------------------------------------

    def _loop(self, number: int, step: Step) -> CompiledLoop | None:
        loop = step.loop
        if loop is None:
            return None
        collection = self._guarded(step, (*loop.place, "in"), loop.collection, compile_value)
        in_flight = self._guarded(step, (*loop.place, "spec", "max_in_flight"), loop.max_in_flight, compile_value)
        if collection is None or in_flight is None:
            return None
        return CompiledLoop(
            loop=loop,
            collection=collection,
            server=self._opening_value(step, loop.collection, f"{number}/loop/in", (*loop.place, "in")),
            max_in_flight=self._opening_value(
                step, loop.max_in_flight, f"{number}/loop/max", (*loop.place, "spec", "max_in_flight")
            ),
            needs=needs_of(mentions_of(collection)),
        )

    def _opening_value(self, step: Step, value: object, key: str, place: Path) -> ServerValue:
        """A value that is needed before the step runs: what it reads as `result` is the step before, which only a
        worker can look at."""
        found = self._server_value(step, value, key, place)
        leaves = []
        for path, expression in found.leaves:
            if expression.template.roots & COMPLETING:
                plan = AtomPlan(atoms=(), residual=expression.template, evaluable=False)
                expression = replace(expression, plan=plan)  # noqa: PLW2901
                self._expressions[expression.key] = expression
            leaves.append((path, expression))
        return replace(found, leaves=tuple(leaves))

    def _arc(self, step: Step, key: str, arc: Arc) -> CompiledArc:
        when = None
        mentions = False
        if arc.when is not None:
            place = (*arc.place, "when")
            template = self._guarded(step, place, arc.when, compile_condition)
            if template is not None:
                when = self._expression(step, f"{key}/when", template, place, condition=True)
                mentions = _mentions_failure(template, step.name)
        return CompiledArc(
            target=arc.step,
            when=when,
            sets=self._server_sets(step, arc.set, f"{key}/set", arc.place),
            mentions_failure=mentions,
        )

    def _server_sets(self, step: Step, block: Mapping[str, object], key: str, place: Path) -> tuple[Assignment, ...]:
        assignments = []
        for number, (name, value) in enumerate(block.items()):
            scope, path = _target(name, bare="ctx")
            if scope != "ctx":
                message = f"step {step.name!r}: {name!r} in a step or arc set is written to ctx"
                self._findings.warn("set_scope", message, (*place, "set", name), step=step.name)
            compiled = self._guarded(step, (*place, "set", name), value, compile_value)
            if compiled is None:
                continue
            server = self._server_value(step, value, f"{key}/{number}", (*place, "set", name))
            assignments.append(Assignment(scope="ctx", path=path, value=compiled, server=server))
        return tuple(assignments)

    def _server_value(self, step: Step, value: object, key: str, place: Path) -> ServerValue:
        leaves = []
        for number, (path, text) in enumerate(_texts(value, ())):
            template = compile_template(text)
            # A literal may still hold a comment or a raw block.
            if template.kind != "literal" or "{" in text:
                leaves.append((path, self._expression(step, f"{key}/{number}", template, (*place, *path))))
        return ServerValue(skeleton=value, leaves=tuple(leaves))

    def _expression(
        self, step: Step, key: str, template: Template, place: Path, *, condition: bool = False
    ) -> ServerExpression:
        if template.uses_random:
            message = (
                f"step {step.name!r}, {_field_name(place)!r}: the filter random is not allowed where the "
                "server evaluates"
            )
            self._findings.error("server_random", message, place, step=step.name)
        plan = atoms_of(template, self._atom_steps, step.name, condition=condition)
        needs = needs_of(mentions_of(template), completing=step.name)
        expression = ServerExpression(key=key, template=template, plan=plan, needs=needs)
        self._expressions[key] = expression
        if plan.evaluable:
            for atom in plan.atoms:
                self._atoms[atom.step or step.name][atom.key] = atom
        return expression

    # --- what the worker evaluates -----------------------------------------------------------------------

    def _task(self, step: Step, task: Task, labels: Mapping[str, int]) -> CompiledTask:
        lenient = LENIENT_FIELDS.get(task.kind, frozenset())
        fields = {}
        for name, value in task.config.items():
            compiled = self._field(step, task, name, value, is_lenient=name in lenient)
            if compiled is not None:
                fields[name] = compiled
        compiled_input = self._field(step, task, "input", dict(task.input))
        return CompiledTask(
            label=task.label,
            kind=task.kind,
            fields=fields,
            lenient=lenient,
            input=compiled_input or compile_value({}),
            sets=self._worker_sets(step, task.set, (*task.place, "set"), bare="local"),
            rules=tuple(self._rule(step, task, rule, labels) for rule in task.rules),
            fails_unmatched=task.fails_unmatched,
            timeout=self._field(step, task, "timeout", task.timeout),
        )

    def _field(
        self, step: Step, task: Task, name: str, value: object, *, is_lenient: bool = False
    ) -> CompiledValue | None:
        """Text that is no template is left as it is, with a warning; what is never allowed is an error."""
        if value is None:
            return None
        where, place = f"step {step.name!r}, task {task.label!r}, field {name!r}", (*task.place, name)
        try:
            return compile_value(value)
        except TemplateInvalid as error:
            self._findings.warn("template_invalid", f"{where}: {error}", place, step=step.name)
        except TemplateFailed as error:
            note = self._findings.warn if is_lenient else self._findings.error
            note(error.code, f"{where}: {error}", place, step=step.name)
        return _compiled_where_possible(value)

    def _worker_sets(
        self, step: Step, block: Mapping[str, object], place: Path, *, bare: str
    ) -> tuple[Assignment, ...]:
        assignments = []
        for name, value in block.items():
            scope, path = _target(name, bare=bare)
            compiled = self._guarded(step, (*place, name), value, compile_value)
            if compiled is not None:
                assignments.append(Assignment(scope=scope, path=path, value=compiled))
        return tuple(assignments)

    def _rule(self, step: Step, task: Task, rule: Rule, labels: Mapping[str, int]) -> CompiledRule:
        to = None
        if rule.to is not None:
            to = max(labels[task.label] - 1, 0) if rule.to in ("previous", "prev") else labels[rule.to]
        then = (*rule.place, "then")
        when = delay = None
        if rule.when is not None:
            when = self._guarded(step, (*rule.place, "when"), rule.when, compile_condition)
        if rule.delay is not None:
            delay = self._guarded(step, (*then, "delay"), rule.delay, compile_value)
        attempts = self._guarded(step, (*then, "attempts"), rule.attempts, compile_value)
        return CompiledRule(
            when=when,
            do=rule.do,
            attempts=attempts or compile_value(3),
            backoff=rule.backoff,
            delay=delay,
            to=to,
            sets=self._worker_sets(step, rule.set, (*then, "set"), bare="ctx"),
        )

    def _guarded(self, step: Step, place: Path, value: Any, compile_one: Callable[[Any], C]) -> C | None:
        try:
            return compile_one(value)
        except (TemplateInvalid, TemplateFailed) as error:
            message = f"step {step.name!r}, field {_field_name(place)!r}: {error}"
            self._findings.error(error.code, message, place, step=step.name)
            return None


def _field_name(place: Path) -> str:
    """The end of a place, as far as a reader needs it: `when`, or `set.rows` for an entry of a block."""
    names = [str(part) for part in place]
    return ".".join(names[names.index("set") :]) if "set" in names[2:] else names[-1]


def _compiled_where_possible(value: object) -> CompiledValue:
    """A value in which every text that is no template stays as it is and the others are rendered."""
    parts: list[CompiledValue] = []

    def shape(part: object) -> object:
        if isinstance(part, dict):
            return {key: shape(child) for key, child in part.items()}
        if isinstance(part, list):
            return [shape(child) for child in part]
        try:
            parts.append(compile_value(part))
        except (TemplateInvalid, TemplateFailed):
            return part
        return parts[-1]._shape

    shaped = shape(value)
    return CompiledValue(
        source=value,
        roots=frozenset(root for part in parts for root in part.roots),
        mentions=frozenset(mention for part in parts for mention in part.mentions),
        needs_child=any(part.needs_child for part in parts),
        uses_random=any(part.uses_random for part in parts),
        uses_now=any(part.uses_now for part in parts),
        _shape=shaped,
    )


def _set_keys(playbook: Playbook) -> Iterator[str]:
    for step in playbook.steps:
        yield from step.set
        for arc in step.next.arcs if step.next else ():
            yield from arc.set
        for task in step.tasks:
            yield from task.set
            for rule in task.rules:
                yield from rule.set


def _target(name: str, *, bare: str) -> tuple[str, tuple[str, ...]]:
    head, _, rest = name.partition(".")
    if head in ("ctx", "iter", "step") and rest:
        return head, tuple(rest.split("."))
    return bare, tuple(name.split("."))


def _texts(value: object, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _texts(child, (*path, key))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _texts(child, (*path, number))


def _mentions_failure(template: Template, step: str) -> bool:
    if template.roots & {"event", "error"}:
        return True
    own = {(step, "error"), (step, "status"), ("steps", step, "error"), ("steps", step, "status")}
    return any(path[:2] in _FAILURE_MENTIONS or path[:2] in own or path[:3] in own for path in template.mentions)


def _reachability(playbook: Playbook) -> list[int]:
    """For each step the bit set of steps that its arcs can lead to, over any number of arcs."""
    number_of = {step.name: number for number, step in enumerate(playbook.steps)}
    direct = [
        sum({1 << number_of[arc.step] for arc in (step.next.arcs if step.next else ()) if arc.step in number_of})
        for step in playbook.steps
    ]
    reach = []
    for start in direct:
        seen = frontier = start
        while frontier:
            node = frontier.bit_length() - 1
            found = direct[node] & ~seen
            seen |= found
            frontier = frontier & ~(1 << node) | found
        reach.append(seen)
    return reach


def _needs(tasks: Iterable[CompiledTask]) -> Needs:
    needs = needs_of(mention for task in tasks for mention in _task_mentions(task))
    if any(task.kind == "python" and "context" in _code(task) for task in tasks):
        return Needs(names=needs.names, everything=True)
    return needs


def _code(task: CompiledTask) -> str:
    code = task.fields.get("code")
    return "" if code is None else str(code.source)


def _task_mentions(task: CompiledTask) -> Iterator[tuple[str, ...]]:
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
