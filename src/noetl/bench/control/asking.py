"""Asks for the status of executions and tells how long the answers took.  A process of its own: the one that appends
has other things to do, and its pauses are not the server's."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

import aiohttp

END_SECONDS_MAX = 30.0


class Answered(NamedTuple):
    """`is_shown` is whether the execution was projected by then; how long that takes is the lag."""

    milliseconds: float
    is_shown: bool


@dataclass(frozen=True, slots=True)
class Asker:
    """The process, as whoever started it sees it."""

    process: asyncio.subprocess.Process

    def ask(self, execution_id: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{execution_id}\n".encode())

    async def answers(self) -> list[Answered]:
        """In the order in which they were asked for.  Nothing can be asked any more."""
        told, _ = await asyncio.wait_for(self.process.communicate(b""), END_SECONDS_MAX)
        return [Answered(*one) for one in json.loads(told)]


@asynccontextmanager
async def asker(url: str, token: str) -> AsyncIterator[Asker]:
    """`token` travels by the pipe: a command line can be read by everybody."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, url, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(f"{token}\n".encode())
    try:
        yield Asker(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def main(url: str) -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    token = (await lines.readline()).decode().strip()
    async with (
        aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {token}"}) as http,
        asyncio.TaskGroup() as group,
    ):
        # Side by side: while one answer is late the others are asked for all the same, and are late too.
        asked = []
        while line := (await lines.readline()).decode().strip():
            asked.append(group.create_task(_answer(http, line)))
    json.dump([task.result() for task in asked], sys.stdout)


async def _answer(http: aiohttp.ClientSession, execution_id: str) -> Answered:
    begun = time.perf_counter()
    async with http.get(f"/api/executions/{execution_id}") as response:
        await response.read()
    assert response.status in (200, 503), response.status
    return Answered((time.perf_counter() - begun) * 1000, response.status == 200)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
