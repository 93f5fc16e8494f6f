"""What a route is asked and what it answers: parameters with bounds, JSON bodies, errors as JSON."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

Receive = Callable[[], Awaitable[Any]]

REQUEST_BYTES_MAX = 16 * 1024 * 1024
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(slots=True)
class Answer:
    """A status and the bytes of a JSON document; or pieces of a content that is made while it is sent."""

    body: bytes
    status: int = 200
    retry_after_seconds: int | None = None
    pieces: Iterator[bytes] | None = None
    content_type: str = "application/json"


class Refused(Exception):
    """The request cannot be answered; the answer says why."""

    def __init__(self, status: int, message: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.answer = failed(status, message, retry_after_seconds=retry_after_seconds)


def json_answer(document: object, *, status: int = 200) -> Answer:
    return Answer(_encode(document).encode(), status)


def failed(status: int, message: str, *, retry_after_seconds: int | None = None) -> Answer:
    answer = json_answer({"error": {"status": status, "message": message}}, status=status)
    answer.retry_after_seconds = retry_after_seconds
    return answer


@dataclass(slots=True)
class Asked:
    """One request: its parameters are parsed when the first one is read."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    receive: Receive
    _parameters: Mapping[str, str] | None = field(default=None)

    @property
    def parameters(self) -> Mapping[str, str]:
        if self._parameters is None:
            self._parameters = parse_query(self.query)
        return self._parameters

    def text(self, name: str, default: str = "") -> str:
        return self.parameters.get(name, default)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        return int(self._number(name, default, low, high, int))

    def decimal(self, name: str, default: float, low: float, high: float) -> float:
        return self._number(name, default, low, high, float)

    def _number(self, name: str, default: float, low: float, high: float, kind: Callable[[str], float]) -> float:
        text = self.parameters.get(name)
        if text is None or text == "":
            return default
        try:
            value = kind(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise Refused(400, f"{name} must be a number from {low} to {high}, not {text!r}")
        return value

    async def body(self) -> bytes:
        content = bytearray()
        while True:
            message = await self.receive()
            content += message.get("body", b"")
            if len(content) > REQUEST_BYTES_MAX:
                raise Refused(413, f"a request has at most {REQUEST_BYTES_MAX:,} bytes")
            if not message.get("more_body"):
                return bytes(content)


def parse_query(query: bytes) -> dict[str, str]:
    """Parameters by name; of a repeated one the last.  The common case has nothing to decode."""
    if b"%" in query or b"+" in query:
        return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    found = {}
    for pair in query.decode("latin-1").split("&"):
        name, _, value = pair.partition("=")
        if name:
            found[name] = value
    return found
