"""Answers of any size, made while they are sent: `/api/v1/large?bytes=…&format=octets|text|json`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from noetl.standin.answers import Answer, Asked, Refused
from noetl.standin.routes import World

LARGE_BYTES_MAX = 64 * 1024**3
_PIECE_BYTES = 256 * 1024
_TYPES = {"octets": "application/octet-stream", "text": "text/plain; charset=utf-8", "json": "application/json"}
_HEAD, _TAIL = b'{"rows":[', b'],"end":true}'


def large(_world: World, asked: Asked) -> Answer:
    size, kind = asked.integer("bytes", 1024, 0, LARGE_BYTES_MAX), asked.text("format", "octets")
    if kind not in _TYPES:
        raise Refused(400, f"format must be one of {', '.join(_TYPES)}")
    pieces = _rows(size) if kind == "json" else _octets(size, is_text=kind == "text")
    return Answer(b"", pieces=pieces, content_type=_TYPES[kind])


def _octets(size: int, *, is_text: bool) -> Iterator[bytes]:
    """Bytes that do not repeat within a piece, and are the same each time."""
    block = b"".join(hashlib.sha512(b"%d" % number).digest() for number in range(_PIECE_BYTES // 64))
    piece = block.hex().encode()[:_PIECE_BYTES] if is_text else block
    for start in range(0, size, _PIECE_BYTES):
        yield piece[: min(_PIECE_BYTES, size - start)]


def _rows(size: int) -> Iterator[bytes]:
    """Rows until there are at least so many bytes; a document has at least one."""
    sent, number = len(_HEAD) + len(_TAIL), 0
    yield _HEAD
    while sent < size or number == 0:
        rows: list[bytes] = []
        while (sent < size and len(rows) < 1_000) or number == 0:
            row = b'{"id":%d,"name":"item %d","amount":%d.25,"note":"%s"}' % (number, number, number, b"x" * 60)
            rows.append(row if number == 0 else b"," + row)
            sent += len(rows[-1])
            number += 1
        yield b"".join(rows)
    yield _TAIL
