"""Events that are well formed, belong to a real execution, and that no release of ours can fold."""

from __future__ import annotations

import itertools
from types import TracebackType
from typing import Self

from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.system.clock import SystemClock
from noetl.core import kinds
from noetl.core.event import Event, seal
from noetl.ports.ledger import Offer


class AppendingLedger:
    """The ledger as somebody uses it who appends and decides nothing."""

    def __init__(self, dsn: str) -> None:
        self._writer = Writer(dsn)
        self._reader = Reader(dsn, size_max=2)
        self._ledger = PostgresLedger(self._writer, self._reader)
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        await self._reader.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._writer.close()
        await self._reader.close()

    async def append_poison(self, execution_id: int) -> None:
        """A command without anything that says what is to be done."""
        first = (await self._ledger.read_execution(execution_id, limit=1))[0]
        event = Event(
            execution_id=execution_id,
            event_id=first.event_id + (1 << 40) + next(self._numbers),
            tenant_id=first.tenant_id,
            organization_id=first.organization_id,
            event_type=kinds.COMMAND_ISSUED,
            event_time=SystemClock().now(),
            producer=first.producer,
            transition_key=kinds.issued_key("nowhere#1"),
            correlation_id=first.correlation_id,
            command_id="nowhere#1",
            meta={},
        )
        await self._ledger.append([Offer(shard_id=first.shard_id, events=[seal(event)])])
