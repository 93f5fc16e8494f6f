"""The worker's end: calls that wait for a permit, told to the server together.

Counts only grow, so that a word or an answer that is lost, late or repeated changes nothing.  A call that is cancelled
gives back what it has, or will be given."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from noetl.core.errors import NoetlError
from noetl.core.limits import PERMIT_WAIT_SECONDS_MAX, PERMITS_WANTED_MAX
from noetl.core.permits.rates import Allowance
from noetl.ports.clock import Clock
from noetl.ports.serving.permits import LimitKey, PermitGrant, PermitSource, PermitUse

WORDS_AT_ONCE_MAX = 2
"""One that waits for news, and the one that ends it because there is something to say."""
WORD_SECONDS = 0.005
"""What happens within so long is one word."""
RETURN_SECONDS = 0.25
"""Where only the rate counts nobody waits for what is given back: it is said with the next word, or after so long."""
AGAIN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0)
log = logging.getLogger("noetl.worker")

LineKey = tuple[LimitKey, int]


@dataclass(frozen=True, slots=True)
class Taken:
    """`stricter` is what holds instead of what was declared, told once for each execution."""

    waited_seconds: float
    stricter: Allowance | None = None


@dataclass(slots=True)
class _Line:
    """The calls of one execution at one limit."""

    allowance: Allowance
    returned: int
    in_use: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    holds: Allowance | None = None
    is_told: bool = False
    keep_until: float = 0.0

    @property
    def granted(self) -> int:
        return self.returned + self.in_use


class Permits:
    """`run` belongs to the caller's task group."""

    def __init__(self, source: PermitSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._lines: dict[LineKey, _Line] = {}
        self._changed = asyncio.Event()
        self._turn = 0
        self._under_way = 0
        self._failures = 0
        # Where the counts of the next line begin: above everything that may still be granted to an earlier one.
        self._base = 0
        self._later: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def permit(self, key: LimitKey, allowance: Allowance, execution_id: int) -> AsyncIterator[Taken]:
        """Wait for a permit and hold it.  Waiting may be cancelled like anything else."""
        line = self._lines.get((key, execution_id))
        if line is None:
            line = self._lines[key, execution_id] = _Line(allowance, self._base)
        begun = self._clock.monotonic()
        await self._wait(key, execution_id, line)
        try:
            stricter = None
            if line.holds is not None and line.holds != allowance and not line.is_told:
                line.is_told, stricter = True, line.holds
            yield Taken(self._clock.monotonic() - begun, stricter)
        finally:
            if self._clock.monotonic() >= line.keep_until or not _next(line):
                line.in_use -= 1
                line.returned += 1
                self._settle(key, execution_id, line, is_urgent=allowance.concurrency is not None)

    async def _wait(self, key: LimitKey, execution_id: int, line: _Line) -> None:
        turn = asyncio.get_running_loop().create_future()
        line.waiting.append(turn)
        self._changed.set()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given and is not wanted any more
                line.in_use -= 1
                line.returned += 1
            else:
                with contextlib.suppress(ValueError):  # it was its turn just now, and it was gone already
                    line.waiting.remove(turn)
            self._settle(key, execution_id, line, is_urgent=True)
            raise

    def _settle(self, key: LimitKey, execution_id: int, line: _Line, *, is_urgent: bool) -> None:
        """Something was given back: say so, and forget a line where nobody is left."""
        if not line.in_use and not line.waiting and self._lines.get((key, execution_id)) is line:
            del self._lines[key, execution_id]
            self._base = max(self._base, line.returned + PERMITS_WANTED_MAX + 1)
        if is_urgent or line.waiting or (line.holds is not None and line.holds.concurrency is not None):
            self._changed.set()
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_later(RETURN_SECONDS, self._say_later)

    def _say_later(self) -> None:
        self._later = None
        self._changed.set()

    # --- words up, permits down ------------------------------------------------------------------------------

    async def run(self) -> None:
        room = asyncio.Semaphore(WORDS_AT_ONCE_MAX)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._changed.wait()
                    await room.acquire()
                    await asyncio.sleep(WORD_SECONDS)
                    self._changed.clear()
                    word = group.create_task(self._say())
                    word.add_done_callback(lambda _: room.release())
        finally:
            if self._later is not None:
                self._later.cancel()

    async def _say(self) -> None:
        uses = [
            PermitUse(
                key,
                execution_id,
                line.allowance,
                line.returned,
                line.in_use,
                min(len(line.waiting), PERMITS_WANTED_MAX),
            )
            for (key, execution_id), line in self._lines.items()
        ]
        self._turn += 1
        self._under_way += 1
        try:
            # Also when nobody waits any more: what was wanted before may still be granted, and must be given back.
            wait = PERMIT_WAIT_SECONDS_MAX if uses else 0.0
            self._take(await self._source.ask(self._turn, uses, wait_seconds=wait))
            self._failures = 0
        except NoetlError as error:
            if self._failures % 30 == 0:
                log.warning("no permits now", extra={"event": "permits.unavailable", "reason": str(error)})
            await asyncio.sleep(AGAIN_SECONDS[min(self._failures, len(AGAIN_SECONDS) - 1)])
            self._failures += 1
            self._changed.set()
        finally:
            self._under_way -= 1
        if not self._under_way and self._lines:
            self._changed.set()

    def _take(self, grants: Iterable[PermitGrant]) -> None:
        now = self._clock.monotonic()
        for grant in grants:
            line = self._lines.get((grant.key, grant.execution_id))
            if line is None:
                continue
            line.holds, line.keep_until = grant.allowance, now + grant.keep_seconds
            while line.granted < grant.granted:
                if not _next(line):
                    # For a call that is gone.
                    line.returned += grant.granted - line.granted
                    self._settle(grant.key, grant.execution_id, line, is_urgent=True)
                    break
                line.in_use += 1


def _next(line: _Line) -> bool:
    """Let the next call begin; False when nobody waits."""
    while line.waiting:
        turn = line.waiting.popleft()
        if not turn.done():
            turn.set_result(None)
            return True
    return False
