"""What a session has yet to hear.  Whoever serves its connection takes it from here, as a stream or by request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from noetl.core.errors import LeaseLost
from noetl.ports.session import CommandMessage, Stop

Key = tuple[int, str]
Word = CommandMessage | Stop


class Voice:
    """Remembers until it is heard.  A connection that broke may have lost what was sent, so a new listener begins with
    `everything` that still matters; `said` are the commands that were sent at least once."""

    def __init__(self, everything: Callable[[], list[Word]]) -> None:
        self._everything = everything
        self._unsent: list[Word] = []
        self._wake = asyncio.Event()
        self._claims: tuple[str | None, list[Word]] = (None, [])
        self._listeners = 0
        self._end: str | None = None
        self.said: set[Key] = set()

    def say(self, word: Word) -> None:
        self._unsent.append(word)
        self._wake.set()

    def swallow(self, words: Iterable[Word]) -> None:
        """These need not be said any more."""
        gone = {id(word) for word in words}
        self._unsent = [word for word in self._unsent if id(word) not in gone]

    def end(self, reason: str) -> None:
        self._end = reason
        self._wake.set()

    def listen(self) -> int:
        """Begin to listen; an earlier listener is at its end."""
        self._listeners += 1
        self._unsent = self._everything()
        self._wake.set()
        return self._listeners

    async def words(self, listener: int, wait_seconds: float) -> list[Word]:
        """What is to be said now; empty when there was nothing for so long.  Raises LeaseLost at the session's end."""
        await self._something(wait_seconds, listener)
        self._check(listener)
        spoken, self._unsent = self._unsent, []
        return self._spoken(spoken)

    async def claim(self, count: int, wait_seconds: float, key: str | None) -> list[Word]:
        """The pull form of the same.  Asked again with the same key it says the same again."""
        if key is not None and self._claims[0] == key:
            return self._claims[1]
        await self._something(wait_seconds, None)
        self._check(None)
        spoken, self._unsent = self._unsent[:count], self._unsent[count:]
        self._claims = (key, spoken)
        return self._spoken(spoken)

    async def _something(self, wait_seconds: float, listener: int | None) -> None:
        """Wait until there is something to say, the session is over, or the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                while not self._unsent:
                    self._check(listener)
                    self._wake.clear()
                    await self._wake.wait()

    def _spoken(self, words: list[Word]) -> list[Word]:
        self.said.update((word.execution_id, word.command_id) for word in words)
        return words

    def _check(self, listener: int | None) -> None:
        if self._end is not None:
            raise LeaseLost(self._end)
        if listener is not None and listener != self._listeners:
            raise LeaseLost("another connection took over this session")
