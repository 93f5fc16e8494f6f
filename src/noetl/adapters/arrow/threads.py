"""Calls beside the event loop whose results are let go at once.

The futures of a call in a thread refer to each other in a ring, and with them to its result, until Python's collector
comes by.  A result here may be a mapping of shared memory that others wait for, so it takes another way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_LOOKS_MAX = 64


class Call(Generic[T]):
    """A call that was started."""

    def __init__(self, call: Callable[..., T], *arguments: Any, executor: Executor | None = None) -> None:
        self._box: list[T] = []
        self._future = asyncio.get_running_loop().run_in_executor(executor, self._run, call, arguments)

    async def result(self) -> T:
        """The result; it can be had once."""
        await self._future
        return self._box.pop()

    async def settle(self) -> None:
        """Wait for its end, whatever that is."""
        await asyncio.wait([self._future])
        if not self._future.cancelled():
            self._future.exception()

    def _run(self, call: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        self._box.append(call(*arguments))


async def in_thread(call: Callable[..., T], *arguments: Any) -> T:
    return await Call(call, *arguments).result()


async def in_waiting_thread(call: Callable[..., T], *arguments: Any) -> T:
    """For calls that may wait for the event loop.  What the loop then does needs the usual threads, so a call that
    waits must not sit in one of them: enough such calls would wait for each other."""
    return await Call(call, *arguments, executor=_waiting_threads()).result()


@cache
def _waiting_threads() -> Executor:
    return ThreadPoolExecutor(_LOOKS_MAX, thread_name_prefix="noetl-table")
