"""Results of single tasks that are stored on their own, because a hint or a template asks where they are."""

from __future__ import annotations

from dataclasses import replace

from noetl.core.expression import View, view_of
from noetl.core.playbook.storage.hints import Hints
from noetl.core.reference import MEDIA_JSON
from noetl.core.results.preview import preview_of
from noetl.engine.payloads import Payloads
from noetl.engine.stored.sources import settled
from noetl.engine.work.keeping import external
from noetl.engine.work.parting import keep_value
from noetl.engine.work.pipeline.outcome import TaskOutcome


async def stored_outcome(payloads: Payloads, outcome: TaskOutcome, hints: Hints, **owner: str) -> TaskOutcome:
    """The outcome with `_ref` and its companions, when its result counts as external.  It is durable then."""
    if outcome.failure is not None:
        return outcome
    value = outcome.value
    kept = await keep_value(payloads, value, media_type=MEDIA_JSON, has_parts=isinstance(value, View), **owner)
    view = await settled(lambda: view_of(value))
    stored = await settled(lambda: external(hints, kept.size, view))
    if stored is None:
        return outcome
    for payload in kept.payloads:
        await payloads.store(payload)
    reference = kept.reference.to_json()
    bytes_max = stored["preview"]
    assert isinstance(bytes_max, int)
    names = {
        "_ref": reference,
        "_store": stored["store"],
        "_size_bytes": stored["bytes"],
        "_preview": await settled(lambda: preview_of(view, bytes_max)),
    }
    return replace(outcome, reference=reference, extras=names)
