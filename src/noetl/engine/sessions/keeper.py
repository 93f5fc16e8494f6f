"""The keeper of worker sessions: who registered, who is alive, and what happens to the work of those who are not.

A session that misses three heartbeats is dead: it gets nothing more, its commands go back at once, and whatever it
still says is refused.  Only this process' monotonic clock is asked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from noetl.core.errors import (
    AppendOverloaded,
    ExecutionClosed,
    ExecutionUnknown,
    LeaseLost,
    LedgerUnavailable,
    NoetlError,
    Terminal,
)
from noetl.core.limits import SESSIONS_MAX
from noetl.engine.control.facts import LETS_GO
from noetl.engine.control.sessions import Late, Sessions
from noetl.engine.sessions.remote import Profile, RemoteSession, row_of
from noetl.engine.sharing.counts import ControlCounts
from noetl.points import point
from noetl.ports.clock import Clock, IdSource
from noetl.ports.queue import Queue
from noetl.ports.serving.roster import SessionRow
from noetl.ports.session import ControlPlane, Fact

HEARTBEATS_MISSED_MAX = 3
RELEASE_AGAIN_SECONDS = 0.25
_NOT_YOURS = (LeaseLost, ExecutionClosed, ExecutionUnknown)
log = logging.getLogger("noetl.keeper")


class Told(NamedTuple):
    """A fact with the worker's own name for it: told twice it is recorded, and answered, once."""

    fact_id: str | None
    fact: Fact


class SessionBooks(Protocol):
    """Where the sessions of this server are known to others."""

    async def add(self, row: SessionRow) -> None: ...

    async def end(self, session_id: int, *, worker_id: str | None = None) -> int: ...


