"""The desk of a server: what its sessions say about shared limits goes to the books together, one turn for each limit
and never one for each call."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from noetl.core.errors import NoetlError
from noetl.core.limits import LIMIT_NAMES_COUNTED_MAX, PERMIT_TURNS_AT_ONCE_MAX
from noetl.core.permits.dealing import Ask, Dealt
from noetl.core.permits.rates import Allowance
from noetl.ports.clock import Clock
from noetl.ports.data.counters import Sample
from noetl.ports.serving.permits import LimitKey, PermitBooks, PermitGrant, PermitUse

TURN_SECONDS = 0.02
"""Between two turns of a limit: what comes meanwhile goes together."""
RATE_TURN_SECONDS = 0.05
"""The same where a rate counts: permits that become due meanwhile are dealt together."""
POLL_SHARED_SECONDS = 0.05
"""While somebody waits and sessions of other servers use the limit: what they give back nobody tells us."""
POLL_SECONDS = 0.4
"""While somebody waits: sessions die, and who waits must say so (see FRESH_SECONDS)."""
HELD_SECONDS = 2.0
"""While permits are held and nobody waits: the books may be gone, and whoever holds a permit for long has no word to
say."""
KEEP_SECONDS = 0.25
"""For so long a session may go on with the permits that it has; whoever comes meanwhile waits no longer than that."""
AGAIN_SECONDS = 0.5
UNUSED_SECONDS = 3600.0
"""A limit that nobody uses any more is forgotten after so long."""
_OTHERS = "(others)"
log = logging.getLogger("noetl.permits")

UseKey = tuple[LimitKey, int]


@dataclass(slots=True)
class _Told:
    """The last word of a session, and what it was granted."""

    turn: int = -1
    uses: dict[UseKey, PermitUse] = field(default_factory=dict)
    granted: dict[UseKey, int] = field(default_factory=dict)
    alone: set[UseKey] = field(default_factory=set)
    since: dict[UseKey, float] = field(default_factory=dict)
    """When somebody began to wait who still does."""
    news: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Limit:
    """A limit that sessions of this server use.  `due_at` None: nothing to do until somebody says something."""

    due_at: float | None = None
    not_before: float = float("-inf")
    """Before that a turn would bring nobody anything."""
    allowance: Allowance = field(default_factory=Allowance)
    is_turning: bool = False


class PermitDesk:
    """`run` belongs to the caller's task group; every other method may be called from any task of the loop."""

    def __init__(self, books: PermitBooks, clock: Clock, *, is_alive: Callable[[int], bool]) -> None:
        """`is_alive` says whether a session is one of this server."""
        self._books = books
        self._clock = clock
        self._is_alive = is_alive
        self._sessions: dict[int, _Told] = {}
        self._limits: dict[LimitKey, _Limit] = {}
        self._changed = asyncio.Event()
        self._granted: Counter[str] = Counter()
        self._used = asyncio.Event()

    # --- what sessions say -----------------------------------------------------------------------------------

    async def ask(
        self, session_id: int, turn: int, uses: Sequence[PermitUse], *, wait_seconds: float
    ) -> list[PermitGrant]:
        """What a session uses and wants; answered when there is news for it, or a later word of it has come."""
        told = self._sessions.setdefault(session_id, _Told())
        if turn > told.turn:
            self._hear(told, turn, {(use.key, use.execution_id): use for use in uses})
        if wait_seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    while told.turn == turn and not self._has_news(told):
                        await told.news.wait()
        return [
            PermitGrant(*key, granted, self._limits[key[0]].allowance, KEEP_SECONDS if key in told.alone else 0.0)
            for key, granted in told.granted.items()
            if key in told.uses and key[0] in self._limits
        ]

    def _hear(self, told: _Told, turn: int, uses: dict[UseKey, PermitUse]) -> None:
        touched = {key for key, _ in told.uses.keys() ^ uses.keys()}
        # That a call has begun with what it was granted is no news for the books.
        touched |= {
            key[0] for key in uses.keys() & told.uses if _counts(uses[key], told) != _counts(told.uses[key], told)
        }
        told.turn, told.uses = turn, uses
        told.granted = {key: count for key, count in told.granted.items() if key in uses}
        told.alone &= uses.keys()
        now = self._clock.monotonic()
        told.since = {key: told.since.get(key, now) for key, use in uses.items() if use.waiting}
        self._wake(told)
        for key in touched:
            self._expect(key, now)

    @staticmethod
    def _has_news(told: _Told) -> bool:
        uses = told.uses
        return any(key in uses and count > uses[key].returned + uses[key].in_use for key, count in told.granted.items())

    @staticmethod
    def _wake(told: _Told) -> None:
        """Whoever waits looks again; whoever comes later waits anew."""
        told.news.set()
        told.news = asyncio.Event()

    def _expect(self, key: LimitKey, at: float) -> None:
        """A turn at that time, if none is expected before."""
        limit = self._limits.setdefault(key, _Limit())
        at = max(at, limit.not_before)
        if limit.due_at is None or at < limit.due_at:
            limit.due_at = at
            self._changed.set()

    def end(self, session_id: int) -> None:
        """The session is over; the books see by themselves that its permits are free."""
        told = self._sessions.pop(session_id, None)
        if told is not None:
            told.turn += 1
            self._wake(told)
            for key in {key for key, _ in told.uses}:
                self._expect(key, self._clock.monotonic())

    # --- turns -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        room = PERMIT_TURNS_AT_ONCE_MAX
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweeps())
            while True:
                self._changed.clear()
                now = self._clock.monotonic()
                free = ((key, limit) for key, limit in self._limits.items() if not limit.is_turning)
                due = sorted((limit.due_at, key) for key, limit in free if limit.due_at is not None)
                busy = sum(limit.is_turning for limit in self._limits.values())
                begun = [key for at, key in due if at <= now][: room - busy]
                for key in begun:
                    self._limits[key].is_turning = True
                    group.create_task(self._turns(key, self._limits[key]))
                if begun:
                    continue
                await self._wait_for(None if not due or busy == room else due[0][0], now)

    async def _sweeps(self) -> None:
        """Names come and go: some time after the last turn here, whatever nobody used since is forgotten."""
        while True:
            await self._used.wait()
            self._used.clear()
            await asyncio.sleep(UNUSED_SECONDS)
            try:
                while await self._books.sweep(unused_seconds=UNUSED_SECONDS):
                    pass
            except NoetlError as error:
                self._used.set()
                log.warning("no permits now", extra={"event": "permits.unavailable", "reason": str(error)})

    async def _wait_for(self, at: float | None, now: float) -> None:
        """Until that time, or until something is different."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if at is None else max(at - now, 0.0)):
                await self._changed.wait()

    async def _turns(self, key: LimitKey, limit: _Limit) -> None:
        """One turn beside those of other limits."""
        try:
            await self._turn(key, limit)
            self._used.set()
        except NoetlError as error:
            log.warning("no permits now", extra={"event": "permits.unavailable", "reason": str(error)})
            self._expect(key, self._clock.monotonic() + AGAIN_SECONDS)
        finally:
            limit.is_turning = False
            self._changed.set()

    async def _turn(self, key: LimitKey, limit: _Limit) -> None:
        now = self._clock.monotonic()
        for session_id in [one for one in self._sessions if not self._is_alive(one)]:
            self.end(session_id)
        asks = [
            _ask(session_id, use, told, now)
            for session_id, told in self._sessions.items()
            for (of, _), use in told.uses.items()
            if of == key
        ]
        limit.due_at, limit.not_before = None, now + TURN_SECONDS
        dealt = await self._books.turn(key, asks, own=tuple(self._sessions))
        if dealt is None:
            self._expect(key, self._clock.monotonic())
            return
        limit.allowance = dealt.allowance
        self._tell(key, dealt)
        if dealt.is_cut:
            limit.not_before = now
        elif dealt.due_seconds:
            limit.not_before = now + min(max(dealt.due_seconds, RATE_TURN_SECONDS), POLL_SECONDS)
        if any(dealt.granted.get(ask.key, 0) < ask.returned + ask.in_use + ask.waiting for ask in asks):
            # Behind the turn and not behind its beginning: where the database is far, calls must have time to end.
            poll = self._clock.monotonic() + (POLL_SHARED_SECONDS if dealt.is_shared else POLL_SECONDS)
            # What the rate has and nobody took waits for something else than time.
            due = min(poll, now + dealt.due_seconds) if dealt.due_seconds else poll
            self._expect(key, now if dealt.is_cut else due)
        elif asks:
            self._expect(key, now + HELD_SECONDS)
        elif limit.due_at is None:
            del self._limits[key]

    def _tell(self, key: LimitKey, dealt: Dealt) -> None:
        for (session_id, execution_id), count in dealt.granted.items():
            told, of = self._sessions.get(session_id), (key, execution_id)
            use = None if told is None else told.uses.get(of)
            if told is None or use is None:
                continue
            known = max(told.granted.get(of, 0), use.returned + use.in_use)
            told.granted[of] = count
            (told.alone.add if (session_id, execution_id) in dealt.alone else told.alone.discard)(of)
            if count >= use.returned + use.in_use + use.waiting:
                told.since.pop(of, None)
            if count > known:
                self._count(key.name, count - known)
                self._wake(told)

    # --- numbers ---------------------------------------------------------------------------------------------

    def _count(self, name: str, permits: int) -> None:
        is_known = name in self._granted or len(self._granted) < LIMIT_NAMES_COUNTED_MAX
        self._granted[name if is_known else _OTHERS] += permits

    def samples(self) -> Iterator[Sample]:
        in_use, waiting = Counter[str](), Counter[str]()
        for told in self._sessions.values():
            for (key, execution_id), use in told.uses.items():
                name = key.name if key.name in self._granted else _OTHERS
                had = max(told.granted.get((key, execution_id), 0), use.returned + use.in_use)
                in_use[name] += had - use.returned
                waiting[name] += max(use.returned + use.in_use + use.waiting - had, 0)
        for name in sorted({*self._granted, *in_use}):
            yield "noetl_limit_in_use", {"limit": name}, in_use[name]
            yield "noetl_limit_waiting", {"limit": name}, waiting[name]
            yield "noetl_limit_granted_total", {"limit": name}, self._granted[name]


def _ask(session_id: int, use: PermitUse, told: _Told, now: float) -> Ask:
    """What a session says, with what it was granted since: that may be on its way, and no book may know it."""
    allowance, returned, in_use, waiting = _counts(use, told)
    return Ask(
        session_id=session_id,
        execution_id=use.execution_id,
        allowance=allowance,
        returned=returned,
        in_use=in_use,
        waiting=waiting,
        waited_seconds=now - told.since.get((use.key, use.execution_id), now),
    )


def _counts(use: PermitUse, told: _Told) -> tuple[Allowance, int, int, int]:
    """What a word means for the books: returned, in use, waiting."""
    had = max(told.granted.get((use.key, use.execution_id), 0), use.returned + use.in_use)
    return use.allowance, use.returned, had - use.returned, max(use.returned + use.in_use + use.waiting - had, 0)
