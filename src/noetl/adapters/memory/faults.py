"""Misbehaviour on request: an operation may be slow, fail before it commits, commit and lose its reply, or
commit after its caller was told that nobody knows."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from noetl.core.errors import LedgerUnavailable, NoetlError

T = TypeVar("T")


class Outcome(StrEnum):
    DONE = "done"
    NOT_DONE = "not done"
    REPLY_LOST = "reply lost"
    COMMITS_LATE = "commits late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mishap:
    """What happens to one operation."""

    outcome: Outcome = Outcome.DONE
    seconds_before: float = 0.0
    seconds_after: float = 0.0
    late_seconds: float = 0.0


FINE = Mishap()


class Faults:
    """Without a script everything goes well; `script` says what happens to the next calls of an operation."""

    def __init__(self) -> None:
        self._scripts: dict[str, deque[Mishap]] = {}

    def script(self, operation: str, *mishaps: Mishap) -> None:
        self._scripts.setdefault(operation, deque()).extend(mishaps)

    def draw(self, operation: str) -> Mishap:
        """What happens to the operation that begins now."""
        script = self._scripts.get(operation)
        return script.popleft() if script else FINE

    async def pause(self, seconds: float) -> None:
        """One await of an adapter: the place where a process can die."""
        await asyncio.sleep(seconds)

    async def around(self, operation: str, work: Callable[[], T]) -> T:
        """Do the work, which is atomic, with everything that can happen around it."""
        mishap = self.draw(operation)
        await self.pause(mishap.seconds_before)
        if mishap.outcome is Outcome.NOT_DONE:
            raise LedgerUnavailable(f"{operation}: no connection")
        if mishap.outcome is Outcome.COMMITS_LATE:
            # In a context of its own: the database goes on, whatever becomes of the process that asked it.
            asyncio.get_running_loop().call_later(mishap.late_seconds, _unheard, work, context=contextvars.Context())
            raise LedgerUnavailable(f"{operation}: the connection broke, and the statement goes on")
        result = work()
        await self.pause(mishap.seconds_after)
        if mishap.outcome is Outcome.REPLY_LOST:
            raise LedgerUnavailable(f"{operation}: the connection broke after the commit")
        return result


def _unheard(work: Callable[[], object]) -> None:
    """A statement whose client is gone: it commits or it fails, and nobody learns which."""
    try:
        work()
    except NoetlError:
        return
