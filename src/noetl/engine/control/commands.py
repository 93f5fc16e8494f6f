"""Giving waiting commands to free slots, and putting back what dead sessions held."""

from __future__ import annotations

import asyncio

from noetl.core.errors import LedgerUnavailable, NoetlError
from noetl.core.event import Event
from noetl.engine.control.decider import Decider
from noetl.engine.control.inputs import ClaimInput, RestoreInput
from noetl.engine.control.sessions import Sessions
from noetl.ports.ledger import Ledger
from noetl.ports.queue import Executions, Queue

CLAIM_ROWS_MAX = 64
IDLE_SECONDS = 0.25
RESTORE_AT_ONCE = 64


class Dispatcher:
    def __init__(
        self, *, decider: Decider, sessions: Sessions, queue: Queue, executions: Executions, ledger: Ledger
    ) -> None:
        self._decider = decider
        self._sessions = sessions
        self._queue = queue
        self._executions = executions
        self._ledger = ledger

    async def run(self) -> None:
        """Claim waiting commands while slots are free.  Woken by the decider; idle it does nothing."""
        while True:
            await self._decider.has_backlog.wait()
            try:
                claimed = await self._claim_round()
            except LedgerUnavailable:
                claimed = 0
            if not claimed:
                await asyncio.sleep(IDLE_SECONDS)

    async def _claim_round(self) -> int:
        free = min(self._sessions.free_slots, CLAIM_ROWS_MAX)
        if free <= 0:
            return 0
        rows = await self._queue.waiting(pool="default", limit=free)
        if len(rows) < free:
            self._decider.has_backlog.clear()
        claims = [self._decider.tell(ClaimInput(execution_id=row.execution_id, row=row)) for row in rows]
        outcomes = await asyncio.gather(*claims, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, NoetlError):
                raise outcome
        return len(rows)

    async def restore(self) -> list[int]:
        """After a start: every open execution gets back its queue rows and timers.  Returns their ids."""
        await self._queue.release_all(except_sessions=self._sessions.ids)
        undecided: dict[int, list[Event]] = {}
        for head in await self._ledger.heads():
            if head.decided_position < head.next_position - 1:
                for event in await self._ledger.read_shard(head.shard_id, after_position=head.decided_position):
                    undecided.setdefault(event.execution_id, []).append(event)
        open_ids = await self._executions.open_ids()
        for start in range(0, len(open_ids), RESTORE_AT_ONCE):
            part = open_ids[start : start + RESTORE_AT_ONCE]
            await asyncio.gather(
                *(
                    self._decider.tell(
                        RestoreInput(execution_id=execution_id, undecided=tuple(undecided.get(execution_id, ())))
                    )
                    for execution_id in part
                )
            )
        self._decider.has_backlog.set()
        return open_ids
