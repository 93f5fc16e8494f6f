"""A proxy that loses answers: the request was served, and whoever asked sees the connection end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

READ_BYTES = 65_536


@dataclass(slots=True)
class Proxy:
    """Between clients and one server.  `share` of the answers are lost while `is_losing`."""

    target_port: int
    share: float
    chance: random.Random
    port: int = 0
    is_losing: bool = False
    answers: int = 0
    lost: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as group:
                requests = group.create_task(_copy(reader, up_writer))
                await self._answers(up_reader, writer)
                requests.cancel()
        except (OSError, ExceptionGroup):
            pass  # one side is gone, and with it the connection
        finally:
            up_writer.close()
            writer.close()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(READ_BYTES):
            self.answers += 1
            if self.is_losing and self.chance.random() < self.share:
                self.lost += 1
                return
            writer.write(piece)
            await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(READ_BYTES):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


@asynccontextmanager
async def proxied(proxy: Proxy) -> AsyncIterator[Proxy]:
    async with asyncio.TaskGroup() as group:
        tasks: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = group.create_task(proxy.serve(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        proxy.port = server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            server.close()
            for task in tasks:
                task.cancel()
