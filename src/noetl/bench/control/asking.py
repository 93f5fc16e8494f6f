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

import aiohttp

END_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Asker:
    """The process, as whoever started it sees it."""

    process: asyncio.subprocess.Process

    def ask(self, execution_id: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{execution_id}\n".encode())

    async def answers(self) -> list[float]:
        """Milliseconds of every answer.  Nothing can be asked any more."""
        told, _ = await asyncio.wait_for(self.process.communicate(b""), END_SECONDS_MAX)
        return list(json.loads(told))


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
    answers: list[float] = []
    async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {token}"}) as http:
        while line := (await lines.readline()).decode().strip():
            begun = time.perf_counter()
            async with http.get(f"/api/executions/{line}") as response:
                await response.read()
            answers.append((time.perf_counter() - begun) * 1000)
            # Not projected yet: the lag says how long that takes.
            assert response.status in (200, 503), response.status
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
