"""The commit that creates an execution, whatever it begins with; the same request again is the same execution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from noetl.core.errors import RequestInvalid, TransitionConflict
from noetl.core.event import Draft
from noetl.core.ids import ExecutionId
from noetl.core.reference import Payload
from noetl.core.shards import shard_of
from noetl.engine.control.decider import Decider
from noetl.engine.control.inputs import StartInput
from noetl.ports.ledger import IdempotencyRow
from noetl.ports.queue import Executions

STARTS_MAX = 5


class Request(Protocol):
    """Who wants a new execution."""

    @property
    def tenant_id(self) -> str: ...

    @property
    def organization_id(self) -> str: ...

    @property
    def idempotency_key(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The first event of an execution, the payloads that become durable with it, and the state of another one that it
    begins with, if any."""

    execution_id: int
    draft: Draft
    payloads: Sequence[Payload] = ()
    seeds: Sequence[Draft] = ()


class Beginnings:
    def __init__(self, *, decider: Decider, executions: Executions, shard_count: int) -> None:
        self._decider = decider
        self._executions = executions
        self._shard_count = shard_count

    async def known(self, request: Request, digest: str) -> int | None:
        """The execution that the same request has started before."""
        if request.idempotency_key is None:
            return None
        row = await self._executions.idempotent(
            tenant_id=request.tenant_id,
            organization_id=request.organization_id,
            idempotency_key=request.idempotency_key,
        )
        if row is None:
            return None
        if row.request_digest != digest:
            raise RequestInvalid("this idempotency key was used for another request")
        return row.execution_id

    async def commit(self, request: Request, beginning: Beginning, digest: str) -> int:
        """The new execution, or the one that the same request has started meanwhile.  Raises ShardMoved."""
        execution_id = beginning.execution_id
        start = StartInput(
            execution_id=execution_id,
            shard_id=shard_of(ExecutionId(execution_id), self._shard_count),
            tenant_id=request.tenant_id,
            organization_id=request.organization_id,
            draft=beginning.draft,
            payloads=tuple(beginning.payloads),
            idempotency=_idempotency(request, digest, execution_id),
            seeds=tuple(beginning.seeds),
        )
        try:
            await self._decider.tell(start)
        except TransitionConflict:
            # Another request with the same key was faster.
            known = await self.known(request, digest)
            if known is None:
                raise
            return known
        return execution_id


def _idempotency(request: Request, digest: str, execution_id: int) -> IdempotencyRow | None:
    if request.idempotency_key is None:
        return None
    return IdempotencyRow(
        tenant_id=request.tenant_id,
        organization_id=request.organization_id,
        idempotency_key=request.idempotency_key,
        request_digest=digest,
        execution_id=execution_id,
    )
