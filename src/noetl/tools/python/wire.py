"""Framing between the worker and a child: four bytes of length, then text and JSON in UTF-8.  Never pickle.

Both sides speak in turns, so at most one frame is under way, and bytes after a frame are an error.
"""

from __future__ import annotations

import json
import struct

from noetl.core import limits

# An answer is a value of at most RESULT_BYTES_MAX with captured output and a traceback around it.
ENVELOPE_BYTES_MAX = 1024 * 1024
FRAME_BYTES_MAX = limits.RESULT_BYTES_MAX + ENVELOPE_BYTES_MAX

# A request is a ticket, the size of the code, the code, and the other fields as JSON; code is text with many
# characters that JSON would escape, which costs more than all the rest.  An answer starts with the same
# ticket; one without it was not written by us, or comes too late.
TICKET_BYTES = 8

# Allocating a large buffer costs more than a small read; only a frame that is known to be large gets one.
READ_BYTES = 16 * 1024
READ_BYTES_OF_LARGE = 1024 * 1024

# The next byte of an answer says, without decoding the rest, whether the child may be used again.
REUSABLE = b"+"
SPENT = b"-"
ANSWER_PREFIX_BYTES = TICKET_BYTES + 1

_LENGTH = struct.Struct("!I")
_decode_json = json.JSONDecoder().decode


class FrameInvalid(ValueError):
    """The other side broke the framing."""


class FrameTooLarge(FrameInvalid):
    """A frame is over its limit."""


def join_request(code: str, fields: str) -> bytes:
    """All of a request but its ticket; the fields are JSON.

    Lone surrogates survive the trip, so that user code gets the text it was given.
    """
    source = code.encode("utf-8", "surrogatepass")
    return b"".join((_LENGTH.pack(len(source)), source, fields.encode("utf-8", "surrogatepass")))


def split_request(payload: bytes) -> tuple[bytes, bytes, object]:
    """Ticket, code and fields."""
    start = TICKET_BYTES + _LENGTH.size
    end = start + _LENGTH.unpack_from(payload, TICKET_BYTES)[0]
    return payload[:TICKET_BYTES], payload[start:end], decode(memoryview(payload)[end:])


def decode(payload: bytes | bytearray | memoryview) -> object:
    try:
        return _decode_json(str(payload, "utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise FrameInvalid(f"the payload is not JSON we can read: {error}") from error


def header(size: int) -> bytes:
    if size > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"a frame of {size} bytes is over the limit of {FRAME_BYTES_MAX}")
    return _LENGTH.pack(size)


class FrameReader:
    """Collects bytes until one frame is complete."""

    __slots__ = ("_bytes_max", "_pending")

    def __init__(self, *, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._pending = bytearray()

    @property
    def wants_bytes(self) -> int:
        """How much to read next."""
        return READ_BYTES_OF_LARGE if self._pending else READ_BYTES

    def feed(self, data: bytes) -> bytes | None:
        """The payload once it is complete, else None."""
        if not self._pending and len(data) >= 4:
            # Nearly every frame arrives in one piece: no copy into the buffer then.
            size = self._checked(data)
            if len(data) == size + 4:
                return data[4:]
        self._pending += data
        if len(self._pending) < 4:
            return None
        size = self._checked(self._pending)
        if len(self._pending) < size + 4:
            return None
        if len(self._pending) > size + 4:
            raise FrameInvalid("bytes follow a frame before it was answered")
        with memoryview(self._pending) as view:
            payload = bytes(view[4:])
        self._pending = bytearray()
        return payload

    def _checked(self, data: bytes | bytearray) -> int:
        size: int = _LENGTH.unpack_from(data)[0]
        if size > self._bytes_max:
            raise FrameTooLarge(f"a frame of {size} bytes is over the limit of {self._bytes_max}")
        return size
