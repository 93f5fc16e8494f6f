"""Calls of tasks that are under a shared limit: each takes a permit, and what it waits for that is not the tool's
time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.engine.permits.taking import Permits
from noetl.ports.serving.permits import LimitKey
from noetl.ports.session import CommandMessage


class Limiting:
    """Of one pipeline, whose tasks run one after the other."""

    def __init__(
        self,
        permits: Permits | None,
        message: CommandMessage,
        playbook: CompiledPlaybook,
        warn: Callable[[str], None],
    ) -> None:
        self._permits = permits
        self._message = message
        self._limits = playbook.playbook.limits
        self._warn = warn
        self._waited = 0.0

    def waited_seconds(self) -> float:
        """How long the last call waited; told once."""
        waited, self._waited = self._waited, 0.0
        return waited

    @contextlib.asynccontextmanager
    async def permit(self, name: str) -> AsyncIterator[None]:
        assert self._permits is not None, "this worker has no way to ask for permits"
        message, declared = self._message, self._limits[name]
        key = LimitKey(message.tenant_id, message.organization_id, name)
        async with self._permits.permit(key, declared, message.execution_id) as taken:
            self._waited = taken.waited_seconds
            if taken.stricter is not None:
                self._warn(
                    f"limit {name!r} is declared as {declared}, and something stricter by another playbook or"
                    f" version that uses it now: {taken.stricter} holds"
                )
            yield
