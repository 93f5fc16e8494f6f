"""Lines of a log, and the form in which many of them are stored together.

A chunk is one JSON document, `{"tasks": […], "lines": [[milliseconds, stream, task, row, try, text], …]}` with stream
and task as indexes; a large one is compressed with zlib, which its first byte tells: JSON begins with a brace."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from noetl.core.codec import canonical_bytes, parse_json
from noetl.core.errors import PayloadCorrupt
from noetl.core.limits import LOG_CHUNK_BYTES_MAX, LOG_LINE_BYTES

STDOUT, STDERR, LOG = "stdout", "stderr", "log"
STREAMS = (STDOUT, STDERR, LOG)
"""The two of user code, and what tools and the engine say themselves."""

COMPRESSED_BYTES_MIN = 1_024
MILLISECONDS_MAX = 253_402_300_800_000
"""The end of the year 9999, in milliseconds since 1970."""
_LEVEL = 1
# A chunk as JSON: its text, in which each character may be escaped, and the numbers around it.
_DOCUMENT_BYTES_MAX = 8 * LOG_CHUNK_BYTES_MAX + 1024 * 1024


class LogLine(NamedTuple):
    """One line.  `row` is the index in the loop, `tried` the ordinal of the task's run in its pipeline."""

    at_ms: int
    stream: str
    task: str
    row: int | None
    tried: int
    text: str

    @property
    def size(self) -> int:
        """What it counts against the bounds."""
        return size_of(self.text)


def size_of(text: str) -> int:
    return LOG_LINE_BYTES + (len(text) if text.isascii() else len(text.encode("utf-8", "replace")))


def encoded(lines: Sequence[LogLine]) -> bytes:
    tasks = sorted({line.task for line in lines})
    numbers = {task: number for number, task in enumerate(tasks)}
    rows = [
        [line.at_ms, STREAMS.index(line.stream), numbers[line.task], line.row, line.tried, line.text] for line in lines
    ]
    content = canonical_bytes({"tasks": tasks, "lines": rows})
    return content if len(content) < COMPRESSED_BYTES_MIN else zlib.compress(content, _LEVEL)


def decoded(content: bytes) -> list[LogLine]:
    """Raises PayloadCorrupt: a worker of another process may have sent anything."""
    try:
        document: Any = parse_json(content if content.startswith(b"{") else _unpacked(content))
        return [_line(row, document["tasks"]) for row in document["lines"]]
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, zlib.error, RecursionError) as error:
        raise PayloadCorrupt(f"a chunk of a log cannot be read: {error}") from error


def _unpacked(content: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    document = unpacking.decompress(content, _DOCUMENT_BYTES_MAX)
    if unpacking.unconsumed_tail or not unpacking.eof:
        raise ValueError("it is larger than a chunk may be, or cut")
    return document


def _line(row: Any, tasks: Any) -> LogLine:
    at_ms, stream, task, index, tried, text = row
    if not 0 <= at_ms < MILLISECONDS_MAX or not isinstance(index, int | None):
        raise ValueError("a line has a time, and a row is a number")
    return LogLine(int(at_ms), STREAMS[stream], str(tasks[task]), index, int(tried), str(text))


def cut(lines: Sequence[LogLine], bytes_max: int = LOG_CHUNK_BYTES_MAX) -> Iterator[list[LogLine]]:
    """Runs of lines that fit into a chunk; a line is never more than one."""
    run: list[LogLine] = []
    size = 0
    for line in lines:
        size += line.size
        if run and size > bytes_max:
            yield run
            run, size = [], line.size
        run.append(line)
    if run:
        yield run


def left_out(size: int) -> str:
    """What stands where something was cut."""
    for unit, name in ((1024**3, "GB"), (1024**2, "MB"), (1024, "KB")):
        if size >= unit:
            return f"… {size / unit:.3g} {name} left out"
    return f"… {size} bytes left out"
