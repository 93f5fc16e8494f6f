"""What the router evaluates: guards, step and arc writes and the opening of loops, each with the plan that spares it
the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from noetl.core.expression import Atom, AtomPlan, CompiledValue, Template, atoms_of
from noetl.core.playbook.compiled import Assignment, CompiledArc, CompiledLoop, ServerExpression, ServerValue
from noetl.core.playbook.compiling.texts import Templates, field_name, set_keys, target_of, texts_in
from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.model import Arc, Playbook, Step
from noetl.core.playbook.needs import COMPLETING, mentions_of, needs_of

_FAILURE_MENTIONS = frozenset((("output", "status"), ("output", "error"), ("outcome", "status"), ("outcome", "error")))


class ServerCompiler:
    """`expressions` by key and `atoms` by step grow with everything that is compiled."""

    def __init__(self, playbook: Playbook, findings: Findings) -> None:
        self._findings = findings
        self.expressions: dict[str, ServerExpression] = {}
        self.atoms: dict[str, dict[str, Atom]] = {step.name: {} for step in playbook.steps}
        # A name that is also a context or workload key may mean either at run time: no atom is cut for it.
        written = {target_of(key, bare="ctx")[1][0] for key in set_keys(playbook)}
        self._atom_steps = frozenset(
            step.name for step in playbook.steps if step.name not in written and step.name not in playbook.workload
        )

    def _templates(self, step: Step) -> Templates:
        return Templates(self._findings, step)

    def arc(self, step: Step, key: str, arc: Arc) -> CompiledArc:
        when = None
        mentions = False
        if arc.when is not None:
            assert isinstance(arc.when, str | bool)
            place = (*arc.place, "when")
            template = self._templates(step).condition(arc.when, place)
            when = self._expression(step, f"{key}/when", template, place, condition=True)
            mentions = _mentions_failure(template, step.name)
        return CompiledArc(
            target=arc.step,
            when=when,
            sets=self.sets(step, arc.set, f"{key}/set", arc.place),
            mentions_failure=mentions,
        )

    def sets(self, step: Step, block: Mapping[str, object], key: str, place: Path) -> tuple[Assignment, ...]:
        assignments = []
        for number, (name, value) in enumerate(block.items()):
            scope, path = target_of(name, bare="ctx")
            if scope != "ctx":
                message = f"step {step.name!r}: {name!r} in a step or arc set is written to ctx"
                self._findings.warn("set_scope", message, (*place, "set", name), step=step.name)
            compiled = self._templates(step).value(value, (*place, "set", name))
            server = self._value(step, compiled, f"{key}/{number}", (*place, "set", name))
            assignments.append(Assignment(scope="ctx", path=path, value=compiled, server=server))
        return tuple(assignments)

    def loop(self, number: int, step: Step) -> CompiledLoop | None:
        loop = step.loop
        if loop is None:
            return None
        place = (*loop.place, "in")
        collection = self._templates(step).value(loop.collection, place)
        return CompiledLoop(
            loop=loop,
            collection=collection,
            server=self._opening(step, collection, f"{number}/loop/in", place),
            max_in_flight=self.opening(
                step, loop.max_in_flight, f"{number}/loop/max", (*loop.place, "spec", "max_in_flight")
            ),
            needs=needs_of(mentions_of(collection)),
        )

    def opening(self, step: Step, value: object, key: str, place: Path) -> ServerValue:
        """A value that is needed before the step runs."""
        return self._opening(step, self._templates(step).value(value, place), key, place)

    def _opening(self, step: Step, value: CompiledValue, key: str, place: Path) -> ServerValue:
        """What it reads as `result` is the step before, which only a worker can look at."""
        found = self._value(step, value, key, place)
        leaves = []
        for path, expression in found.leaves:
            if expression.template.roots & COMPLETING:
                plan = AtomPlan(atoms=(), residual=expression.template, evaluable=False)
                expression = replace(expression, plan=plan)  # noqa: PLW2901
                self.expressions[expression.key] = expression
            leaves.append((path, expression))
        return replace(found, leaves=tuple(leaves))

    def _value(self, step: Step, value: CompiledValue, key: str, place: Path) -> ServerValue:
        leaves = []
        for number, (path, text) in enumerate(texts_in(value.source)):
            template = value.template_at(path)
            # A literal may still hold a comment or a raw block.
            if template.kind != "literal" or "{" in text:
                leaves.append((path, self._expression(step, f"{key}/{number}", template, (*place, *path))))
        return ServerValue(skeleton=value.source, leaves=tuple(leaves))

    def _expression(
        self, step: Step, key: str, template: Template, place: Path, *, condition: bool = False
    ) -> ServerExpression:
        if template.uses_random:
            message = (
                f"step {step.name!r}, {field_name(place)!r}: the filter random is not allowed where the "
                "server evaluates"
            )
            self._findings.error("server_random", message, place, step=step.name)
        plan = atoms_of(template, self._atom_steps, step.name, condition=condition)
        needs = needs_of(mentions_of(template), completing=step.name)
        expression = ServerExpression(key=key, template=template, plan=plan, needs=needs)
        self.expressions[key] = expression
        if plan.evaluable:
            for atom in plan.atoms:
                self.atoms[atom.step or step.name][atom.key] = atom
        return expression


def _mentions_failure(template: Template, step: str) -> bool:
    if template.roots & {"event", "error"}:
        return True
    own = {(step, "error"), (step, "status"), ("steps", step, "error"), ("steps", step, "status")}
    return any(path[:2] in _FAILURE_MENTIONS or path[:2] in own or path[:3] in own for path in template.mentions)
