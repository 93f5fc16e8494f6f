"""Files that tools keep for executions go when those have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from noetl.core.errors import LedgerUnavailable
from noetl.core.execution.state import Status
from noetl.core.limits import TOOL_FILES_LOOK_SECONDS
from noetl.ports.queue import Executions
from noetl.ports.tool import KeepsFiles, KeptRun, Tool


class Leftovers:
    """Looks from time to time.  An execution that this database does not know is somebody else's: it stays."""

    def __init__(self, tools: Iterable[Tool], executions: Executions) -> None:
        self._keepers = [tool for tool in tools if isinstance(tool, KeepsFiles)]
        self._executions = executions

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TOOL_FILES_LOOK_SECONDS)
            try:
                await self.forget_ended()
            except LedgerUnavailable:
                continue

    async def forget_ended(self) -> int:
        """How many executions were forgotten."""
        count = 0
        for keeper in self._keepers:
            runs = await asyncio.to_thread(keeper.kept_runs)
            ended = [run for run in runs if await self._has_ended(run)]
            if ended:
                count += await asyncio.to_thread(keeper.forget_runs, ended)
        return count

    async def _has_ended(self, run: KeptRun) -> bool:
        row = await self._executions.find(
            run.execution_id, tenant_id=run.tenant_id, organization_id=run.organization_id
        )
        return row is not None and row.status != Status.RUNNING.value
