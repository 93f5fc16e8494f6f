"""Work inside a step that only a worker can do: an expression of the router that needs the data, the collection of a
loop, the result of a loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from noetl.core import kinds, limits
from noetl.core.codec import canonical_bytes
from noetl.core.credential_keys import is_credential
from noetl.core.errors import Failure, TemplateFailed
from noetl.core.execution.looping.loops import check_count, rows_of
from noetl.core.execution.looping.policy import CannotLoop
from noetl.core.expression import CompiledValue, Template, is_true, loaded, plain, render, render_value, sole_template
from noetl.core.limits import TEMPLATE_SECONDS_MAX
from noetl.core.playbook.compiled import Answer, CompiledPlaybook, CompiledStep, ServerExpression
from noetl.core.reference import MEDIA_JSON, MEDIA_LOOP, Payload, Result, is_parted
from noetl.engine.payloads import Payloads
from noetl.engine.results import loop_records
from noetl.engine.stored.outcome import completing_names
from noetl.engine.stored.places import StoredPlace, stored_place
from noetl.engine.stored.reader import Reader
from noetl.engine.stored.sources import settled
from noetl.engine.work.collections import store_rows
from noetl.engine.work.facts import Facts
from noetl.engine.work.frames.dead_letters import dead_letter
from noetl.engine.work.frames.gathered import with_gathered
from noetl.engine.work.keeping import seen_loop
from noetl.engine.work.names import outcome_names
from noetl.engine.work.pipeline.outcome import answer_bytes_max, atom_document, recorded_error
from noetl.ports.clock import Clock
from noetl.ports.session import CommandMessage, Fact
from noetl.ports.tool import Renderer


class Evaluations:
    def __init__(self, facts: Facts, payloads: Payloads, renderer: Renderer, clock: Clock) -> None:
        self._facts = facts
        self._payloads = payloads
        self._renderer = renderer
        self._clock = clock

    async def perform(
        self, message: CommandMessage, playbook: CompiledPlaybook, step: CompiledStep, names: dict[str, object]
    ) -> Fact:
        body: Any = message.body
        if body["kind"] == "evaluate":
            return await self._evaluate(message, playbook, names, str(body["expression"]))
        if body["kind"] == "collect":
            return await self._collect(message, playbook, step, names)
        if body["kind"] == "gather":
            return await self._gather(message)
        assert body["kind"] == "seal"
        return await self._seal(message, step)

    async def _evaluate(
        self, message: CommandMessage, playbook: CompiledPlaybook, names: dict[str, object], key: str
    ) -> Fact:
        """Compute one expression of the router where the data is."""
        expression = playbook.expression(key)
        template = expression.value or expression.template
        names.update(outcome_names(message.body, names, playbook, now=self._now(message)))
        payloads: list[Payload] = []
        try:
            place = await self._place(template, names) if expression.answer is Answer.VALUE else None
            if place is not None:
                # It is stored already: the router needs to know where.
                result = Result(status="ok", reference=place.reference, context={"at": list(place.path)})
            else:
                value = await self._rendered(message, playbook, template, names)
                result = await self._answer(message, expression, value, payloads)
        except TemplateFailed as error:
            failure = Failure(kind="template", code=error.code, message=str(error))
            result = Result(status="error", context={"error": recorded_error(failure)})
        return _completed(message, result, payloads)

    async def _answer(
        self, message: CommandMessage, expression: ServerExpression, value: object, payloads: list[Payload]
    ) -> Result:
        if expression.answer is Answer.TRUTH:
            value = is_true(value)
        template = expression.value or expression.template
        is_hidden = expression.is_hidden or is_credential(template.mentions, value)
        if not is_hidden and len(canonical_bytes(value)) <= answer_bytes_max(expression.answer):
            return Result(status="ok", context={"value": value})
        payload = await self._facts.keep(message, value, MEDIA_JSON)
        payloads.append(payload)
        return Result(status="ok", reference=payload.reference)

    @staticmethod
    async def _place(value: Template | CompiledValue, names: Mapping[str, object]) -> StoredPlace | None:
        """Where a value lies that is one stored value as it is, and too large to be an answer."""
        template = sole_template(value)
        if template is None or template.path is None:
            return None
        path = template.path
        return await settled(lambda: stored_place(names, path, limits.ATOM_BYTES_MAX))

    async def _collect(
        self, message: CommandMessage, playbook: CompiledPlaybook, step: CompiledStep, names: dict[str, object]
    ) -> Fact:
        """Evaluate the collection of a loop.  One that is stored already is read where it is; any other is stored in
        chunks."""
        assert step.loop is not None
        names.update(outcome_names(message.body, names, playbook, now=self._now(message)))
        made: list[Payload] = []
        try:
            place = await self._place(step.loop.collection, names)
            if place is not None and place.count is not None:
                check_count(step.name, place.count)
                context = {"total": place.count, "at": list(place.path)}
                result = Result(status="ok", reference=place.reference, context=context)
            else:
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
        strict, now = playbook.playbook.strict_templates, self._now(message)
        if value.needs_child:
            return await self._renderer.render(
                value.source,
                await settled(lambda: {root: loaded(names[root]) for root in value.roots if root in names}),
                now=now,
                timeout_seconds=TEMPLATE_SECONDS_MAX,
                tenant=message.tenant_id,
                organization=message.organization_id,
                strict=strict,
            )
        if isinstance(value, Template):
            return await settled(lambda: render(value, names, now=now, strict=strict))
        return await settled(lambda: render_value(value, names, now=now, strict=strict))

    def _now(self, message: CommandMessage) -> str:
        """The time of the event that made the router ask: whoever evaluates, and when, must not matter."""
        return str(message.body.get("now") or self._clock.now())

    async def _gather(self, message: CommandMessage) -> Fact:
        """Write down where some frames of a loop left their rows: the seal reads it there."""
        stage: Any = message.body["stage"]
        payload = await self._facts.keep(message, {"frames": stage["outputs"]}, MEDIA_JSON)
        return _completed(message, Result(status="ok", reference=payload.reference), [payload])

    async def _seal(self, message: CommandMessage, step: CompiledStep) -> Fact:
        """Write the result of a loop: a manifest of its frames' outputs in item order, or the rows themselves when they
        are few."""
        owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
        given: Any = message.body["stage"]
        stage = await with_gathered(self._payloads, given, **owner)
        failure = stage["failure"]
        document: dict[str, Any] = {
            "total": stage["total"],
            "success": stage["done"] - stage["failed"],
            "failed": stage["failed"],
            "status": "ok" if failure is None else "error",
            "frames": [_listed(output, stage) for output in stage["outputs"]],
            **_shape(stage),
        }
        references = list(_references(stage["outputs"]))
        size = sum(reference["bytes"] for reference in references)
        has_parts = any(is_parted(reference["media_type"]) for reference in references)
        if size <= limits.PAYLOAD_INLINE_BYTES_MAX // 2 and not has_parts:
            records = await loop_records(self._payloads, document, **owner)
            document["frames"] = [{"first": 0, "rows": stage["total"], "ref": None, "records": records}]
        letters = await dead_letter(self._payloads, message, stage)
        meta: dict[str, object] = {}
        if letters:
            meta["dead_letter"] = document["dead_letter"] = letters[0].reference.to_json()
        payload = await self._facts.keep(message, document, MEDIA_LOOP)
        reader = Reader(self._payloads, **owner)
        seen = await settled(lambda: seen_loop(reader, step, document, payload=payload, size=size, error=failure))
        context = seen.context()
        if step.atoms:
            names = completing_names(step.name, seen.envelope, seen.view)
            names |= {"fanin": document["fanin"]} if "fanin" in document else {}
            context["atoms"] = await settled(lambda: atom_document(step.atoms, names))
        result = Result(status=document["status"], reference=payload.reference, context=context)
        event_type = kinds.COMMAND_COMPLETED if failure is None else kinds.COMMAND_FAILED
        return _completed(message, result, [payload, *letters], event_type)._replace(meta=meta)


# What is told of an output for the sake of those of its rows that failed.
_OF_FAILED = frozenset(("frame", "attempt", "claim"))


def _listed(output: Mapping[str, Any], stage: Mapping[str, Any]) -> dict[str, Any]:
    """An output as the result of the loop lists it."""
    left_out = _OF_FAILED if "fanin" in stage else _OF_FAILED | {"failed"}
    return {name: value for name, value in output.items() if name not in left_out}


def _references(outputs: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Where the rows are.  What several outputs have rows of is named once."""
    parts: dict[str, Mapping[str, Any]] = {}
    for output in outputs:
        if output["ref"] is not None:
            yield output["ref"]
        else:
            parts |= {part["ref"]["sha256"]: part["ref"] for part in output.get("parts", ())}
    yield from parts.values()


def _shape(stage: Mapping[str, Any]) -> dict[str, object]:
    """What the result says besides when the pipeline ran once per frame, or over shards."""
    shape: dict[str, object] = {"count": len(stage["outputs"])} if stage.get("framewise") else {}
    if "fanin" in stage:
        refs = [output["ref"] for output in stage["outputs"] if output["ref"] and not output.get("failed")]
        shape["fanin"] = {**stage["fanin"], "refs": refs}
    return shape


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
