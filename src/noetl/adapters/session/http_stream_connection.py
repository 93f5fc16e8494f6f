"""One kept HTTP/1.1 connection, asked one thing at a time.

The two busy ways of a worker, facts up and commands down, are worth a client of their own: a general one costs a tenth
of a millisecond per request, and a hop of the event loop for every piece of an answer."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import httptools

from noetl.core.errors import HostUnavailable, NoetlError

CONNECT_SECONDS_MAX = 5.0
OK = 200


class Connection(asyncio.Protocol):
    """Made by `connect`.  After any failure it is closed, and another one must be made."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = url
        lines = [f"host: {urlsplit(url).netloc}", *(f"{name}: {value}" for name, value in headers.items())]
        self._head = "".join(f"{line}\r\n" for line in lines).encode("latin-1")
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._on_piece: Callable[[bytes], None] | None = None
        self._pieces: list[bytes] = []
        self.retry_after: str | None = None
        """What the last answer said about it."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def ask(
        self, method: str, path: str, body: bytes = b"", *, on_piece: Callable[[bytes], None] | None = None
    ) -> tuple[int, bytes]:
        """Status and content of the answer.  Of a good one each piece goes to `on_piece`, when there is one, as it
        comes.  Raises HostUnavailable, and whatever error of ours `on_piece` raises."""
        if not self.is_open or self._answer is not None:
            raise HostUnavailable(f"the connection to {self._url} is closed")
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._on_piece, self._pieces, self.retry_after = on_piece, [], None
        begin = f"{method} {path} HTTP/1.1\r\ncontent-length: {len(body)}\r\n".encode("ascii")
        self._transport.write(b"%b%b\r\n%b" % (begin, self._head, body))
        is_whole = False
        try:
            answer = await self._answer
            is_whole = True
        finally:
            self._answer = None
            if not is_whole:
                self.close()  # the rest of the answer must not be taken for that of the next question
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: NoetlError) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # --- the event loop's calls ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # By what it can do: the transports of uvloop are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(HostUnavailable(f"the answer of {self._url} is no HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._end(HostUnavailable(f"the connection to {self._url} was lost: {error or 'closed by the server'}"))

    # --- the parser's calls ----------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self.retry_after = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        if self._on_piece is None or self._parser.get_status_code() != OK:
            self._pieces.append(body)
            return
        try:
            self._on_piece(body)
        except NoetlError as error:
            self._end(error)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._pieces)))
        if not self._parser.should_keep_alive():
            self.close()


async def connect(url: str, headers: dict[str, str]) -> Connection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            _, connection = await loop.create_connection(
                lambda: Connection(url, headers), parts.hostname, port, ssl=secure
            )
    except (OSError, TimeoutError) as error:
        raise HostUnavailable(f"the server at {url} does not answer: {error!r}") from error
    return connection
