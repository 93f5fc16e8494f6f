"""States as rows of the projection."""

from __future__ import annotations

from noetl.core.codec import ordered_bytes
from noetl.core.event import Event
from noetl.core.execution.state import ExecutionState, Status
from noetl.core.execution.view.document import execution_view
from noetl.core.limits import QUARANTINE_REASON_CHARS_MAX
from noetl.ports.ledger import ExecutionRow
from noetl.ports.projections import Unreadable


def execution_row(
    state: ExecutionState, shard_id: int, position: int, *, quarantine: str | None = None
) -> ExecutionRow:
    return ExecutionRow(
        execution_id=state.execution_id,
        tenant_id=state.tenant_id,
        organization_id=state.organization_id,
        shard_id=shard_id,
        path=_text(state.path),
        playbook_digest=str(state.playbook.get("sha256")),
        status=str(state.status),
        started_at=state.started_at,
        ended_at=state.ended_at,
        last_step=state.last_step,
        last_event_id=state.last_event_id,
        applied_position=position,
        parent_execution_id=state.parent_execution_id,
        version=state.version,
        retry_of=state.retry_of,
        state=ordered_bytes(execution_view(state)).decode("utf-8"),
        quarantine=quarantine,
    )


def unfolded_row(event: Event | Unreadable, *, quarantine: str) -> ExecutionRow:
    """All that can be told about an execution of which not even the first event can be folded."""
    return ExecutionRow(
        execution_id=event.execution_id,
        tenant_id=event.tenant_id,
        organization_id=event.organization_id,
        shard_id=event.shard_id,
        path="",
        playbook_digest="",
        status=str(Status.RUNNING),
        started_at=event.event_time,
        ended_at=None,
        last_step=None,
        last_event_id=event.event_id,
        applied_position=event.position,
        quarantine=quarantine,
    )


def quarantine_of(event: Event | Unreadable, error: BaseException | str) -> str:
    """Why an event could not be folded, as JSON."""
    reason = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    document = {
        "reason": reason[:QUARANTINE_REASON_CHARS_MAX],
        "event_id": str(event.event_id),
        "event_type": event.event_type,
        "position": event.position,
    }
    # Lone surrogates have no form in UTF-8, and the text of an error may hold anything.
    return ordered_bytes({name: _written(value) for name, value in document.items()}).decode("utf-8")


def _written(value: object) -> object:
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value


def _text(value: str) -> str:
    """A column of type text holds no NUL."""
    return value.replace("\0", "\ufffd")
