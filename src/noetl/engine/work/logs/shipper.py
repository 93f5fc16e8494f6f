"""All logs of a worker on their way to where they are kept: gathered, in chunks, at most a few times per second."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from noetl.core.errors import NoetlError, Transient
from noetl.core.limits import LOG_CHUNKS_AT_ONCE_MAX, LOG_DURABLE_SECONDS_MAX, LOG_FLUSHES_PER_SECOND_MAX
from noetl.core.logs.lines import LogLine, cut, encoded
from noetl.core.reference import MEDIA_LOG, STORE_SMALL
from noetl.engine.payloads import Payloads
from noetl.engine.work.logs.command_log import CommandLog
from noetl.ports.clock import Clock
from noetl.ports.data.logs import LogChunk, LogSink
from noetl.ports.session import CommandMessage

AGAIN_SECONDS = 0.5
LAST_SECONDS_MAX = 1.0
Key = tuple[int, str, int]
log = logging.getLogger("noetl.worker")


class WorkerLogs:
    """`run` belongs to the worker's task group.  A command that said nothing costs a look into a dictionary."""

    def __init__(self, sink: LogSink, payloads: Payloads, clock: Clock) -> None:
        self._sink = sink
        self._payloads = payloads.patient()
        self._clock = clock
        self._logs: dict[Key, CommandLog] = {}
        self._dirty: dict[CommandLog, None] = {}
        self._is_dirty = asyncio.Event()
        self._is_urgent = asyncio.Event()
        self._settled: dict[CommandLog, asyncio.Event] = {}

    def of(self, message: CommandMessage) -> CommandLog:
        """The log of an attempt, begun if it is not."""
        key = (message.execution_id, message.command_id, message.attempt)
        found = self._logs.get(key)
        if found is None:
            found = self._logs[key] = CommandLog(message, self._clock, on_lines=self._mark)
        return found

    async def end(self, message: CommandMessage) -> dict[str, int] | None:
        """The command is over: its log is durable when this returns, or the sink is away for long.  What to record
        about it; None if nothing was said."""
        found = self._logs.pop((message.execution_id, message.command_id, message.attempt), None)
        if found is None:
            return None
        found.end()
        if found in self._dirty:
            settled = self._settled[found] = asyncio.Event()
            self._is_urgent.set()
            try:
                async with asyncio.timeout(LOG_DURABLE_SECONDS_MAX):
                    await settled.wait()
            except TimeoutError:
                log.warning("a log is not durable yet", extra={"event": "log.late", "reason": message.command_id})
            finally:
                self._settled.pop(found, None)
        return found.summary()

    def _mark(self, dirty: CommandLog) -> None:
        self._dirty[dirty] = None
        self._is_dirty.set()

    async def run(self) -> None:
        try:
            while True:
                await self._is_dirty.wait()
                # What comes in a moment goes together; a command that waits for its end has it at once.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1 / LOG_FLUSHES_PER_SECOND_MAX):
                        await self._is_urgent.wait()
                await self._flush()
        finally:
            # Of a worker that is told to end, the last lines too.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS_MAX):
                    await self._flush()

    async def _flush(self) -> None:
        """Take what is there and write it."""
        self._is_dirty.clear()
        self._is_urgent.clear()
        logs = list(self._dirty)
        chunks: list[LogChunk] = []
        for one in logs:
            for lines in cut(one.take()):
                try:
                    chunks.append(await self._chunk(one, lines))
                except NoetlError as error:
                    _refused(error)
                await asyncio.sleep(0)  # packing takes time, which others need too
        for first in range(0, len(chunks), LOG_CHUNKS_AT_ONCE_MAX):
            await self._write(chunks[first : first + LOG_CHUNKS_AT_ONCE_MAX])
        for one in logs:
            if one.has_waiting:
                continue  # more came meanwhile
            self._dirty.pop(one, None)
            settled = self._settled.get(one)
            if settled is not None:
                settled.set()

    async def _chunk(self, one: CommandLog, lines: list[LogLine]) -> LogChunk:
        """A small chunk is kept where it is named; a large one is a payload."""
        message = one.message
        owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
        payload = await self._payloads.keep(encoded(lines), media_type=MEDIA_LOG, **owner)
        is_small = payload.reference.store == STORE_SMALL
        seq, one.seq = one.seq, one.seq + 1
        return LogChunk(
            **owner,
            execution_id=message.execution_id,
            step=str(message.body["step"]),
            command_id=message.command_id,
            attempt=message.attempt,
            seq=seq,
            first_at_ms=min(line.at_ms for line in lines),
            last_at_ms=max(line.at_ms for line in lines),
            lines=len(lines),
            size_bytes=sum(len(line.text.encode()) for line in lines),
            content=payload.content if is_small else None,
            reference=None if is_small else payload.reference.to_json(),
        )

    async def _write(self, chunks: list[LogChunk]) -> None:
        """Until they are durable.  What is refused for good is lost: a log is not worth a command."""
        while True:
            try:
                await self._sink.write(chunks)
            except Transient as error:
                log.warning("waiting to write logs", extra={"event": "log.unavailable", "reason": str(error)})
                await asyncio.sleep(AGAIN_SECONDS)
            except NoetlError as error:
                _refused(error)
                return
            else:
                return


def _refused(error: NoetlError) -> None:
    log.warning("logs refused", extra={"event": "log.refused", "reason": f"{error.code}: {error}"})
