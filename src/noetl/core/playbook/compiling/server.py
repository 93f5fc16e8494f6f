"""What the router evaluates: guards, step and arc writes and the opening of loops, each with the plan that spares it
the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from noetl.core import limits
from noetl.core.codec import canonical_bytes
from noetl.core.credential_keys import credential_at
from noetl.core.expression import Atom, AtomPlan, CompiledValue, Template, atoms_of, literal_template
from noetl.core.playbook.compiled import (
    Answer,
    Assignment,
    CompiledAdmission,
    CompiledArc,
    CompiledCursor,
    CompiledLoop,
    ServerExpression,
    ServerValue,
)
from noetl.core.playbook.compiling.texts import Templates, field_name, set_keys, target_of, texts_in
from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.keychain.secrecy import reads_secrets
from noetl.core.playbook.model import Arc, Cursor, Playbook, Step
from noetl.core.playbook.needs import COMPLETING, RESERVED, mentions_of, needs_of

_FAILURE_MENTIONS = frozenset((("output", "status"), ("output", "error"), ("outcome", "status"), ("outcome", "error")))


# What a loop is opened with and what a worker, not the router, works with.
_MAY_BE_LARGE = ("/in", "/claim", "/auth")


def _nested_results(step: Step) -> frozenset[str]:
    """The names below a step's result under which results of its tasks, or of its rows, stand."""
    if step.loop is not None:
        return frozenset(("results", "data", "result"))
    return frozenset(("results", *(task.label for task in step.tasks))) if step.is_pipeline else frozenset()


