"""Rows of the queue that nobody will ever take out again."""

from __future__ import annotations

from typing import Protocol


class QueueLeftovers(Protocol):
    async def drop_ended(self) -> int:
        """Take out commands of executions that are closed; returns how many.  A fact may be recorded and its server
        die before the row of the command is gone."""
        ...
