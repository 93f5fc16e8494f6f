"""Running failed items once more: a new execution that begins with the state of one that has ended.

The old one is read and never written: a closed execution stays closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noetl.core.codec import canonical_bytes, sha256_hex
from noetl.core.errors import ExecutionRunning, NothingToRetry, ResultUnknown, RetryTooLarge, ShardMoved
from noetl.core.event import Event
from noetl.core.execution.forking.cursors import over, recorded
from noetl.core.execution.forking.ledger import Refold, Survey
from noetl.core.execution.forking.outputs import writes_in
from noetl.core.execution.forking.seeding import Reopened, Seed, kept_outputs, must_be_opened, seed
from noetl.core.execution.looping.windows import Range
from noetl.core.execution.state import RETRY, ExecutionState, FrameOutput, Stage
from noetl.core.expression import find
from noetl.core.expression.views import MISSING, part_of
from noetl.core.expression.views.pipelines import with_parts
from noetl.core.limits import SEED_OUTPUTS_MAX, STORED_FETCHES_MAX
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.reference import MEDIA_COLLECTION, Payload
from noetl.engine.beginning import STARTS_MAX, Beginning
from noetl.engine.executions import ExecutionService, Started
from noetl.engine.payloads import Payloads
from noetl.engine.playbooks import Playbooks
from noetl.engine.stored.reader import LoopRecords, Reader
from noetl.engine.stored.sources import settled
from noetl.ports.clock import IdSource
from noetl.ports.ledger import Ledger

PAGE_EVENTS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRequest:
    """`step` limits it to the items of one loop."""

    execution_id: int
    tenant_id: str
    organization_id: str
    step: str | None = None
    idempotency_key: str | None = None

    @property
    def digest(self) -> str:
        """What makes two requests the same one."""
        return sha256_hex(canonical_bytes(["retry", "failed", str(self.execution_id), self.step]))

    @property
    def owner(self) -> dict[str, str]:
        return {"tenant_id": self.tenant_id, "organization_id": self.organization_id}


class RetryService:
    def __init__(
        self,
        *,
        executions: ExecutionService,
        ledger: Ledger,
        payloads: Payloads,
        playbooks: Playbooks,
        ids: IdSource,
    ) -> None:
        """`ids` are those of executions that no other one starts."""
        self._executions = executions
        self._ledger = ledger
        self._payloads = payloads
        self._playbooks = playbooks
        self._ids = ids

    async def failed_items(self, request: RetryRequest) -> Started:
        """Start an execution in which the items run that failed or never ran.  It is durable when this returns, or
        there is nothing of it.  Raises ExecutionUnknown, ExecutionRunning, ResultUnknown, NothingToRetry."""
        known = await self._executions.beginnings.known(request, request.digest)
        if known is not None:
            return Started(execution_id=known, warnings=())
        state = await self._executions.state(request.execution_id, **request.owner)
        playbook = await self._playbooks.pinned(state.playbook, **request.owner)
        made, payloads = await self._seed(request, playbook)
        for _ in range(STARTS_MAX):
            beginning = Beginning(
                execution_id=self._ids.next_id(), draft=made.initialized, payloads=payloads, seeds=made.drafts
            )
            try:
                execution_id = await self._executions.beginnings.commit(request, beginning, request.digest)
            except ShardMoved:
                continue  # between the choice of its id and its commit
            return Started(execution_id=execution_id, warnings=())
        raise ShardMoved("the shards of this server are on the move: try again in a moment")

    async def _seed(self, request: RetryRequest, playbook: CompiledPlaybook) -> tuple[Seed, tuple[Payload, ...]]:
        survey = Survey()
        async for event in self._events(request.execution_id):
            survey.see(event)
        if survey.first is None or not survey.is_terminal:
            # Told by the ledger: what this server remembers may be a moment old.
            raise ExecutionRunning(
                f"execution {request.execution_id} is still running: a retry begins where one has ended; "
                "wait for it, or cancel it"
            )
        if request.step is not None:
            _check_step(request, request.step, playbook)
        # Of loops that lead to each other the first one is reopened.
        refold = Refold(survey, survey.chosen(request.step))
        async for event in self._events(request.execution_id):
            refold.see(event, await self._writes(request, refold.unsaid(event)))
        if refold.state is None or not any(request.step in (None, stage.step) for stage, _ in refold.stages):
            raise _nothing(request)
        state, reopened = refold.state, list[Reopened]()
        payloads: list[Payload] = []
        for stage, frames in refold.stages:
            again = stage
            if stage.cursor is not None:
                again, collection = recorded(stage, frames)
                index = await self._payloads.keep_json(collection, media_type=MEDIA_COLLECTION, **request.owner)
                payloads.append(index)
                again = over(again, index.reference.to_json())
            reopened.append(await self._reopened(state, again))
        count = sum(len(one.outputs) for one in reopened)
        if count > SEED_OUTPUTS_MAX:
            raise RetryTooLarge(
                f"what the loops of execution {request.execution_id} have kept is in {count:,} pieces, the limit is "
                f"{SEED_OUTPUTS_MAX:,}: run the playbook again for the items that `noetl items --failed` shows"
            )
        made = seed(survey.first, state, reopened, position=survey.position, kind=RETRY)
        return made, tuple(payloads)

    async def _events(self, execution_id: int) -> AsyncIterator[Event]:
        position = 0
        while page := await self._ledger.read_execution(execution_id, after_position=position, limit=PAGE_EVENTS):
            position = page[-1].position
            for event in page:
                yield event
            # A long ledger takes the processor: between two pages others get their turn.
            await asyncio.sleep(0)

    # --- which items succeeded -----------------------------------------------------------------------------

    async def _reopened(self, state: ExecutionState, stage: Stage) -> Reopened:
        found: dict[int, Sequence[Range]] = {}
        opened = [(place, one) for place, one in enumerate(stage.outputs) if must_be_opened(stage, one)]
        for start in range(0, len(opened), STORED_FETCHES_MAX):
            some = opened[start : start + STORED_FETCHES_MAX]
            rows = await asyncio.gather(*(self._succeeded(state, output) for _, output in some))
            found.update({place: ranges for (place, _), ranges in zip(some, rows, strict=True)})
        return Reopened(stage, kept_outputs(stage, found, origin=state.execution_id))

    async def _writes(self, request: RetryRequest, places: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
        """What the rows in some payloads have written to the context, by reference."""
        found: list[dict[str, object]] = []
        for start in range(0, len(places), STORED_FETCHES_MAX):
            some = places[start : start + STORED_FETCHES_MAX]
            documents: Any = await asyncio.gather(*(self._document(request, place) for place in some))
            for place, document in zip(some, documents, strict=True):
                found.extend(writes_in(place, document))
        return found

    async def _document(self, request: RetryRequest, reference: Mapping[str, object]) -> object:
        reader = Reader(self._payloads, **request.owner)
        return await settled(lambda: with_parts(reader.payload(reference).root()))

    async def _succeeded(self, state: ExecutionState, output: FrameOutput) -> list[Range]:
        """The rows of a frame that have an outcome which is no failure."""
        first, end = output.first, output.first + output.rows
        reader = Reader(self._payloads, tenant_id=state.tenant_id, organization_id=state.organization_id)
        records = LoopRecords(reader, {"total": end, "frames": [output.to_json()]})
        good = await settled(lambda: [_is_good(one) for one in _list(part_of(records, slice(first, end)))])
        ranges: list[Range] = []
        for index, is_good in enumerate(good, start=first):
            if is_good and ranges and ranges[-1][1] == index:
                ranges[-1] = (ranges[-1][0], index + 1)
            elif is_good:
                ranges.append((index, index + 1))
        return ranges


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def _is_good(record: object) -> bool:
    return record is not None and find(record, "e") is MISSING


def _check_step(request: RetryRequest, step: str, playbook: CompiledPlaybook) -> None:
    known = playbook.steps.get(step)
    if known is None:
        raise ResultUnknown(f"execution {request.execution_id} has no step {step[:100]!r}")
    if known.loop is None:
        raise ResultUnknown(f"step {step!r} of execution {request.execution_id} is no loop: only loops have items")


def _nothing(request: RetryRequest) -> NothingToRetry:
    where = f"execution {request.execution_id}" if request.step is None else f"step {request.step!r}"
    return NothingToRetry(
        f"{where} has no loop with items that failed or never ran: there is nothing to run again.  "
        "Failed items of a final step run again with the whole playbook"
    )
