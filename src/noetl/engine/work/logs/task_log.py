"""What one call of a tool says, on its way into the log of its command: without secrets, line by line."""

from __future__ import annotations

from collections.abc import Callable

from noetl.core.logs.assembling import Assembler
from noetl.core.logs.lines import LOG, LogLine
from noetl.engine.work.calling.redact import Redactor
from noetl.engine.work.logs.command_log import CommandLog


class TaskLog:
    """Given to a tool.  Nearly all of them are never used, so everything is made with the first text.

    Each stream is a text of its own, in which a secret is found however it was cut."""

    __slots__ = ("_held", "_lines", "_log", "_open", "_redactor", "_row", "_task", "_tried")

    def __init__(
        self, open_: Callable[[], CommandLog], redactor: Redactor, *, task: str, row: int | None, tried: int
    ) -> None:
        self._open: Callable[[], CommandLog] | None = open_
        self._redactor = redactor
        self._task = task
        self._row = row
        self._tried = tried
        self._log: CommandLog | None = None

    def __call__(self, text: str, *, stream: str = LOG, at: float | None = None) -> None:
        log = self._begun()
        if log is None:
            return
        clean, self._held[stream] = self._redactor.released(self._held.get(stream, "") + text)
        if stream not in self._lines:
            self._lines[stream] = Assembler()
        self._add(log, stream, at, self._lines[stream].feed(clean))

    def left_out(self, size: int) -> None:
        """So many bytes did not get here."""
        log = self._begun()
        if log is not None:
            log.left_out(size)

    def end(self) -> None:
        """No more comes: what is held back goes out, and open lines end."""
        log, self._log, self._open = self._log, None, None
        if log is None:
            return
        log.ended(self)
        for stream, lines in self._lines.items():
            rest = self._redactor.scrub(self._held.pop(stream, ""))
            assert isinstance(rest, str)
            self._add(log, stream, None, [*lines.feed(rest), *lines.end()])

    def _begun(self) -> CommandLog | None:
        """None after the end: who still speaks then is not heard."""
        if self._log is None and self._open is not None:
            self._held: dict[str, str] = {}
            self._lines: dict[str, Assembler] = {}
            self._log = self._open()
            self._log.begun(self)
        return self._log

    def _add(self, log: CommandLog, stream: str, at: float | None, lines: list[str]) -> None:
        if lines:
            moment = log.moment(at)
            for text in lines:
                line = text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
                log.add(LogLine(moment, stream, self._task, self._row, self._tried, line))