class ServerCompiler:
    """`expressions` by key and `atoms` by step grow with everything that is compiled."""

    def __init__(self, playbook: Playbook, findings: Findings) -> None:
        self._findings = findings
        self._nested = {step.name: _nested_results(step) for step in playbook.steps}
        self.expressions: dict[str, ServerExpression] = {}
        self._plans: dict[tuple[Template, bool, bool], AtomPlan] = {}
        self.atoms: dict[str, dict[str, Atom]] = {step.name: {} for step in playbook.steps}
        # A name that is also a context or workload key may mean either at run time, and a reserved one never means
        # a step: no atom is cut for them.
        written = {target_of(key, bare="ctx")[1][0] for key in set_keys(playbook)}
        others = RESERVED | written | playbook.workload.keys()
        self._atom_steps = frozenset(step.name for step in playbook.steps if step.name not in others)

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
            args=self.sets(step, arc.args, f"{key}/args", arc.place, block_name="args"),
        )

    def admission(self, number: int, step: Step) -> CompiledAdmission | None:
        """None for a step that always runs when it is its turn."""
        if not step.admit and step.when is None:
            return None
        rules = (
            (self._condition(step, rule.when, f"{number}/admit/{n}/when", rule.place), rule.allow)
            for n, rule in enumerate(step.admit)
        )
        return CompiledAdmission(
            rules=tuple(rules), guard=self._condition(step, step.when, f"{number}/when", step.place)
        )

    def _condition(self, step: Step, when: object, key: str, place: Path) -> ServerExpression | None:
        """A condition that is looked at before the step runs."""
        if when is None:
            return None
        assert isinstance(when, str | bool)
        template = self._templates(step).condition(when, (*place, "when"))
        return self._expression(step, key, template, (*place, "when"), condition=True, opening=True)

    def sets(
        self, step: Step, block: Mapping[str, object], key: str, place: Path, *, block_name: str = "set"
    ) -> tuple[Assignment, ...]:
        assignments = []
        for number, (name, value) in enumerate(block.items()):
            scope, path = target_of(name, bare="ctx")
            spot = (*place, block_name, name)
            if scope != "ctx":
                message = f"step {step.name!r}: {name!r} in a step or arc set is written to ctx"
                self._findings.warn("set_scope", message, spot, step=step.name)
            elif name.startswith("workload."):
                message = f"step {step.name!r}: the workload never changes: {name!r} is written to ctx.{name}"
                self._findings.warn("set_scope", message, spot, step=step.name)
            compiled = self._templates(step).value(value, spot)
            server = ServerValue(skeleton=value, leaves=())
            is_hidden = credential_at(value, path) is not None and bool(compiled.roots)
            if is_hidden:
                # Its parts are not compiled: they would be reported, one by one.
                message = f"step {step.name!r}: ctx.{'.'.join(path)} looks like a credential and is kept out of events"
                self._findings.warn("credential_in_context", message, spot, step=step.name)
            else:
                server = self._value(step, compiled, f"{key}/{number}", spot)
            is_long = not server.leaves and len(canonical_bytes(value)) > limits.CONTEXT_COUNTER_BYTES_MAX
            if is_hidden or is_long or any(at for at, _ in server.leaves):
                whole = self._whole(step, f"{key}/{number}/whole", compiled, is_hidden=is_hidden)
                server = replace(server, whole=whole)
            assignments.append(Assignment(scope="ctx", path=path, value=compiled, server=server))
        return tuple(assignments)

    def _whole(self, step: Step, key: str, value: CompiledValue, *, is_hidden: bool) -> ServerExpression:
        """A value that a worker evaluates as one."""
        none = literal_template("")
        found = self.expressions[key] = ServerExpression(
            key=key,
            template=none,
            plan=AtomPlan(atoms=(), residual=none, evaluable=False),
            needs=needs_of(mentions_of(value), completing=step.name),
            value=value,
            is_hidden=is_hidden,
        )
        return found

    def loop(self, number: int, step: Step) -> CompiledLoop | None:
        loop = step.loop
        if loop is None:
            return None
        spec, key = (*loop.place, "spec"), f"{number}/loop"
        collection = self._templates(step).value(loop.collection, (*loop.place, "in"))
        return CompiledLoop(
            loop=loop,
            collection=collection,
            server=self._opening(step, collection, f"{key}/in", (*loop.place, "in")),
            max_in_flight=self.opening(step, loop.max_in_flight, f"{key}/max", (*spec, "max_in_flight")),
            frame=self.opening(step, dict(loop.frame), f"{key}/frame", (*spec, "frame")),
            fanout=self.opening(step, dict(loop.fanout), f"{key}/fanout", (*spec, "fanout")),
            locality=self.opening(step, dict(loop.locality), f"{key}/locality", (*spec, "locality")),
            needs=needs_of(mentions_of(collection)),
            cursor=None if loop.cursor is None else self._cursor(step, loop.cursor, f"{key}/cursor"),
        )

    def _cursor(self, step: Step, cursor: Cursor, key: str) -> CompiledCursor:
        place = cursor.place
        auth = self._templates(step).text(cursor.auth, (*place, "auth"))
        is_workers = not auth.roots or reads_secrets(auth)
        return CompiledCursor(
            kind=cursor.kind,
            claim=self.opening(step, cursor.claim, f"{key}/claim", (*place, "claim")),
            options=self.opening(step, dict(cursor.options), f"{key}/options", (*place, "options")),
            auth=auth,
            server_auth=None if is_workers else self._opening(step, auth, f"{key}/auth", (*place, "auth")),
            needs=needs_of(mentions_of(auth)) if is_workers else needs_of(()),
        )

    def opening(self, step: Step, value: object, key: str, place: Path) -> ServerValue:
        """A value that is needed before the step runs."""
        return self._opening(step, self._templates(step).value(value, place), key, place)

    def _opening(self, step: Step, value: CompiledValue, key: str, place: Path) -> ServerValue:
        return self._value(step, value, key, place, opening=True)

    def _value(self, step: Step, value: CompiledValue, key: str, place: Path, *, opening: bool = False) -> ServerValue:
        leaves = []
        for number, (path, text) in enumerate(texts_in(value.source)):
            template = value.template_at(path)
            # A literal may still hold a comment or a raw block.
            if template.kind != "literal" or "{" in text:
                found = self._expression(step, f"{key}/{number}", template, (*place, *path), opening=opening)
                leaves.append((path, found))
        return ServerValue(skeleton=value.source, leaves=tuple(leaves))

    def _expression(
        self, step: Step, key: str, template: Template, place: Path, *, condition: bool = False, opening: bool = False
    ) -> ServerExpression:
        """`opening` is about a step that has not run: `result` is then that of the step before, which is not known
        here and which only a worker can look at."""
        if template.uses_random:
            message = (
                f"step {step.name!r}, {field_name(place)!r}: the filter random is not allowed where the "
                "server evaluates"
            )
            self._findings.error("server_random", message, place, step=step.name)
        completing = None if opening else step.name
        plan = self._plan(template, completing, condition=condition)
        if opening and template.roots & COMPLETING:
            plan = replace(plan, atoms=(), residual=template, evaluable=False)
        needs = needs_of(mentions_of(template), completing=completing)
        is_control = opening and not key.rpartition("/")[0].endswith(_MAY_BE_LARGE)
        answer = Answer.TRUTH if condition else Answer.CONTROL if is_control else Answer.VALUE
        expression = ServerExpression(key=key, template=template, plan=plan, needs=needs, answer=answer)
        self.expressions[key] = expression
        if plan.evaluable:
            for atom in plan.atoms:
                self.atoms[atom.step or step.name][atom.key] = atom
        return expression

    def _plan(self, template: Template, completing: str | None, *, condition: bool) -> AtomPlan:
        """Many steps say the same about what they gave; unless one is called by its name, the plan is the same."""
        nested = self._nested
        if completing in template.roots or "steps" in template.roots or nested.get(completing or ""):
            return atoms_of(template, self._atom_steps, completing, condition=condition, nested=nested)
        key = (template, completing is None, condition)
        if key not in self._plans:
            self._plans[key] = atoms_of(template, self._atom_steps, completing, condition=condition, nested=nested)
        return self._plans[key]


def _mentions_failure(template: Template, step: str) -> bool:
    if template.roots & {"event", "error", "fanin"}:
        return True
    own = {(step, "error"), (step, "status"), ("steps", step, "error"), ("steps", step, "status")}
    return any(path[:2] in _FAILURE_MENTIONS or path[:2] in own or path[:3] in own for path in template.mentions)
