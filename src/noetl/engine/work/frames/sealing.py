"""The result of a cursor loop: counters, and no rows.  What each row gave is in the outputs of its frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core import kinds
from noetl.core.expression import OutputView, view_of
from noetl.core.playbook.compiled import CompiledStep
from noetl.core.reference import MEDIA_JSON, Result
from noetl.engine.payloads import Payloads
from noetl.engine.results import failed_view
from noetl.engine.work.facts import Facts
from noetl.engine.work.frames.dead_letters import dead_letter
from noetl.engine.work.frames.gathered import with_gathered
from noetl.engine.work.pipeline.outcome import atom_document
from noetl.ports.session import CommandMessage, Fact


def cursor_result(stage: Mapping[str, Any]) -> dict[str, object]:
    """What `{{ step }}` of a cursor loop is (dsl §4.5).  Partial is what left rows behind: those that failed, and those
    behind the limit of a slot."""
    total, failed, cursor = stage["total"], stage["failed"], stage["cursor"]
    success = stage["done"] - failed
    return {
        "status": "partial" if failed or cursor["capped"] else "ok",
        "processed": success,
        "failed": failed,
        "breaks": cursor["breaks"],
        "frames": cursor["frames"],
        "row_count": total,
        "stats": {"total": total, "success": success, "failed": failed},
    }


async def seal_cursor(facts: Facts, payloads: Payloads, message: CommandMessage, step: CompiledStep) -> Fact:
    owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
    given: Any = message.body["stage"]
    stage = await with_gathered(payloads, given, **owner)
    failure, value = stage["failure"], cursor_result(stage)
    letters = await dead_letter(payloads, message, stage)
    meta: dict[str, object] = {}
    if letters:
        meta["dead_letter"] = value["dead_letter"] = letters[0].reference.to_json()
    payload = await facts.keep(message, value, MEDIA_JSON)
    context: dict[str, object] = {}
    if step.atoms:
        context["atoms"] = atom_document(step.atoms, _names(step.name, value, failure))
    if failure is not None:
        context["error"] = failure
    return Fact(
        execution_id=message.execution_id,
        command_id=message.command_id,
        attempt=message.attempt,
        event_type=kinds.COMMAND_COMPLETED if failure is None else kinds.COMMAND_FAILED,
        result=Result(
            status="ok" if failure is None else "error", reference=payload.reference, context=context
        ).to_json(),
        payloads=[payload, *letters],
        meta=meta,
    )


def _names(step: str, value: dict[str, object], failure: Mapping[str, object] | None) -> dict[str, object]:
    """The completing step under its own name and as `output`."""
    seen = value if failure is None else failed_view(failure, value)
    view = view_of(seen)
    output = OutputView(status="ok" if failure is None else "error", data=seen, error=failure)
    return {
        step: view,
        "steps": {step: view},
        "output": output,
        "outcome": output,
        "result": view,
        "response": view,
        "error": failure,
    }
