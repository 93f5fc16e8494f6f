"""Playbooks for tests, and a driver that runs them without a worker, a ledger or a clock.

`Simulated` folds and decides with the real core; whoever uses it plays the worker.  Every event is sealed and
read back from its JSON, so a state that differs from what the ledger would give fails at once."""

from __future__ import annotations

import datetime
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from noetl.core import kinds
from noetl.core.codec import canonical_bytes
from noetl.core.errors import Failure, PlaybookInvalid, Problem, TemplateFailed
from noetl.core.event import Draft, Event, seal
from noetl.core.execution.context import command_body
from noetl.core.execution.decide import Decision, decide
from noetl.core.execution.evolve import evolve
from noetl.core.execution.lifecycle import limited_draft
from noetl.core.execution.state import Command, Entry, ExecutionState
from noetl.core.execution.values import facts_of, iteration
from noetl.core.execution.writes import nested
from noetl.core.expression import (
    FailedView,
    LoopView,
    ResultRows,
    Scope,
    is_true,
    plain,
    render,
    render_value,
    view_of,
)
from noetl.core.expression.views import loop_summary
from noetl.core.kinds import KINDS
from noetl.core.playbook.compile import compile_playbook
from noetl.core.playbook.compiled import Answer, CompiledPlaybook
from noetl.core.reference import MEDIA_JSON, MEDIA_LOOP, Payload, Result, address, parent_document
from noetl.core.results.failures import error_of
from noetl.engine.stored.outcome import completing_names
from noetl.engine.work.names import outcome_names
from noetl.engine.work.pipeline.outcome import answer_bytes_max, atom_document, recorded_error

FILE = "demo.yaml"
INSTALLED = frozenset(("noop", "python"))
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: demo}\n"
BOOM = Failure(kind="python", message="boom", exception_type="ValueError")
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_TENANT, _ORGANIZATION = "acme", "sales"
_START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

JsonObject = dict[str, Any]


# --- documents -------------------------------------------------------------------------------------------


def document(body: str) -> str:
    """A playbook from everything below `metadata`."""
    return HEAD + textwrap.dedent(body)


def workflow(steps: str, root: str = "") -> str:
    """A playbook from the list of its steps."""
    return document(textwrap.dedent(root) + "\nworkflow:\n" + textwrap.indent(textwrap.dedent(steps), "  "))


def step(name: str, *targets: str | JsonObject, mode: str | None = None, **keys: object) -> JsonObject:
    """One step that does nothing and leads to targets: names, or whole arcs."""
    result: JsonObject = {"step": name, "tool": {"kind": "noop"}, **keys}
    if targets:
        arcs = [{"step": target} if isinstance(target, str) else target for target in targets]
        result["next"] = {"arcs": arcs} if mode is None else {"spec": {"mode": mode}, "arcs": arcs}
    return result


