"""A pool of real child processes for a test, and questions about processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from noetl.tools.python.pool import ChildPool, PythonTask

T = TypeVar("T")
TEST_SECONDS_MAX = 60.0


def task(code: str, *, timeout: float = 10.0, **given: Any) -> PythonTask:
    fields: dict[str, Any] = {"input": {}, "names": {}, "context": None, "libs": {}, "env": {}}
    return PythonTask(code=code, timeout_seconds=timeout, filename="<playbook step>", **(fields | given))


def with_pool(
    test: Callable[[ChildPool], Awaitable[T]],
    *,
    runner: Callable[[Any], Any] = asyncio.run,
    **options: Any,
) -> T:
    async def main() -> T:
        pool = ChildPool(**options)
        await pool.start()
        try:
            async with asyncio.timeout(TEST_SECONDS_MAX):
                return await test(pool)
        finally:
            await pool.close()

    result: T = runner(main())
    return result


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def group_of(pgid: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.getpgid(int(entry)) == pgid and is_alive(int(entry)):
                found.append(int(entry))
    return found


async def until(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