class Keeper:
    """`run` belongs to the caller's task group; every other method may be called from any task of the loop."""

    def __init__(
        self,
        *,
        control: ControlPlane,
        sessions: Sessions,
        queue: Queue,
        ids: IdSource,
        clock: Clock,
        lease_seconds: float,
        books: SessionBooks | None = None,
    ) -> None:
        """`books` are where sessions are known to other servers; without them there are none."""
        self._books = books
        self.counts = ControlCounts()
        """Where late facts are counted; a server gives its own."""
        self._unknown: list[RemoteSession] = []
        self._replaced: list[tuple[int, str]] = []
        self._control = control
        self._sessions = sessions
        self._queue = queue
        self._ids = ids
        self._clock = clock
        self.lease_seconds = lease_seconds
        self._remote: dict[int, RemoteSession] = {}
        self._keys: dict[str, int] = {}
        self._gone: set[int] = set()
        self._late: list[Late] = []
        self._wake = asyncio.Event()
        sessions.on_late = self._wake.set

    @property
    def heartbeat_seconds(self) -> float:
        return self.lease_seconds / HEARTBEATS_MISSED_MAX

    @property
    def session_count(self) -> int:
        """Those that can be given work: the others are in no book yet."""
        return sum(session.introduced.is_set() for session in self._remote.values())

    # --- sessions --------------------------------------------------------------------------------------------

    def register(self, profile: Profile, *, key: str | None = None) -> RemoteSession:
        """A new session, or the living one that was registered with the same key."""
        known = self._remote.get(self._keys.get(key, 0)) if key is not None else None
        if known is not None:
            return known
        if len(self._remote) >= SESSIONS_MAX:
            raise AppendOverloaded(f"{SESSIONS_MAX} worker sessions are open: try again later")
        session = RemoteSession(self._ids.next_id(), profile, now=self._clock.monotonic())
        self._remote[session.session_id] = session
        if key is not None:
            self._keys[key] = session.session_id
        if self._books is None:
            self._connect(session)
        else:
            self._unknown.append(session)
        point("server.registered")
        self._wake.set()
        return session

    def replace(self, session_id: int, worker_id: str) -> None:
        """A worker names the session that it had, perhaps with a server that died: its work goes back at once."""
        if session_id in self._remote:
            self.end(session_id, "the worker registered again")
        elif self._books is not None:
            self._replaced.append((session_id, worker_id))
            self._wake.set()

    def _connect(self, session: RemoteSession) -> None:
        profile = session.profile
        self._sessions.connect(
            session, kinds=profile.kinds, pool=profile.pool, worker_id=profile.worker_id, place=profile.place
        )
        if session.is_draining:
            self._sessions.disconnect(session.session_id, drain=True)
        session.introduced.set()

    def find(self, session_id: int) -> RemoteSession:
        session = self._remote.get(session_id)
        if session is None:
            raise LeaseLost(f"session {session_id} has ended or never was: register again")
        return session

    def teller(self, session_id: int, *, facts: int) -> RemoteSession:
        """The session that tells so many facts.  Whatever one tells that has ended comes too late."""
        try:
            return self.find(session_id)
        except LeaseLost as error:
            self.count_late(error, facts)
            raise

    def beat(self, session_id: int, *, slots: int | None = None) -> RemoteSession:
        """The session is alive; `slots` is how many commands it wants now, of those that it registered."""
        session = self.find(session_id)
        session.seen_at = self._clock.monotonic()
        if slots is not None:
            self._sessions.pools.resize(session_id, min(slots, session.profile.slots))
        return session

    def drain(self, session_id: int) -> RemoteSession:
        """Give nothing more; what was not sent yet goes back, what was may be ended under the same lease."""
        session = self.find(session_id)
        session.is_draining = True
        self._sessions.disconnect(session_id, drain=True)
        for message in session.hand_back():
            self._sessions.finish(session_id, message.execution_id, message.command_id, message.attempt)
            self._late.append(Late(session_id, message.execution_id, message.command_id))
        self._wake.set()
        return session

    def end(self, session_id: int, reason: str = "the session was ended") -> None:
        """The session is over; everything it holds goes back."""
        session = self._remote.pop(session_id, None)
        if session is None:
            return
        self._keys = {key: known for key, known in self._keys.items() if known != session_id}
        self._sessions.disconnect(session_id)
        session.end(reason)
        self._gone.add(session_id)
        self._wake.set()

    # --- facts -----------------------------------------------------------------------------------------------

    async def report(self, session: RemoteSession, told: Sequence[Told]) -> list[NoetlError | None]:
        """Record facts; they reach the decider together and each has its own answer."""
        if len(told) == 1:
            answers = [await self._one(session, told[0])]
        else:
            answers = await asyncio.gather(*(self._one(session, one) for one in told))
        point("server.recorded")
        return answers

    async def _one(self, session: RemoteSession, told: Told) -> NoetlError | None:
        if told.fact_id is None:
            return await self._outcome(session, told.fact)
        known = session.answers.find(told.fact_id)
        if known is not None:
            return await asyncio.shield(known)
        answer = session.answers.expect(told.fact_id)
        try:
            outcome = await self._outcome(session, told.fact)
            answer.set_result(outcome)
            is_final = outcome is None or isinstance(outcome, Terminal)
        finally:
            if not answer.done() or not is_final:  # tried again, it may be recorded
                session.answers.forget(told.fact_id)
                answer.cancel()
        return outcome

    async def _outcome(self, session: RemoteSession, fact: Fact) -> NoetlError | None:
        outcome: NoetlError | None = self._lost(session, fact)
        if outcome is not None:
            self.count_late(outcome)
        else:
            try:
                await self._control.report(session.session_id, fact)
            except NoetlError as error:
                outcome = error
        # Refused for what it says, the command is still this session's: it must say something else about it.
        if isinstance(outcome, _NOT_YOURS) or (outcome is None and fact.event_type in LETS_GO):
            self._sessions.finish(session.session_id, fact.execution_id, fact.command_id, fact.attempt)
            session.let_go(fact.execution_id, fact.command_id, fact.attempt)
        return outcome

    def _lost(self, session: RemoteSession, fact: Fact) -> LeaseLost | None:
        """Why a session may not say this any more."""
        try:
            session.message(fact.execution_id, fact.command_id, fact.attempt)
        except LeaseLost as error:
            return error
        if session.session_id not in self._remote:
            return LeaseLost(f"session {session.session_id} has ended: its facts come too late")
        return None

    def count_late(self, error: NoetlError, facts: int = 1) -> None:
        """Facts are refused before anybody decides about them; only those of a lost lease are late."""
        if isinstance(error, LeaseLost):
            self.counts.refuse_facts(error, facts)

    # --- the watch -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """End the sessions that are silent, and give back what is nobody's any more."""
        while True:
            is_behind = self._gone or self._late or self._unknown or self._replaced
            pause = RELEASE_AGAIN_SECONDS if is_behind else self._until_next()
            begun = self._clock.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()
            if pause is not None:
                self._forgive(self._clock.monotonic() - begun - pause)
            self._end_silent()
            await self._release()

    def _until_next(self) -> float | None:
        """Seconds until the first session may be dead; None while there is none."""
        if not self._remote:
            return None
        first = min(session.seen_at for session in self._remote.values()) + self.lease_seconds
        return max(first - self._clock.monotonic(), 0.0)

    def _forgive(self, stood_still: float) -> None:
        """When this process itself stood still, the silence was ours: the heartbeats wait to be read.  A new lease."""
        if stood_still > self.heartbeat_seconds:
            for session in self._remote.values():
                session.seen_at = self._clock.monotonic()

    def _end_silent(self) -> None:
        now = self._clock.monotonic()
        # The same sum as in `_until_next`: rounded another way, the watch would wake and find nobody.
        for session in [one for one in self._remote.values() if one.seen_at + self.lease_seconds <= now]:
            log.warning(
                "a worker session is dead",
                extra={"event": "session.dead", "session_id": session.session_id, "reason": session.profile.worker_id},
            )
            self.end(session.session_id, "no heartbeat came: the session is dead")

    async def _release(self) -> None:
        """Give back rows.  By session and by command, never by who is left: a session that connects meanwhile must not
        lose what it was just given."""
        self._late += self._sessions.late
        self._sessions.late.clear()
        try:
            while self._late:
                late = self._late[0]
                await self._queue.release(late.session_id, commands=[(late.execution_id, late.command_id)])
                self._late.pop(0)
                self._sessions.pools.expect()
            for session_id in sorted(self._gone):
                await (self._queue.release(session_id) if self._books is None else self._books.end(session_id))
                point("server.released")
                self._gone.discard(session_id)
                self._sessions.pools.expect()
            if self._books is not None:
                await self._introduce(self._books)
        except LedgerUnavailable as error:
            log.warning("rows not given back yet", extra={"event": "ledger.unavailable", "reason": str(error)})

    async def _introduce(self, books: SessionBooks) -> None:
        """A session gets something when others can know whether it lives; what its worker had before goes back."""
        while self._replaced:
            session_id, worker_id = self._replaced[0]
            await books.end(session_id, worker_id=worker_id)
            self._replaced.pop(0)
            self._sessions.pools.expect()
        while self._unknown:
            session = self._unknown[0]
            if session.session_id in self._remote:
                await books.add(row_of(session))
            self._unknown.pop(0)
            if session.session_id in self._remote:
                self._connect(session)
