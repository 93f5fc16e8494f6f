"""Answers that are made while they are sent: they end, break off, or are left, and never leave anything open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from noetl.core.errors import PayloadCorrupt, PayloadMissing
from noetl.processes.server.reading.answers import streamed
from tests.support.aio import asynchronous


class Source:
    """Pieces of an answer, and whether they were closed."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces = pieces
        self.is_closed = False

    async def pieces(self) -> AsyncGenerator[bytes]:
        try:
            for piece in self._pieces:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            self.is_closed = True


class Reader:
    """The other side of a connection.  It leaves after so many messages, or never."""

    def __init__(self, leaves_after: int | None = None) -> None:
        self.got: list[Any] = []
        self._leaves_after = leaves_after
        self._left = asyncio.Event()
        self._was_asked = False

    async def send(self, message: Any) -> None:
        self.got.append(message)
        if len(self.got) == self._leaves_after:
            self._left.set()
            await asyncio.sleep(3600)  # nobody takes anything any more

    async def receive(self) -> Any:
        if not self._was_asked:
            self._was_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)

    @property
    def has_end(self) -> bool:
        return self.got[-1].get("more_body") is False


async def answered(source: Source, reader: Reader) -> Any:
    answer = await streamed(source.pieces(), headers={"Content-Type": "text/plain"})
    async with asyncio.timeout(60):
        await answer({"type": "http"}, reader.receive, reader.send)
    return answer


@pytest.mark.parametrize("pieces", [(), (b"one",), (b"one", b"two", b"three")])
@asynchronous
async def test_all_pieces_are_sent_in_order(pieces: tuple[bytes, ...]) -> None:
    source, reader = Source(*pieces), Reader()
    await answered(source, reader)
    assert (reader.body, reader.has_end, source.is_closed) == (b"".join(pieces), True, True)
    assert reader.got[0]["status"] == 200
    assert b"content-length" not in dict(reader.got[0]["headers"])


@asynchronous
async def test_what_is_wrong_before_the_first_piece_is_told_instead() -> None:
    source = Source(PayloadMissing("gone"))
    with pytest.raises(PayloadMissing):
        await streamed(source.pieces(), headers={})
    assert source.is_closed


@asynchronous
async def test_what_is_wrong_later_leaves_the_answer_without_an_end() -> None:
    source, reader = Source(b"one", PayloadCorrupt("damaged")), Reader()
    await answered(source, reader)
    assert (reader.body, reader.has_end, source.is_closed) == (b"one", False, True)


@pytest.mark.parametrize("messages", [1, 2, 3])
@asynchronous
async def test_when_the_reader_leaves_everything_is_closed(messages: int) -> None:
    source, reader = Source(*[b"x"] * 100), Reader(leaves_after=messages)
    await answered(source, reader)
    assert len(reader.got) == messages
    assert source.is_closed


@asynchronous
async def test_a_cancelled_answer_closes_its_pieces() -> None:
    source, reader = Source(b"x", b"y"), Reader()
    reader.send = _never  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await answered(source, reader)
    assert source.is_closed


async def _never(_message: Any) -> None:
    await asyncio.sleep(3600)
