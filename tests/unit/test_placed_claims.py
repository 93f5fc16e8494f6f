"""A row of the queue whose place is older than what the state knows: it waits no longer than any other, and hides
nobody."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from noetl.adapters.memory.clock import VirtualClock, VirtualIds
from noetl.core.locator.locality import Distance
from noetl.engine.control.batch import Batch
from noetl.engine.control.facts import claim_draft
from noetl.engine.control.inputs import ClaimInput, Turn
from noetl.engine.control.sessions import Sessions
from noetl.engine.control.states import Held
from noetl.engine.placing.nearness import PATIENCE_SECONDS
from noetl.ports.ledger import QueuedCommand, ShardHead
from tests.support.cursors import Draining, draining
from tests.unit.test_nearness import FAR, KINDS, A, of, play, row, wish

FRAME = "drain#1/1"


@dataclass(slots=True)
class Server:
    """A far worker with a free slot and a near one that is busy for hours; `writes` is whether the server may write
    the row anew: one that does not own the shard may not."""

    writes: bool
    run: Draining = field(default_factory=draining)
    sessions: Sessions = field(default_factory=lambda: of(FAR, A, slots=1, preference=Distance.NODE))

    def begin(self) -> QueuedCommand:
        """Claimed on A, its rows recorded, its session dead: the row is as it was queued, before anything was known."""
        queued = self._row(self.run.state.commands[FRAME].attempt)
        assert queued.locality is None
        command = self.run.state.commands[FRAME]
        where = {"locality": A.to_json(), "worker_locator": "noetl://tenant/t/org/o/worker/w"}
        self.run.append(claim_draft(command, 1, 2, where))
        self.run.claim(FRAME, 3)
        assert self.sessions.reserve(KINDS, wish=wish(A)) == 2
        return replace(queued, attempt=1)

    def _turn(self) -> Turn:
        held = self._held
        heads = {0: ShardHead(0, held.position + 1, held.position, 0)}
        batch = Batch(ids=VirtualIds(VirtualClock(), node=1), producer="test", heads=heads)
        return Turn(batch=batch, playbook=self.run.playbook, sessions=self.sessions, now="2026-01-01T00:00:00Z")

    @property
    def _held(self) -> Held:
        return Held(self.run.state, 0, 100)

    def _row(self, attempt: int) -> QueuedCommand:
        turn = self._turn()
        command = self.run.state.commands[FRAME]
        ClaimInput(execution_id=77, row=row(FRAME, None, pool="elsewhere", attempt=attempt)).apply(turn, self._held)
        (queued,) = turn.batch.queue
        assert queued.attempt == command.attempt
        return queued

    def look(self, rows: list[QueuedCommand]) -> list[str]:
        """One round of the dispatcher; returns what was claimed and changes the rows."""
        free = self.sessions.pools.free_in("default")
        ahead = self.sessions.nearness.ahead("default")
        claimed = []
        for chosen in self.sessions.nearness.chosen("default", rows[: free + ahead], free):
            if chosen.command_id != FRAME:
                claimed.append(chosen.command_id)
                continue
            turn = self._turn()
            ClaimInput(execution_id=77, row=chosen).apply(turn, self._held)
            claimed += [one.command_id for one in turn.batch.claims]
            for queued in turn.batch.queue if self.writes else ():
                rows[rows.index(chosen)] = queued
        return claimed


def test_a_row_that_is_older_than_its_wish_lets_others_pass_and_goes_far_in_time() -> None:
    async def story() -> None:
        server = Server(writes=True)
        rows = [server.begin(), row("other", None)]
        found: list[str] = []
        begun = asyncio.get_running_loop().time()
        for _ in range(3):
            found += server.look(rows)
        assert found[0] == "other", "nobody waits behind it"
        del rows[1]
        while FRAME not in found and asyncio.get_running_loop().time() < begun + 60:
            await asyncio.sleep(0.05)
            found = server.look(rows)
        assert found == [FRAME]
        assert PATIENCE_SECONDS <= asyncio.get_running_loop().time() - begun <= PATIENCE_SECONDS + 0.2

    play(story())


def test_a_server_that_may_not_write_the_row_takes_it_in_time_too() -> None:
    async def story() -> None:
        server = Server(writes=False)
        rows, found = [server.begin(), row("other", None)], [""]
        begun = asyncio.get_running_loop().time()
        while FRAME not in found and asyncio.get_running_loop().time() < begun + 60:
            await asyncio.sleep(0.05)
            found = server.look(rows)
        assert found == [FRAME]
        assert asyncio.get_running_loop().time() - begun <= PATIENCE_SECONDS + 0.2

    play(story())


def test_a_row_that_is_written_anew_keeps_the_attempt_that_it_had() -> None:
    """It may be ahead of the ledger: the claim comes late, and a row behind it would never be claimed."""

    async def story() -> None:
        server = Server(writes=True)
        rows = [replace(server.begin(), attempt=2)]
        server.look(rows)
        assert rows[0].locality is not None
        assert rows[0].attempt == 2

    play(story())
