"""Results of single tasks that are stored on their own, because a hint or a template asks where they are."""

from __future__ import annotations

from dataclasses import replace

from noetl.core.expression import view_of
from noetl.core.playbook.storage.hints import Hints
from noetl.core.results.preview import preview_of
from noetl.engine.payloads import Payloads
from noetl.engine.work.keeping import external
from noetl.engine.work.pipeline.outcome import TaskOutcome


async def stored_outcome(payloads: Payloads, outcome: TaskOutcome, hints: Hints, **owner: str) -> TaskOutcome:
    """The outcome with `_ref` and its companions, when its result counts as external.  It is durable then."""
    if outcome.failure is not None:
        return outcome
    payload = await payloads.keep_json(outcome.value, **owner)
    view = view_of(outcome.value)
    stored = external(hints, payload.reference.bytes, view)
    if stored is None:
        return outcome
    await payloads.store(payload)
    reference = payload.reference.to_json()
    bytes_max = stored["preview"]
    assert isinstance(bytes_max, int)
    names = {
        "_ref": reference,
        "_store": stored["store"],
        "_size_bytes": stored["bytes"],
        "_preview": preview_of(view, bytes_max),
    }
    return replace(outcome, reference=reference, extras=names)