def graph(*steps: JsonObject, **root: object) -> str:
    """A playbook from steps made by `step`."""
    body = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "demo"}}
    content = {**body, **root, "workflow": list(steps)}
    text: str = yaml.dump(content, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    return text


def compiled(text: str) -> CompiledPlaybook:
    return compile_playbook(text, file=FILE, kinds=INSTALLED)


def problems(text: str) -> list[Problem]:
    """The errors of a document that must be refused."""
    try:
        compiled(text)
    except PlaybookInvalid as error:
        return error.problems
    raise AssertionError("the document was accepted")


# --- the driver ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Simulated:
    """One execution.  Commands are answered by `complete`, `fail` and `evaluate`, or all of them by `run`."""

    text: str
    workload: Mapping[str, object] | None = None
    payloads: dict[str, object] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    playbook: CompiledPlaybook = field(init=False)
    state: ExecutionState = field(init=False)

    def __post_init__(self) -> None:
        self.playbook = compiled(self.text)
        workload = self.playbook.playbook.workload if self.workload is None else self.workload
        draft = Draft(
            event_type=kinds.PLAYBOOK_INITIALIZED,
            transition_key=kinds.INITIALIZED_KEY,
            meta={
                "path": self.playbook.playbook.path,
                "playbook": self._keep(self.text),
                "entry": self.playbook.playbook.entry,
                "workload": {
                    name: (value if isinstance(value, Entry) else Entry(value)).to_json()
                    for name, value in workload.items()
                },
            },
        )
        draft = limited_draft(draft, self.playbook.playbook, _moment(1))
        event = self._sealed(draft, version=1)
        self.state = evolve(None, event)
        self._follow(event)

    # --- what a test looks at ----------------------------------------------------------------------------

    @property
    def open(self) -> list[str]:
        """Ids of the commands that wait for an answer, oldest first."""
        return list(self.state.commands)

    @property
    def issued(self) -> list[str]:
        """Ids of all step runs, in the order in which they were issued."""
        return [
            str(event.command_id)
            for event in self.events
            if event.event_type == kinds.COMMAND_ISSUED and event.meta["kind"] == "step"
        ]

    @property
    def context(self) -> dict[str, object]:
        """The inline values of `ctx`."""
        return {name: entry.value for name, entry in self.state.variables.items() if entry.is_inline}

    def decided(self, step_name: str) -> Event:
        """The last decision about a step."""
        return [e for e in self.of(kinds.STEP_DECIDED) if e.meta["step"] == step_name][-1]

    def of(self, event_type: str) -> list[Event]:
        return [event for event in self.events if event.event_type == event_type]

    # --- the worker's part -------------------------------------------------------------------------------

    def complete(self, command_id: str, value: object = None, *, writes: Sequence[JsonObject] | None = None) -> None:
        self._end(command_id, {} if value is None else value, None, writes)

    def fail(self, command_id: str, failure: Failure = BOOM, *, value: object = None, has_atoms: bool = True) -> None:
        self._end(command_id, value, failure, None, has_atoms=has_atoms)

    def evaluate(self, command_id: str) -> None:
        """Answer an `evaluate` command as a worker does: from the body of the command, from nothing else."""
        command = self.state.commands[command_id]
        names = self._names(command)
        expression = self.playbook.expression(str(command.expression))
        options: JsonObject = {"now": self._now(command), "allow_loops": True}
        result = Result(status="ok")
        try:
            if expression.value is not None:
                value = plain(render_value(expression.value, names, **options))
            else:
                value = plain(render(expression.template, names, **options))
            if expression.answer is Answer.TRUTH:
                value = is_true(value)
        except TemplateFailed as error:
            failure = Failure(kind="template", code=error.code, message=str(error))
            result = Result(status="error", context={"error": recorded_error(failure)})
        else:
            if not expression.is_hidden and len(canonical_bytes(value)) <= answer_bytes_max(expression.answer):
                result = Result(status="ok", context={"value": value})
            else:
                result = replace(result, reference=address_of(value).reference)
                self._keep(value)
        self._fact(command, kinds.COMMAND_COMPLETED, result.to_json(), None)

    def answer(self, command_id: str, values: Mapping[str, object]) -> None:
        """Answer one command: an expression by evaluating it, a step by its value, its failure or a function
        of its run."""
        command = self.state.commands[command_id]
        if command.kind == "evaluate":
            self.evaluate(command_id)
            return
        value = values.get(command.step)
        if callable(value):
            value = value(command.run)
        if isinstance(value, Failure):
            self.fail(command_id, value)
        else:
            self.complete(command_id, value)

    def run(
        self,
        values: Mapping[str, object] | None = None,
        *,
        pick: Callable[[list[str]], str] = lambda waiting: waiting[0],
        steps_max: int = 2_000,
    ) -> Simulated:
        """Answer commands until the execution has ended."""
        for _ in range(steps_max):
            if self.state.is_terminal:
                return self
            self.answer(pick(self.open), values or {})
        raise AssertionError(f"no end after {steps_max} commands")

    # --- the shell's part --------------------------------------------------------------------------------

    def append(self, draft: Draft, *, at: str | None = None) -> Event:
        """Record and fold one draft, without deciding."""
        event = self._sealed(draft, version=self.state.version + 1, at=at)
        self.state = evolve(self.state, event)
        return event

    def _follow(self, event: Event) -> None:
        decision = decide(self.state, event, self.playbook)
        for draft in decision.drafts:
            self.append(draft, at=event.event_time)
        assert self.state == replace(decision.state, last_event_id=self.state.last_event_id), (
            "what was decided differs from what the ledger gives"
        )

    def again(self, event: Event) -> Decision:
        """Decide about an event once more, against the present state."""
        return decide(self.state, event, self.playbook)

    def _end(
        self,
        command_id: str,
        value: object,
        failure: Failure | None,
        writes: Sequence[JsonObject] | None,
        *,
        has_atoms: bool = True,
    ) -> None:
        command = self.state.commands[command_id]
        context: JsonObject = {}
        step_atoms = self.playbook.steps[command.step].atoms
        if step_atoms and has_atoms:
            context["atoms"] = atom_document(step_atoms, _step_names(command.step, value, failure))
        if failure is not None:
            context["error"] = recorded_error(failure)
        reference = None
        if failure is None or value is not None:
            reference = address_of(value).reference
            self._keep(value)
        result = Result(status="error" if failure else "ok", reference=reference, context=context)
        event_type = kinds.COMMAND_FAILED if failure else kinds.COMMAND_COMPLETED
        self._fact(command, event_type, result.to_json(), writes)

    def _fact(
        self,
        command: Command,
        event_type: str,
        result: JsonObject,
        writes: Sequence[JsonObject] | None,
    ) -> None:
        event = self.append(
            Draft(
                event_type=event_type,
                transition_key=kinds.terminal_key(command.command_id),
                command_id=command.command_id,
                meta={"step": command.step, "attempt": 1},
                result={**result, "parent_ref": parent_document(command.parent_ref)},
                writes=writes,
            )
        )
        self._follow(event)

    def _sealed(self, draft: Draft, *, version: int, at: str | None = None) -> Event:
        unknown = set(draft.meta) - set(KINDS[draft.event_type].meta)
        assert not unknown, f"{draft.event_type} has undocumented members: {unknown}"
        event = Event(
            execution_id=77,
            event_id=1_000 + version,
            tenant_id=_TENANT,
            organization_id=_ORGANIZATION,
            event_type=draft.event_type,
            event_time=at or _moment(version),
            producer="noetl://tenant/acme/org/sales/test/simulated",
            transition_key=draft.transition_key,
            correlation_id="77",
            command_id=draft.command_id,
            stage_id=draft.stage_id,
            frame_id=draft.frame_id,
            payload_ref=draft.payload_ref,
            result=draft.result,
            writes=draft.writes,
            meta=draft.meta,
            position=version,
            stream_version=version,
        )
        stored = json.loads(seal(event).text)
        members = {name: stored.get(name) for name in ("result", "writes", "meta", "payload_ref")}
        self.events.append(event._replace(**members))
        return self.events[-1]

    def _keep(self, value: object) -> dict[str, object]:
        payload = address_of(value)
        self.payloads[payload.reference.sha256] = json.loads(payload.content)
        return payload.reference.to_json()

    # --- the names of an evaluate command ----------------------------------------------------------------

    def _names(self, command: Command) -> dict[str, object]:
        body: Any = json.loads(canonical_bytes(command_body(self.state, self.playbook, command)))
        workload = {name: self._entry(entry) for name, entry in body["workload"].items()}
        variables = {name: self._entry(entry) for name, entry in body["ctx"].items()}
        steps = {name: self._view(envelope) for name, envelope in body["steps"].items()}
        names: dict[str, object] = {
            **workload,
            **steps,
            **variables,
            "workload": workload,
            "ctx": Scope(variables, workload, steps),
            "steps": steps,
            **facts_of(self.state),
            "iter": iteration(body.get("iter")),
        }
        if self.playbook.playbook.spec is not None:
            names["spec"] = self.playbook.playbook.spec
        if "args" in body:
            names["args"] = {name: self._entry(entry) for name, entry in body["args"].items()}
        return {**names, **outcome_names(body, names, self.playbook, now=body["now"])}

    def _now(self, command: Command) -> str:
        return str(command_body(self.state, self.playbook, command)["now"])

    def _entry(self, entry: JsonObject) -> object:
        value: Any = entry.get("v")
        if "ref" in entry:
            value = plain(result_view(self.payloads[entry["ref"]["sha256"]], None, entry["ref"]["media_type"]))
            for key in entry["path"]:
                value = value[key]
        for patch in entry.get("patches", ()):
            value = nested(value, patch["below"], self._entry(patch))
        return value

    def _view(self, envelope: JsonObject) -> object:
        reference = envelope["ref"]
        value = None if reference is None else self.payloads[reference["sha256"]]
        media_type = MEDIA_JSON if reference is None else reference["media_type"]
        return result_view(value, envelope["error"] if envelope["status"] == "error" else None, media_type)


def _moment(version: int) -> str:
    """The time of an event: a second later than that of the one before."""
    return (_START + datetime.timedelta(seconds=version)).isoformat().replace("+00:00", "Z")


def address_of(value: object, media_type: str = MEDIA_JSON) -> Payload:
    """The payload of a value, as a worker would keep it."""
    return address(
        canonical_bytes(value),
        media_type=media_type,
        store="db",
        tenant_id=_TENANT,
        organization_id=_ORGANIZATION,
    )


def result_view(value: Any, recorded: JsonObject | None, media_type: str = MEDIA_JSON) -> object:
    """What templates see of a step's result; `recorded` is what the ledger says of its failure."""
    view = view_of(value)
    if media_type == MEDIA_LOOP:
        view = LoopView(loop_summary(value), ResultRows(value["frames"][0]["records"]))
    return view if recorded is None else FailedView(error_of(recorded), view)


def _step_names(step_name: str, value: object, failure: Failure | None) -> dict[str, object]:
    """A completing step under its own name and as `output`."""
    recorded = None if failure is None else recorded_error(failure)
    envelope = {"status": "ok" if recorded is None else "error", "ref": None, "error": recorded}
    return completing_names(step_name, envelope, result_view(value, recorded))
