"""Framing between the worker and a child: four bytes of length, then text and JSON in UTF-8.  Never pickle.

The worker sends one request and waits until the child is through with it.  A child answers a request for many
rows with many frames, each written before the next row begins.
"""

from __future__ import annotations

import json
import select
import struct
from collections.abc import Iterator

from noetl.core import limits

# An answer is a value of at most RESULT_BYTES_MAX with captured output and a traceback around it.
ENVELOPE_BYTES_MAX = 1024 * 1024
FRAME_BYTES_MAX = limits.RESULT_BYTES_MAX + ENVELOPE_BYTES_MAX

# A request is a ticket, the size of the code, the code, and the other fields as JSON; code is text with many
# characters that JSON would escape, which costs more than all the rest.  An answer starts with the ticket of
# its request, for rows with that number plus the place of the row; one without it was not written by us, or
# comes too late.
TICKET_BYTES = 8
CHARACTER_BYTES_MAX = 4
NO_TICKET = -2

# Allocating a large buffer costs more than a small read; only a frame that is known to be large gets one.
READ_BYTES = 16 * 1024
READ_BYTES_OF_LARGE = 1024 * 1024

# The next byte of an answer says, without decoding the rest, what becomes of the child: it may be used again;
# it may not; it found the next row taken back and waits for another request.
REUSABLE = 0x2B
SPENT = 0x2D
RETURNED = 0x3D
# Added to it: the task printed something, and all of that is in the pipe by now.
PRINTED = 0x80

_LENGTH = struct.Struct("!I")
_TICKET = struct.Struct("!Q")
_ANSWER = struct.Struct("!QBII")
_OUTPUT = struct.Struct("!QBdH")
_MICROSECONDS_MAX = 2**32 - 1
_decode_json = json.JSONDecoder().decode

ANSWER_PREFIX_BYTES = _ANSWER.size

# Printed text goes through a pipe of its own, in records that the kernel takes in one piece.
STDOUT, STDERR = 1, 2
OUTPUT_TEXT_BYTES_MAX = select.PIPE_BUF - _OUTPUT.size
GAP = "…"


class FrameInvalid(ValueError):
    """The other side broke the framing."""


class FrameTooLarge(FrameInvalid):
    """A frame is over its limit."""


# --- requests --------------------------------------------------------------------------------------------


def with_length(code: str) -> bytes:
    """The code as a request has it.

    Lone surrogates survive the trip, so that user code gets the text it was given.
    """
    source = code.encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(source)) + source


def text(fields: str) -> bytes:
    return fields.encode("utf-8", "surrogatepass")


def header(size: int) -> bytes:
    if size > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"a frame of {size} bytes is over the limit of {FRAME_BYTES_MAX}")
    return _LENGTH.pack(size)


def sized(*parts: bytes) -> tuple[bytes, ...]:
    """A request but for its ticket: the header, and the parts, which are the code with its length and then the
    fields as JSON in any number of pieces."""
    return header(TICKET_BYTES + sum(map(len, parts))), *parts


def with_ticket(request: tuple[bytes, ...], ticket: int) -> bytes:
    """A whole frame of what `sized` gave."""
    return b"".join((request[0], _TICKET.pack(ticket), *request[1:]))


def split_request(payload: bytes) -> tuple[int, bytes, object]:
    """Ticket, code and fields."""
    start = TICKET_BYTES + _LENGTH.size
    end = start + _LENGTH.unpack_from(payload, TICKET_BYTES)[0]
    return _TICKET.unpack_from(payload)[0], payload[start:end], decode(memoryview(payload)[end:])


# --- answers ---------------------------------------------------------------------------------------------


def answer_prefix(ticket: int, mark: int, seconds: float = 0.0, needed_seconds: float = 0.0) -> bytes:
    return _ANSWER.pack(ticket, mark, _microseconds(seconds), _microseconds(needed_seconds))


def read_prefix(payload: bytes) -> tuple[int, int, float, float]:
    """Ticket, mark, the seconds it took by the child's account, and those that it would take the next time on an
    idle machine, zero if that is not known.  Without a prefix, a ticket that nobody has."""
    if len(payload) < ANSWER_PREFIX_BYTES:
        return NO_TICKET, SPENT, 0.0, 0.0
    ticket, mark, taken, needed = _ANSWER.unpack_from(payload)
    return ticket, mark, taken / 1e6, needed / 1e6


def _microseconds(seconds: float) -> int:
    return min(int(seconds * 1e6), _MICROSECONDS_MAX)


def decode(payload: bytes | bytearray | memoryview) -> object:
    try:
        return _decode_json(str(payload, "utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise FrameInvalid(f"the payload is not JSON we can read: {error}") from error


# --- printed text ----------------------------------------------------------------------------------------


def output_record(ticket: int, stream: int, seconds: float, text: str) -> bytes:
    """At most OUTPUT_TEXT_BYTES_MAX of text, and when it was printed by the clock that all processes share."""
    content = text.encode("utf-8", "replace")
    return _OUTPUT.pack(ticket, stream, seconds, len(content)) + content


def output_records(data: bytearray) -> Iterator[tuple[int, int, float, str]]:
    """Ticket, stream, seconds and text of the records that are complete, which are taken out.  Raises FrameInvalid for
    what is none: user code wrote to the pipe itself."""
    start = 0
    try:
        while len(data) - start >= _OUTPUT.size:
            ticket, stream, seconds, size = _OUTPUT.unpack_from(data, start)
            if stream not in (STDOUT, STDERR) or size > OUTPUT_TEXT_BYTES_MAX:
                raise FrameInvalid("this is no printed text")
            end = start + _OUTPUT.size + size
            if end > len(data):
                break
            text = data[start + _OUTPUT.size : end].decode("utf-8", "replace")
            start = end
            yield ticket, stream, seconds, text
    finally:
        del data[:start]


class FrameReader:
    """Collects bytes until frames are complete."""

    __slots__ = ("_bytes_max", "_pending", "is_broken", "wants_bytes")

    def __init__(self, *, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._pending = bytearray()
        self.is_broken = False
        """A frame is over its limit, and what follows it cannot be read."""
        self.wants_bytes = READ_BYTES
        """How much to read next."""

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete now, also those before a frame that breaks the rules."""
        # Nearly every frame arrives in one piece: no copy into the buffer then.
        source: bytes | bytearray = data
        if self._pending:
            self._pending += data
            source = self._pending
        payloads: list[bytes] = []
        start, size, total = 0, 0, len(source)
        while total - start >= _LENGTH.size:
            size = _LENGTH.unpack_from(source, start)[0]
            end = start + _LENGTH.size + size
            if end > total or size > self._bytes_max:
                self.is_broken = size > self._bytes_max
                break
            payloads.append(bytes(memoryview(source)[start + _LENGTH.size : end]))
            start = end
        self._keep(source, start)
        self.wants_bytes = READ_BYTES_OF_LARGE if self._pending and size > READ_BYTES else READ_BYTES
        return payloads

    def _keep(self, source: bytes | bytearray, start: int) -> None:
        if start == len(source):
            if self._pending:
                self._pending = bytearray()
        elif source is self._pending:
            del self._pending[:start]
        else:
            self._pending += memoryview(source)[start:]
