"""Reading a body that may be held, up to a limit."""

from __future__ import annotations

import aiohttp


class TooLarge(Exception):
    """More bytes than may be held; `start` is what was read so far, perhaps nothing."""

    def __init__(self, start: list[bytes]) -> None:
        super().__init__()
        self.start = start


async def read_whole(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """The body, decompressed, or TooLarge.  The limit counts what decompression made, not what was sent."""
    if (response.content_length or 0) > bytes_max:
        raise TooLarge([])
    content = response.content
    first = await content.readany()
    if content.at_eof() and len(first) <= bytes_max:
        return first
    parts, size = [first], len(first)
    while size <= bytes_max:
        part = await content.readany()
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    raise TooLarge(parts)
