"""What tasks say, collected for a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from noetl.engine.executions import ExecutionService
from noetl.engine.logs import Cursor, LogBook, LogQuery
from tests.support.engine import OWNER, Running


@dataclass(slots=True)
class Heard:
    """The log of a task: texts as they came, with their streams and moments."""

    texts: list[tuple[str, str, float | None]] = field(default_factory=list)
    left_out_bytes: int = 0

    def __call__(self, text: str, *, stream: str = "log", at: float | None = None) -> None:
        self.texts.append((stream, text, at))

    def left_out(self, size: int) -> None:
        self.left_out_bytes += size

    def text(self, stream: str | None = None) -> str:
        return "".join(text for name, text, _ in self.texts if stream in (None, name))


async def log_lines(running: Running, execution_id: int, **query: Any) -> list[dict[str, Any]]:
    """Every line of an execution, page by page."""
    return await all_lines(running.engine.logs, running.engine.service, execution_id, **query)


async def all_lines(
    book: LogBook, service: ExecutionService, execution_id: int, *, limit: int = 1_000, step: str | None = None
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = Cursor()
    while True:
        page = await book.page(LogQuery(execution_id, **OWNER, limit=limit, after=after, step=step), service)
        assert len(page.lines) <= limit
        found += page.lines
        if page.cursor == after or page.is_complete:
            return found
        after = page.cursor
