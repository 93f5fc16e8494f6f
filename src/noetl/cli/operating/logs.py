"""What a process says on standard error: lines for people, or JSON for whoever gathers them.

A line has fields that are listed here and no others, so that nothing gets into a log because somebody had it at hand:
no payloads, no secrets."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from collections.abc import Mapping

from noetl.settings import LOG_AUTO, LOG_JSON, Settings

FIELDS: Mapping[str, str] = {
    "execution_id": "the execution it is about",
    "command_id": "the command it is about",
    "shard_id": "the shard it is about",
    "session_id": "the worker session it is about",
    "reason": "why; for people",
    "role": "the role that was taken or lost",
    "epoch": "its epoch",
    "commands": "how many commands",
    "partition": "the partition that was made",
    "partitions": "partitions that could go",
    "slots": "how many commands a worker wants at a time",
    "kind": "the kind of a tool",
}
"""What a line may have beside `time`, `level`, `logger`, `event`, `message` and, after a defect, `trace`."""
_IDS = frozenset(("execution_id", "session_id"))
TEXT_CHARS_MAX = 4_000
"""Of one field; a trace may have twice as many."""


class JsonLines(logging.Formatter):
    """One object per record.  Ids are texts, as everywhere outside of the database: they are larger than what a reader
    of JSON may take for a number."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.__dict__.get("event") or None,
            "message": record.getMessage()[:TEXT_CHARS_MAX],
        }
        for name in FIELDS:
            value = record.__dict__.get(name)
            if value is not None:
                line[name] = _plain(name, value)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)[-2 * TEXT_CHARS_MAX :]
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        told = (record.__dict__.get(name) for name in ("event", "execution_id", "reason"))
        return " ".join((super().formatMessage(record), *(str(one) for one in told if one is not None)))


def log_to_stderr(settings: Settings, *, serves: bool) -> None:
    """`serves`: this is a process that runs on its own, whose log somebody gathers unless it is in a terminal."""
    is_gathered = settings.log_format == LOG_AUTO and serves and not sys.stderr.isatty()
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if is_gathered or settings.log_format == LOG_JSON else TextLines())
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)


def _plain(name: str, value: object) -> object:
    if name in _IDS:
        return str(value)
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [str(one)[:TEXT_CHARS_MAX] for one in value[:100]]
    return str(value)[:TEXT_CHARS_MAX]
