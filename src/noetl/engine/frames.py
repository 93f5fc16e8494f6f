"""Frames by request: claim, heartbeat and commit for workers that ask.  They become the same facts as those of the
open stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from noetl.core import kinds
from noetl.core.errors import (
    EnvelopeInvalid,
    ExecutionClosed,
    FrameAlreadyTerminal,
    LeaseLost,
    NoetlError,
    StageUnknown,
)
from noetl.core.locator.locality import NOWHERE, Distance, Place
from noetl.core.reference import MEDIA_FRAME, Payload, Result, check_hints, reference_from_json
from noetl.engine.control.decider import Decider
from noetl.engine.control.pull import FrameClaimInput
from noetl.engine.payloads import Payloads
from noetl.engine.sessions.keeper import Keeper, Told
from noetl.engine.sessions.remote import RemoteSession
from noetl.ports.ledger import Ledger
from noetl.ports.owner import Owner
from noetl.ports.queue import Queue
from noetl.ports.session import CommandMessage, Fact

PAGE_EVENTS = 5_000
# Frames that were issued between the look at the queue and the decision are seen by a second look.
LOOKS_AT_QUEUE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """How a frame ended: a record per row in item order (null for a row that did not run), or where they are."""

    attempt: int
    records: Sequence[Mapping[str, Any] | None] | None
    output_ref: Mapping[str, Any] | None
    error: Mapping[str, Any] | None
    wall_ms: float
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What each task of the pipeline cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which frames a session asks for: how many, near which data, and how far from theirs it takes them while somebody
    nearer can.  `key` is the name of the request."""

    count: int = 1
    key: str | None = None
    near: Place = NOWHERE
    max_distance: Distance | None = None


