"""Giving waiting commands to free slots, and putting back what dead sessions held."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from noetl.core.errors import LedgerUnavailable, NoetlError, Terminal
from noetl.core.event import Event
from noetl.engine.control.decider import Decider
from noetl.engine.control.inputs import ClaimInput, RestoreInput
from noetl.engine.control.sessions import Sessions, free_kinds
from noetl.engine.control.states import events_behind
from noetl.engine.sharing.neighbours import Neighbours
from noetl.engine.sharing.waiting import patiently
from noetl.points import point
from noetl.ports.ledger import Ledger
from noetl.ports.queue import Executions, Queue

CLAIM_ROWS_MAX = 64
# Those of locked shards stay in the queue and must not hide the others.
LOCKED_ROWS_MAX = 1_000
REFUSED_MAX = 1_000
IDLE_SECONDS = 0.25
OTHERS_SECONDS = 0.05
RESTORE_AT_ONCE = 64
log = logging.getLogger("noetl.dispatcher")


class Dispatcher:
    def __init__(
        self,
        *,
        decider: Decider,
        sessions: Sessions,
        queue: Queue,
        executions: Executions,
        ledger: Ledger,
        neighbours: Neighbours | None = None,
    ) -> None:
        self._decider = decider
        self._sessions = sessions
        self._queue = queue
        self._executions = executions
        self._ledger = ledger
        self._neighbours = neighbours
        # Rows of executions that cannot be read: they stay, and must not stand before the others.
        self._refused: set[tuple[int, str]] = set()
        # The pools in which commands may wait that no free slot can run.
        self._left_behind: set[str] = set()
        # By pool: the rows that were behind the ledger at the last look.
        self._behind: dict[str, set[tuple[int, str]]] = {}
        sessions.on_free = self.look_again

    async def run(self) -> None:
        """Claim waiting commands while slots are free.  Woken by the decider; idle it does nothing."""
        pools = self._sessions.pools
        while True:
            found = pools.claimable()
            if not found:
                pools.changed.clear()
                await pools.changed.wait()
                continue
            # Every pool in every round: none waits for another's commands.
            stuck = [await self._is_stuck(pool) for pool in found]
            if all(stuck):
                await asyncio.sleep(IDLE_SECONDS)

    async def look_for_others(self) -> None:
        """With other servers on the ledger: what they queue is looked for, nobody tells."""
        assert self._neighbours is not None
        while True:
            await self._neighbours.company.wait()
            self._sessions.pools.look_for_others()
            await asyncio.sleep(OTHERS_SECONDS)

    async def _is_stuck(self, pool: str) -> bool:
        try:
            return await self._claim_round(pool)
        except LedgerUnavailable:
            return True

    def look_again(self, pool: str) -> None:
        """A slot became free: perhaps one that can run what the others could not."""
        if pool in self._left_behind:
            self._sessions.pools.expect(pool)

    async def _claim_round(self, pool: str) -> bool:
        """Claim for the free slots of a pool; returns whether commands were found of which none could be claimed."""
        pools, loners, nearness = self._sessions.pools, self._sessions.loners, self._sessions.nearness
        free = min(pools.free_in(pool), CLAIM_ROWS_MAX)
        if free <= 0:
            return True
        # Cleared before the look: a command that is queued meanwhile sets it again.
        pools.looked_at(pool)
        locked = {shard_id for aside in self._decider.set_aside for shard_id in aside.shards}
        kinds = free_kinds(self._sessions, pool)
        # Until the look says otherwise: a slot that becomes free meanwhile must not be overlooked.
        self._note_left(pool, is_left=kinds is not None)
        ahead = len(self._refused) + len(loners.waiting(pool)) + nearness.ahead(pool)
        try:
            found = await self._queue.waiting(
                pool=pool,
                limit=free + ahead + (LOCKED_ROWS_MAX if locked else 0),
                kinds=None if kinds is None else sorted(kinds),
            )
            if kinds is not None:
                left = await self._queue.waiting(pool=pool, limit=len(found) + 1)
                self._note_left(pool, is_left=len(left) > len(found))
        except LedgerUnavailable:
            pools.expect(pool)
            raise
        rows = [
            row
            for row in found
            if (row.execution_id, row.command_id) not in self._refused and row.shard_id not in locked
        ]
        # What waits to be alone stands before nobody.
        by_key = {(row.execution_id, row.command_id): row for row in rows}
        first, alone = loners.first_of(pool, by_key), loners.waiting(pool)
        rows = nearness.chosen(pool, [row for key, row in by_key.items() if key not in alone], free)
        if nearness.is_holding_back(pool):
            # A slot that becomes free may be one that is near enough.
            self._note_left(pool, is_left=True)
        rows += [by_key[first]] if first is not None else []
        if not rows:
            return False
        # There may be more, and a claim may find that its slot was given away: look again.
        pools.expect(pool)
        before = self._sessions.reservations
        is_sure = self._neighbours is None or self._neighbours.is_alone
        claims = [ClaimInput(execution_id=row.execution_id, row=row, is_sure=is_sure) for row in rows]
        outcomes = await _told(self._decider.tell(claim) for claim in claims)
        await self._claim_doubted(pool, [claim for claim in claims if claim.doubted])
        self._refused.update(
            (row.execution_id, row.command_id)
            for row, outcome in zip(rows, outcomes, strict=True)
            if isinstance(outcome, Terminal)
        )
        if len(self._refused) > REFUSED_MAX:
            self._refused.clear()  # asked again, and refused again if nobody has mended them
        return self._sessions.reservations == before

    async def _claim_doubted(self, pool: str, claims: Sequence[ClaimInput]) -> None:
        """Claims that the ledger already knows: of a session that is gone, or of one that took the row since we looked.
        The queue tells which, for a row is never taken after its claim is recorded.  One that is behind the ledger in
        two rounds was not taken meanwhile: whoever the ledger names has no row, and was told to stop."""
        seen = self._behind.get(pool, set())
        behind = self._behind[pool] = {_key(claim) for claim in claims if claim.row.attempt < claim.doubted[-1]}
        claims = [claim for claim in claims if _key(claim) in seen or _key(claim) not in behind]
        for execution_id in sorted({claim.execution_id for claim in claims}):
            free = await self._queue.free(execution_id)
            again = [claim for claim in claims if claim.execution_id == execution_id]
            sure = [one for one in again if free.get(one.row.command_id) == one.row.attempt]
            await _told(
                self._decider.tell(
                    replace(one, row=replace(one.row, attempt=one.doubted[-1]), is_sure=True, doubted=[])
                )
                for one in sure
            )

    async def give_back(self, session_id: int, commands: Sequence[tuple[int, str]]) -> None:
        """Rows that a session has taken and knows nothing of."""
        await self._queue.release(session_id, commands=commands)
        self._sessions.pools.expect()

    def _note_left(self, pool: str, *, is_left: bool) -> None:
        (self._left_behind.add if is_left else self._left_behind.discard)(pool)

    async def restore(self, shards: Collection[int] | None = None) -> list[int]:
        """Every open execution of these shards, or of all, gets back its queue rows and timers.  Returns their ids.

        What others left undecided in shards that were taken over is decided before; after a start without neighbours
        that is done here."""
        away: Mapping[int, frozenset[tuple[str, int]]] = {}
        undecided: dict[int, list[Event]] = {}
        if self._neighbours is not None and shards is not None:
            away = await patiently(self._neighbours.elsewhere, shards)
            open_ids = await patiently(self._executions.open_ids, shards=shards)
        else:
            await self._queue.release_all(except_sessions=list(self._sessions.connected))
            for head in await self._ledger.heads():
                for event in await events_behind(self._ledger, head, head.decided_position):
                    undecided.setdefault(event.execution_id, []).append(event)
            open_ids = await self._executions.open_ids()
        # Those with undecided events first: the commit of any other would move the mark behind which they are found.
        open_ids = sorted(open_ids, key=lambda e: (e not in undecided, e))
        for start in range(0, len(open_ids), RESTORE_AT_ONCE):
            part = open_ids[start : start + RESTORE_AT_ONCE]
            outcomes = await _told(
                self._decider.tell(
                    RestoreInput(
                        execution_id=execution_id,
                        undecided=tuple(undecided.get(execution_id, ())),
                        elsewhere=away.get(execution_id, frozenset()),
                    )
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
        self._sessions.pools.expect()
        point("server.restored")
        return open_ids


def _key(claim: ClaimInput) -> tuple[int, str]:
    return claim.execution_id, claim.row.command_id


async def _told(inputs: Iterable[Coroutine[Any, Any, None]]) -> list[NoetlError | None]:
    """What became of each input: None, or why it was refused."""
    outcomes = await asyncio.gather(*inputs, return_exceptions=True)
    refused: list[NoetlError | None] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, NoetlError):
            raise outcome
        refused.append(outcome)
    return refused
