"""What the router decides about cursors: what is claimed where, and the turns of the slots that claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from noetl.core import limits
from noetl.core.codec import canonical_bytes
from noetl.core.errors import TemplateFailed
from noetl.core.event import Draft
from noetl.core.execution.looping.dispatching import dispatched
from noetl.core.execution.looping.policy import CannotLoop, Fields
from noetl.core.execution.state import Entry, Stage
from noetl.core.execution.values import NeedsWorker, Scene, evaluate_value
from noetl.core.execution.writes import write
from noetl.core.playbook.compiled import CompiledCursor, ServerValue

# Names that only a claim sees, as if they were written to ctx just before: so they reach whoever evaluates it.
MAX_ROWS, FRAME_POLICY = "__frame_max_rows", "__frame_policy"


def open_cursor(scene: Scene, step: str, cursor: CompiledCursor, frame: Fields) -> dict[str, object]:
    """What `loop.started` says of a cursor.  It is rendered once, so that all slots run the same statement whatever
    happens to ctx; what is no template is not repeated there.  Raises NeedsWorker or CannotLoop."""
    writes: tuple[Mapping[str, object], ...] = (
        {"path": [MAX_ROWS], "v": frame["max_rows"]},
        {"path": [FRAME_POLICY], "v": dict(frame)},
    )
    found: dict[str, object] = {"kind": cursor.kind}
    seen = scene._replace(variables=write(scene.variables, writes))
    try:
        claim = _rendered(seen, f"step {step!r}, loop.cursor.claim", cursor.claim)
    except NeedsWorker as need:
        need.writes = writes
        raise
    if claim is not None:
        if claim.is_inline and not (isinstance(claim.value, str) and claim.value.strip()):
            raise CannotLoop("cursor_claim", f"step {step!r}: loop.cursor.claim gave {claim.value!r}, which is no SQL")
        found["claim"] = claim.to_json()
    if cursor.server_auth is not None:
        auth = _rendered(scene, f"step {step!r}, loop.cursor.auth", cursor.server_auth)
        assert auth is not None
        if auth.is_inline and not auth.value:
            raise CannotLoop("cursor_auth", f"step {step!r}: loop.cursor.auth gave nothing: it names a credential")
        found["auth"] = auth.to_json()
    return found


def _rendered(scene: Scene, where: str, value: ServerValue) -> Entry | None:
    """None for what is no template.  A value that is too large for an event is asked of a worker, who keeps it by
    reference."""
    if not value.leaves:
        return None
    try:
        entry = evaluate_value(scene, value)
    except TemplateFailed as error:
        raise CannotLoop("template_failed", f"{where}: {error}", "template") from error
    expression = value.leaves[0][1]
    if (
        entry.is_inline
        and value.leaves[0][0] == ()
        and expression.key not in scene.answers
        and len(canonical_bytes(entry.value)) > limits.CONTEXT_ENTRY_BYTES_MAX
    ):
        raise NeedsWorker(expression)
    return entry


def turns(stage: Stage) -> Iterator[Draft]:
    """A frame for each slot that may claim again: how many rows it will have is known when they are claimed."""
    number = stage.frames
    for slot, known in sorted(stage.slots.items()):
        if not known.is_open and not known.is_done:
            number += 1
            concurrency = stage.policy.row_concurrency or 1
            yield dispatched(stage, number, known.rows, 0, concurrency, slot=slot)


def is_drained(stage: Stage) -> bool:
    return all(slot.is_done for slot in stage.slots.values())
