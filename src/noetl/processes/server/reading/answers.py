"""Sending bytes as they are made.

An answer begins when its first piece is there: what is wrong until then becomes a problem.  What goes wrong later
breaks the answer off, so that no reader takes a part for the whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from noetl.core.errors import NoetlError

log = logging.getLogger("noetl.server")


class StreamAnswer(Response):
    """`pieces` are closed whatever happens, also when the reader goes away."""

    def __init__(self, pieces: AsyncGenerator[bytes], first: bytes | None, *, status: int, headers: Mapping[str, str]):
        self.status_code = status
        self.background = None
        self._pieces = pieces
        self._first = first
        self.init_headers(headers)

    async def leave_out(self) -> None:
        """Answer with the head alone; nothing more of the body is made."""
        self._first = None
        await self._pieces.aclose()

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                leaving = group.create_task(_left(receive))
                sending = group.create_task(self._send(send))
                await asyncio.wait((leaving, sending), return_when=asyncio.FIRST_COMPLETED)
                leaving.cancel()
                sending.cancel()
        finally:
            await self._pieces.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            if self._first is not None:
                await send(_body(self._first))
                async for piece in self._pieces:
                    await send(_body(piece))
        except NoetlError as error:
            # Without an end the reader knows that this is not all.
            log.warning("an answer broke off", extra={"event": "answer.broken", "reason": str(error)})
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _body(piece: bytes) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": True}


async def _left(receive: Receive) -> None:
    """Returns when the reader goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def streamed(pieces: AsyncGenerator[bytes], *, headers: Mapping[str, str], status: int = 200) -> StreamAnswer:
    """An answer whose first piece is there.  Raises what making it raises."""
    first = await anext(pieces, None)
    return StreamAnswer(pieces, first, status=status, headers=headers)
