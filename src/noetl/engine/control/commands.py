"""Giving waiting commands to free slots, and putting back what dead sessions held."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from noetl.core.errors import LedgerUnavailable, NoetlError, Terminal
from noetl.core.event import Event
from noetl.engine.control.decider import Decider
from noetl.engine.control.inputs import ClaimInput, RestoreInput
from noetl.engine.control.sessions import POOL_DEFAULT, Sessions, free_kinds
from noetl.engine.control.states import undecided_events
from noetl.ports.ledger import Ledger
from noetl.ports.queue import Executions, Queue

CLAIM_ROWS_MAX = 64
IDLE_SECONDS = 0.25
RESTORE_AT_ONCE = 64
log = logging.getLogger("noetl.dispatcher")


class Dispatcher:
    def __init__(
        self, *, decider: Decider, sessions: Sessions, queue: Queue, executions: Executions, ledger: Ledger
    ) -> None:
        self._decider = decider
        self._sessions = sessions
        self._queue = queue
        self._executions = executions
        self._ledger = ledger
        # Rows of executions that cannot be read: they stay, and must not stand before the others.
        self._refused: set[tuple[int, str]] = set()
        # Whether commands may wait that no free slot can run.
        self._is_left_behind = False
        sessions.on_free = self.look_again

    async def run(self) -> None:
        """Claim waiting commands while slots are free.  Woken by the decider; idle it does nothing."""
        while True:
            await self._decider.has_backlog.wait()
            await self._sessions.has_free.wait()
            try:
                is_stuck = await self._claim_round()
            except LedgerUnavailable:
                is_stuck = True
            if is_stuck:
                await asyncio.sleep(IDLE_SECONDS)

    def look_again(self) -> None:
        """A slot became free: perhaps one that can run what the others could not."""
        if self._is_left_behind:
            self._decider.has_backlog.set()

    async def _claim_round(self) -> bool:
        """Claim for the free slots; returns whether commands were found of which none could be claimed."""
        free = min(self._sessions.free_slots, CLAIM_ROWS_MAX)
        if free <= 0:
            return True
        # Cleared before the look: a command that is queued meanwhile sets it again.
        has_backlog = self._decider.has_backlog
        has_backlog.clear()
        kinds = free_kinds(self._sessions)
        # Until the look says otherwise: a slot that becomes free meanwhile must not be overlooked.
        self._is_left_behind = kinds is not None
        try:
            found = await self._queue.waiting(
                pool=POOL_DEFAULT,
                limit=free + len(self._refused),
                kinds=None if kinds is None else sorted(kinds),
            )
            if kinds is not None:
                left = await self._queue.waiting(pool=POOL_DEFAULT, limit=len(found) + 1)
                self._is_left_behind = len(left) > len(found)
        except LedgerUnavailable:
            has_backlog.set()
            raise
        rows = [row for row in found if (row.execution_id, row.command_id) not in self._refused][:free]
        if not rows:
            return False
        # There may be more, and a claim may find that its slot was given away: look again.
        has_backlog.set()
        before = self._sessions.reservations
        outcomes = await _told(self._decider.tell(ClaimInput(execution_id=row.execution_id, row=row)) for row in rows)
        self._refused.update(
            (row.execution_id, row.command_id)
            for row, outcome in zip(rows, outcomes, strict=True)
            if isinstance(outcome, Terminal)
        )
        return self._sessions.reservations == before

    async def restore(self) -> list[int]:
        """After a start: every open execution gets back its queue rows and timers.  Returns their ids."""
        await self._queue.release_all(except_sessions=list(self._sessions.connected))
        undecided: dict[int, list[Event]] = {}
        for head in await self._ledger.heads():
            for event in await undecided_events(self._ledger, head):
                undecided.setdefault(event.execution_id, []).append(event)
        # Those with undecided events first: the commit of any other would move the mark behind which they are found.
        open_ids = sorted(await self._executions.open_ids(), key=lambda e: (e not in undecided, e))
        for start in range(0, len(open_ids), RESTORE_AT_ONCE):
            part = open_ids[start : start + RESTORE_AT_ONCE]
            outcomes = await _told(
                self._decider.tell(
                    RestoreInput(execution_id=execution_id, undecided=tuple(undecided.get(execution_id, ())))
                )
                for execution_id in part
            )
            for execution_id, outcome in zip(part, outcomes, strict=True):
                if outcome is not None:
                    # It stays as it is for whoever repairs it; the others go on.
                    log.error(
                        "execution not restored",
                        extra={"event": "restore.failed", "execution_id": execution_id, "reason": str(outcome)},
                    )
        self._decider.has_backlog.set()
        return open_ids


async def _told(inputs: Iterable[Coroutine[Any, Any, None]]) -> list[NoetlError | None]:
    """What became of each input: None, or why it was refused."""
    outcomes = await asyncio.gather(*inputs, return_exceptions=True)
    refused: list[NoetlError | None] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, NoetlError):
            raise outcome
        refused.append(outcome)
    return refused