class FrameService:
    def __init__(
        self, *, decider: Decider, keeper: Keeper, payloads: Payloads, ledger: Ledger, queue: Queue | None = None
    ) -> None:
        """`queue` tells which frames nobody holds when there may be other servers."""
        self._decider = decider
        self._keeper = keeper
        self._payloads = payloads
        self._ledger = ledger
        self._queue = queue

    async def claim(
        self, execution_id: int, stage_id: str, *, session_id: int, wanted: Wanted, owner: Owner
    ) -> list[CommandMessage]:
        """Frames for a session.  Asked again with the same key, it gets the same frames."""
        session = self._keeper.beat(session_id)
        async with session.pulling:
            return await self._claim(session, execution_id, stage_id, wanted, owner=owner)

    async def _claim(
        self, session: RemoteSession, execution_id: int, stage_id: str, wanted: Wanted, *, owner: Owner
    ) -> list[CommandMessage]:
        known = session.pulled(wanted.key)
        if known is not None:
            return known
        await session.introduced.wait()
        for _ in range(LOOKS_AT_QUEUE):
            asked = FrameClaimInput(
                execution_id=execution_id,
                stage_id=stage_id,
                session_id=session.session_id,
                count=wanted.count,
                preferred=wanted.near,
                max_distance=wanted.max_distance,
                tenant_id=owner.tenant_id,
                organization_id=owner.organization_id,
                free=None if self._queue is None else await self._queue.free(execution_id),
            )
            await self._decider.tell(asked)
            if asked.found or not asked.unlisted:
                break
        return session.pull(wanted.key, list(asked.found))

    async def claim_next(
        self, execution_id: int, frame_id: str, *, session_id: int, owner: Owner
    ) -> list[CommandMessage]:
        """The next frame of the stage that a frame was of; none when the stage, or the execution, is at its end."""
        stage_id = frame_id.rpartition("/")[0]
        try:
            return await self.claim(execution_id, stage_id, session_id=session_id, wanted=Wanted(), owner=owner)
        except (StageUnknown, ExecutionClosed):
            return []

    async def heartbeat(
        self, execution_id: int, frame_id: str, *, session_id: int, attempt: int, rows: Sequence[tuple[int, Any]]
    ) -> None:
        """The lease goes on; with rows, their outcome is made durable too."""
        session = self._keeper.beat(session_id)
        try:
            message = session.message(execution_id, frame_id, attempt)
        except LeaseLost as lost:
            self._keeper.count_late(lost)
            await self._refuse_terminal(execution_id, frame_id)
            raise
        if not rows:
            return
        check_hints([record for _, record in rows])
        rows = sorted(rows, key=lambda row: row[0])
        document = {"rows": [[index, record] for index, record in rows], "writes": []}
        payload = await self._keep(message, document)
        ranges = [[index, index + 1] for index, _ in rows]
        await self._report(
            session,
            message,
            kinds.FRAME_HEARTBEAT,
            meta={"ranges": ranges, "failed": sum(isinstance(row, Mapping) and "e" in row for _, row in rows)},
            payload_ref=payload.reference.to_json(),
            payloads=[payload],
        )

    async def commit(self, execution_id: int, frame_id: str, *, session_id: int, commit: Commit) -> None:
        session = self._keeper.beat(session_id)
        try:
            message = session.message(execution_id, frame_id, commit.attempt)
        except LeaseLost as lost:
            self._keeper.count_late(lost)
            await self._refuse_terminal(execution_id, frame_id)
            raise
        stage: Any = message.body["stage"]
        payloads: list[Payload] = []
        check_hints(commit.output_ref)
        if commit.output_ref is not None:
            reference = reference_from_json(commit.output_ref)
            owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
            document = await self._payloads.read_json(commit.output_ref, **owner)
            records = document.get("records") if isinstance(document, dict) else None
        else:
            records = commit.records
            document = {"first": stage["first"], "records": list(records or ())}
            payload = await self._keep(message, document)
            payloads, reference = [payload], payload.reference
        check_hints(records)
        is_framewise = stage.get("process") == "frame"
        if not isinstance(records, list | tuple) or len(records) != (1 if is_framewise else stage["rows"]):
            needed = "one record" if is_framewise else "a record for each of them"
            raise EnvelopeInvalid(f"frame {frame_id} has {stage['rows']} rows and needs {needed}")
        if not all(record is None or isinstance(record, Mapping) for record in records):
            raise EnvelopeInvalid(f"frame {frame_id}: a record is an object, or null for a row that did not run")
        each = stage["rows"] if is_framewise else 1
        failed = each * sum(record is not None and "e" in record for record in records)
        skipped = each * sum(record is None for record in records)
        error = commit.error
        context = {} if error is None else {"error": error}
        await self._report(
            session,
            message,
            kinds.FRAME_COMMITTED if error is None else kinds.FRAME_FAILED,
            result=Result(status="ok" if error is None else "error", reference=reference, context=context).to_json(),
            meta={
                "outcomes": {"success": stage["rows"] - failed - skipped, "failed": failed, "skipped": skipped},
                "profile": {"rows": stage["rows"] - skipped, "wall_ms": commit.wall_ms, "tasks": dict(commit.tasks)},
            },
            payloads=payloads,
        )

    async def _keep(self, message: CommandMessage, document: object) -> Payload:
        return await self._payloads.keep_json(
            document,
            tenant_id=message.tenant_id,
            organization_id=message.organization_id,
            media_type=MEDIA_FRAME,
        )

    async def _report(self, session: RemoteSession, message: CommandMessage, event_type: str, **rest: Any) -> None:
        fact = Fact(
            execution_id=message.execution_id,
            command_id=message.command_id,
            attempt=message.attempt,
            event_type=event_type,
            **rest,
        )
        (outcome,) = await self._keeper.report(session, [Told(None, fact)])
        if isinstance(outcome, LeaseLost):
            await self._refuse_terminal(message.execution_id, message.command_id)
        if isinstance(outcome, NoetlError):
            raise outcome

    async def _refuse_terminal(self, execution_id: int, frame_id: str) -> None:
        """A frame that has ended says so, and by which event."""
        position, key = 0, kinds.frame_terminal_key(frame_id)
        while True:
            events = await self._ledger.read_execution(execution_id, after_position=position, limit=PAGE_EVENTS)
            for event in events:
                if event.transition_key == key:
                    raise FrameAlreadyTerminal(f"frame {frame_id} has ended", event_id=event.event_id)
            if len(events) < PAGE_EVENTS:
                return
            position = events[-1].position
