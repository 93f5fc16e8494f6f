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
from noetl.core.expression import plain, render, view_of
from noetl.core.kinds import KINDS
from noetl.core.limits import ATOM_BYTES_MAX
from noetl.core.playbook.compile import compile_playbook
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.reference import MEDIA_JSON, Payload, Result, address
from noetl.engine.work.pipeline.outcome import TaskOutcome, atom_document, recorded_error

FILE = "demo.yaml"
INSTALLED = frozenset(("noop", "python"))
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: demo}\n"
BOOM = Failure(kind="python", message="boom", exception_type="ValueError")
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_TENANT, _ORGANIZATION = "acme", "sales"
_START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

JsonObject = dict[str, Any]
Answer = Callable[[int], object]


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
        template = self.playbook.expressions[str(command.expression)].template
        result = Result(status="ok")
        try:
            value = plain(render(template, names, now="1999-09-09T09:09:09Z", allow_loops=True))
        except TemplateFailed as error:
            failure = Failure(kind="template", code=error.code, message=str(error))
            result = Result(status="error", context={"error": recorded_error(failure)})
        else:
            if len(canonical_bytes(value)) <= ATOM_BYTES_MAX:
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
                result=result,
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
        raw = {name: self._raw(envelope) for name, envelope in body["steps"].items()}
        steps = {name: view_of(value) for name, value in raw.items()}
        names: dict[str, object] = {
            **workload,
            **steps,
            **variables,
            "workload": workload,
            "ctx": {**raw, **workload, **variables},
            "steps": steps,
            "execution_id": "77",
        }
        if command.step in steps:
            envelope = body["steps"][command.step]
            failure = _recorded(envelope["error"]) if envelope["status"] == "error" else None
            names.update(_step_names(command.step, raw[command.step], failure))
        return names

    def _entry(self, entry: JsonObject) -> object:
        if "ref" not in entry:
            return entry["v"]
        value: Any = self.payloads[entry["ref"]["sha256"]]
        for key in entry["path"]:
            value = value[key]
        return value

    def _raw(self, envelope: JsonObject) -> object:
        reference = envelope["ref"]
        value = None if reference is None else self.payloads[reference["sha256"]]
        if envelope["status"] == "error":
            base = value if isinstance(value, dict) else {}
            return {**base, "status": "error", "error": envelope["error"]}
        return value


def _recorded(error: JsonObject) -> Failure:
    members: JsonObject = {name: error.get(name) for name in ("kind", "message", "code", "status", "exception_type")}
    return Failure(**members, retryable=error["retryable"])


def _moment(version: int) -> str:
    """The time of an event: a second later than that of the one before."""
    return (_START + datetime.timedelta(seconds=version)).isoformat().replace("+00:00", "Z")


def address_of(value: object) -> Payload:
    """The payload of a value, as a worker would keep it."""
    return address(
        canonical_bytes(value),
        media_type=MEDIA_JSON,
        store="db",
        tenant_id=_TENANT,
        organization_id=_ORGANIZATION,
    )


def _step_names(step_name: str, value: object, failure: Failure | None) -> dict[str, object]:
    """A completing step under its own name and as `output`."""
    outcome = TaskOutcome(value=value, failure=failure, attempt=1, duration_ms=0.0, started_at="")
    output, view = outcome.output(), outcome.view()
    error = plain(output["error"]) if failure is not None else None
    return {
        step_name: view,
        "steps": {step_name: view},
        "output": output,
        "outcome": output,
        "result": view,
        "response": view,
        "error": error,
    }
