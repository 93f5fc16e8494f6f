"""The logs of executions: written by workers, read page by page, followed while they grow."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from noetl.core.errors import PayloadCorrupt, PayloadMissing, RequestInvalid
from noetl.core.limits import LOG_PAGE_BYTES_MAX
from noetl.core.logs.lines import LOG, LogLine, decoded
from noetl.core.reference import reference_from_json
from noetl.engine.control.watch import Watchers
from noetl.engine.executions import ExecutionService
from noetl.engine.payloads import Payloads
from noetl.ports.clock import Clock
from noetl.ports.data.logs import LogChunk, LogReader, LogSink, StoredChunk

CHUNKS_AT_ONCE = 20
# Another server on the same database may have written, and nobody tells when an execution ends while nothing is said.
LOOK_SECONDS = 0.5
CURSOR_DIGITS_MAX = 18
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the log of an execution: behind a chunk, and behind so many lines of the next one."""

    log_id: int = 0
    lines: int = 0

    def __str__(self) -> str:
        return f"{self.log_id}.{self.lines}"


def cursor_of(text: str) -> Cursor:
    parts = text.split(".")
    if len(parts) != 2 or not all(
        part.isascii() and part.isdigit() and len(part) <= CURSOR_DIGITS_MAX for part in parts
    ):
        raise RequestInvalid("after must be a `next_after` of an answer before")
    return Cursor(int(parts[0]), int(parts[1]))


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which lines: of a step or of all, behind a place, at most so many; the owner must be the execution's."""

    execution_id: int
    tenant_id: str
    organization_id: str
    limit: int
    after: Cursor = Cursor()
    step: str | None = None


@dataclass(frozen=True, slots=True)
class LogPage:
    lines: list[dict[str, object]]
    cursor: Cursor
    is_complete: bool
    """The execution has ended and nothing follows."""


class LogBook:
    """Sink and reader over the stores of this process, and the bell for whoever follows."""

    def __init__(self, *, sink: LogSink, reader: LogReader, payloads: Payloads, clock: Clock) -> None:
        self._sink = sink
        self._reader = reader
        self._payloads = payloads
        self._clock = clock
        self._watchers = Watchers()

    async def write(self, chunks: Sequence[LogChunk]) -> None:
        await self._sink.write(chunks)
        self._watchers.notify({chunk.execution_id for chunk in chunks}, ())

    async def page(self, query: LogQuery, executions: ExecutionService, *, wait_seconds: float = 0.0) -> LogPage:
        """The next lines, waiting for the first one.  Raises ExecutionUnknown."""
        owner = {"tenant_id": query.tenant_id, "organization_id": query.organization_id}
        deadline = self._clock.monotonic() + wait_seconds
        with self._watchers.watch(query.execution_id) as watch:
            while True:
                # The state first: what was said before the end is there when the end is.
                state = await executions.state(query.execution_id, **owner)
                lines, cursor, is_all = await self._lines(query)
                left = deadline - self._clock.monotonic()
                if lines or state.is_terminal or left <= 0:
                    return LogPage(lines, cursor, state.is_terminal and is_all)
                await watch.changed(min(left, LOOK_SECONDS))

    async def _lines(self, query: LogQuery) -> tuple[list[dict[str, object]], Cursor, bool]:
        """Lines, the place behind them, and whether they are all that there is."""
        found: list[dict[str, object]] = []
        size, after = 0, query.after
        while True:
            chunks = await self._reader.read(
                query.execution_id,
                tenant_id=query.tenant_id,
                organization_id=query.organization_id,
                after=after.log_id,
                step=query.step,
                limit=CHUNKS_AT_ONCE,
            )
            for stored in chunks:
                lines = (await self._content(stored))[after.lines :]
                taken = lines[: query.limit - len(found)]
                found += [_view(stored.chunk, line) for line in taken]
                size += stored.chunk.size_bytes
                if len(taken) < len(lines):
                    return found, Cursor(after.log_id, after.lines + len(taken)), False
                after = Cursor(stored.log_id)
                if size > LOG_PAGE_BYTES_MAX:
                    return found, after, False
            if len(chunks) < CHUNKS_AT_ONCE:
                return found, after, True

    async def _content(self, stored: StoredChunk) -> list[LogLine]:
        chunk = stored.chunk
        content = chunk.content
        try:
            if content is None:
                assert chunk.reference is not None
                reference = reference_from_json(chunk.reference)
                owner = {"tenant_id": chunk.tenant_id, "organization_id": chunk.organization_id}
                content = await self._payloads.read(reference, **owner)
            return decoded(content)
        except (PayloadMissing, PayloadCorrupt) as error:
            text = f"… {chunk.lines} lines cannot be read: {error}"
            return [LogLine(chunk.first_at_ms, LOG, chunk.step, None, 1, text)]


def _view(chunk: LogChunk, line: LogLine) -> dict[str, object]:
    return {
        "at": iso(line.at_ms),
        "stream": line.stream,
        "step": chunk.step,
        "task": line.task,
        "row": line.row,
        "command_id": chunk.command_id,
        "attempt": chunk.attempt,
        "try": line.tried,
        "text": line.text,
    }


def iso(milliseconds: int) -> str:
    moment = _EPOCH + datetime.timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"
