"""Framing between a worker and a driver: four bytes of length, then a JSON object.  Both sides use it.

The worker says `start`, `run`, `go`, `cancel` and `stop`; the driver `ready`, `unable`, `intent`, `refused`,
`progress`, `said`, `done`, `cancelled` and `lost`.  All but the first and last have the id of a job."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from noetl.core import limits

_LENGTH = struct.Struct("!I")
READ_BYTES = 1024 * 1024

Message = dict[str, Any]


class MessageInvalid(ValueError):
    """What arrived is no message."""


class MessageTooLarge(ValueError):
    """A message is over its limit."""


def framed(message: Mapping[str, object]) -> bytes:
    """Raises MessageTooLarge, and TypeError or ValueError for what is no plain data."""
    # Lone surrogates survive the trip, so that user code is given the text of the playbook.
    content = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if len(content) > limits.SPARK_MESSAGE_BYTES_MAX:
        raise MessageTooLarge(f"{len(content)} bytes, at most {limits.SPARK_MESSAGE_BYTES_MAX}")
    return _LENGTH.pack(len(content)) + content


class Frames:
    """Collects bytes until messages are complete."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now.  Raises MessageInvalid."""
        self._pending += data
        found: list[Message] = []
        start = 0
        while len(self._pending) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._pending, start)
            if size > limits.SPARK_MESSAGE_BYTES_MAX:
                raise MessageInvalid(f"a message of {size} bytes is over the limit")
            end = start + _LENGTH.size + size
            if end > len(self._pending):
                break
            found.append(_decoded(bytes(memoryview(self._pending)[start + _LENGTH.size : end])))
            start = end
        del self._pending[:start]
        return found


def _decoded(content: bytes) -> Message:
    try:
        message = json.loads(content.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise MessageInvalid("a message is no JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise MessageInvalid("a message has another shape")
    return message
