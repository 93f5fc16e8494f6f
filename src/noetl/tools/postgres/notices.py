"""What the server says beside its answers: notices and warnings, for the log of the task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from noetl.ports.tool import TaskLog


@contextmanager
def notices(connection: Any, log: TaskLog | None) -> Iterator[None]:
    """While it is open, `RAISE NOTICE` and the like go to the log."""
    if log is None:
        yield
        return

    def hear(_connection: Any, message: Any) -> None:
        severity = message.severity_en or message.severity or "NOTICE"
        log(f"{severity}: {message.message}\n")
        for name in ("detail", "hint"):
            if getattr(message, name, None):
                log(f"{name.upper()}: {getattr(message, name)}\n")

    connection.add_log_listener(hear)
    try:
        yield
    finally:
        connection.remove_log_listener(hear)
