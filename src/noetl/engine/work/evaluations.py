"""Work inside a step that only a worker can do: an expression of the router that needs the data, the collection of a
loop, the result of a loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core import kinds
from noetl.core.codec import canonical_bytes
from noetl.core.errors import Failure, TemplateFailed
from noetl.core.execution.looping.loops import CannotLoop, rows_of
from noetl.core.execution.values import event_view
from noetl.core.expression import (
    Atom,
    CompiledValue,
    OutputView,
    Template,
    compile_template,
    plain,
    render,
    render_value,
    view_of,
)
from noetl.core.limits import ATOM_BYTES_MAX, PAYLOAD_INLINE_BYTES_MAX, TEMPLATE_SECONDS_MAX
from noetl.core.playbook.compiled import CompiledPlaybook, CompiledStep
from noetl.core.reference import MEDIA_JSON, MEDIA_LOOP, Payload, Result
from noetl.engine.payloads import Payloads
from noetl.engine.results import failed_view, loop_records, loop_result, loop_summary
from noetl.engine.work.collections import store_rows
from noetl.engine.work.facts import Facts
from noetl.engine.work.pipeline.outcome import atom_document, recorded_error
from noetl.ports.clock import Clock
from noetl.ports.session import CommandMessage, Fact
from noetl.ports.tool import Renderer


class Evaluations:
    def __init__(self, facts: Facts, payloads: Payloads, renderer: Renderer, clock: Clock) -> None:
        self._facts = facts
        self._payloads = payloads
        self._renderer = renderer
        self._clock = clock

    async def evaluate(
        self, message: CommandMessage, playbook: CompiledPlaybook, names: dict[str, object], key: str
    ) -> Fact:
        """Compute one expression of the router where the data is."""
        template = playbook.expressions[key].template
        is_loop = playbook.steps[str(message.body["step"])].loop is not None
        names.update(_completing_names(message, names, self._clock.now(), is_loop=is_loop))
        payloads: list[Payload] = []
        result = Result(status="ok")
        try:
            value = await self._rendered(message, playbook, template, names)
            if len(canonical_bytes(value)) <= ATOM_BYTES_MAX:
                result = Result(status="ok", context={"value": value})
            else:
                payload = await self._facts.keep(message, value, MEDIA_JSON)
                payloads.append(payload)
                result = Result(status="ok", reference=payload.reference)
        except TemplateFailed as error:
            failure = Failure(kind="template", code=error.code, message=str(error))
            result = Result(status="error", context={"error": recorded_error(failure)})
        return _completed(message, result, payloads)

    async def collect(
        self, message: CommandMessage, playbook: CompiledPlaybook, step: CompiledStep, names: dict[str, object]
    ) -> Fact:
        """Evaluate the collection of a loop and store it in chunks."""
        assert step.loop is not None
        made: list[Payload] = []
        try:
            value = plain(await self._rendered(message, playbook, step.loop.collection, names))
            rows = rows_of(step.name, value)
            index, made = await store_rows(
                self._payloads, rows, tenant_id=message.tenant_id, organization_id=message.organization_id
            )
            result = Result(status="ok", reference=index.reference, context={"total": len(rows)})
        except TemplateFailed as error:
            failure = Failure(kind="template", code=error.code, message=str(error))
            result = Result(status="error", context={"error": recorded_error(failure)})
        except CannotLoop as refusal:
            result = Result(status="error", context={"error": refusal.error})
        return _completed(message, result, made)

    async def _rendered(
        self,
        message: CommandMessage,
        playbook: CompiledPlaybook,
        value: Template | CompiledValue,
        names: dict[str, object],
    ) -> object:
        strict = playbook.playbook.strict_templates
        if value.needs_child:
            return await self._renderer.render(
                value.source,
                {root: names[root] for root in value.roots if root in names},
                now=self._clock.now(),
                timeout_seconds=TEMPLATE_SECONDS_MAX,
                tenant=message.tenant_id,
                organization=message.organization_id,
                strict=strict,
            )
        if isinstance(value, Template):
            return render(value, names, now=self._clock.now(), strict=strict)
        return render_value(value, names, now=self._clock.now(), strict=strict)

    async def seal(self, message: CommandMessage, step: CompiledStep) -> Fact:
        """Write the result of a loop: a manifest of its frames' outputs in item order, or the rows themselves when they
        are few."""
        stage: Any = message.body["stage"]
        owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
        failure = stage["failure"]
        document: dict[str, Any] = {
            "total": stage["total"],
            "success": stage["done"] - stage["failed"],
            "failed": stage["failed"],
            "status": "ok" if failure is None else "error",
            "frames": stage["outputs"],
        }
        size = sum(output["ref"]["bytes"] if output["ref"] else 0 for output in stage["outputs"])
        if size <= PAYLOAD_INLINE_BYTES_MAX // 2:
            records = await loop_records(self._payloads, document, **owner)
            document["frames"] = [{"first": 0, "rows": stage["total"], "ref": None, "records": records}]
        payload = await self._facts.keep(message, document, MEDIA_LOOP)
        context: dict[str, object] = {}
        if step.atoms:
            names = await self._loop_names(message, step, document, failure)
            context["atoms"] = atom_document(step.atoms, names)
        if failure is not None:
            context["error"] = failure
        result = Result(status=document["status"], reference=payload.reference, context=context)
        event_type = kinds.COMMAND_COMPLETED if failure is None else kinds.COMMAND_FAILED
        return _completed(message, result, [payload], event_type)

    async def _loop_names(
        self,
        message: CommandMessage,
        step: CompiledStep,
        document: Mapping[str, Any],
        failure: Mapping[str, Any] | None,
    ) -> dict[str, object]:
        """What atoms about a loop see.  Rows are read only when one of them looks at rows."""
        owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
        if any(_looks_at_rows(atom) for atom in step.atoms):
            value = loop_result(document, await loop_records(self._payloads, document, **owner))
        else:
            value = loop_summary(document)
        if failure is not None:
            value = failed_view(failure, value)
        rows = value.get("results", [])
        view = view_of(value, extras={"data": rows, "result": rows})
        output = OutputView(status="ok" if failure is None else "error", data=value, error=failure)
        return {
            step.name: view,
            "steps": {step.name: view},
            "output": output,
            "outcome": output,
            "result": view,
            "response": view,
            "error": failure,
        }


_WITHOUT_ROWS = frozenset(("stats", "count", "status", "error"))


def _looks_at_rows(atom: Atom) -> bool:
    """Whether an atom reads anything of a loop's result beside its summary."""
    template = compile_template("{{ " + atom.expression + " }}")
    for mention in template.mentions:
        path = mention[2:] if mention[0] == "steps" else mention[1:]
        if path[:1] == ("data",) and mention[0] in ("output", "outcome"):
            path = path[1:]
        if not path or path[0] not in _WITHOUT_ROWS:
            return True
    return not template.mentions


def _completed(
    message: CommandMessage, result: Result, payloads: list[Payload], event_type: str = kinds.COMMAND_COMPLETED
) -> Fact:
    return Fact(
        execution_id=message.execution_id,
        command_id=message.command_id,
        attempt=message.attempt,
        event_type=event_type,
        result=result.to_json(),
        payloads=payloads,
    )


def _completing_names(message: CommandMessage, names: dict[str, Any], now: str, *, is_loop: bool) -> dict[str, object]:
    """`output` and its companions, for an expression about a step that has already ended."""
    step = str(message.body["step"])
    envelopes: Any = message.body["steps"]
    envelope, view = envelopes.get(step), names["steps"].get(step)
    if envelope is None:
        return {}
    error = envelope.get("error")
    output = OutputView(status=envelope["status"], data=plain(view), ref=envelope["ref"], error=error)
    event = event_view(step, has_failed=envelope["status"] == "error", is_loop=is_loop, now=now)
    return {"output": output, "outcome": output, "result": view, "response": view, "error": error, "event": event}
