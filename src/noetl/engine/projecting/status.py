"""What people are shown of executions: rows of the projection and nothing else.  The list and the single view are the
same row, so they never disagree."""

from __future__ import annotations

from noetl.core.errors import ExecutionUnknown, NotShownYet
from noetl.core.execution.state import Status
from noetl.core.ids import is_system
from noetl.engine.projecting.feed import Feed
from noetl.engine.projecting.watching import Watched
from noetl.ports.clock import Clock
from noetl.ports.ledger import ExecutionRow
from noetl.ports.projections import ExecutionViews, ShownExecution
from noetl.ports.queue import Executions

NOT_SHOWN_SECONDS = 0.2


def has_ended(row: ExecutionRow) -> bool:
    return row.status != Status.RUNNING


class StatusService:
    def __init__(
        self, views: ExecutionViews, executions: Executions, *, watched: Watched, feed: Feed, clock: Clock
    ) -> None:
        self._views = views
        self._executions = executions
        self._watched = watched
        self._feed = feed
        self._clock = clock

    async def find(self, execution_id: int, *, tenant_id: str, organization_id: str) -> ShownExecution:
        """The projection of an execution; those of other tenants do not exist.  Raises NotShownYet for one that exists
        while its projection is being made again: to say that it does not exist would be a lie."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        found = await self._views.find(execution_id, **owner)
        if found is None:
            if not is_system(execution_id) and await self._views.is_recorded(execution_id, **owner):
                raise NotShownYet(f"execution {execution_id} is recorded and not shown yet: try again in a moment")
            raise ExecutionUnknown(f"there is no execution {execution_id}")
        return found

    async def wait_position(
        self, execution_id: int, *, tenant_id: str, organization_id: str, position: int, timeout_seconds: float
    ) -> ShownExecution:
        """The projection when it includes a position of its shard or the end, or when the time is up."""
        deadline = self._clock.monotonic() + timeout_seconds
        with self._watched.watch(execution_id) as watch:
            while True:
                left = deadline - self._clock.monotonic()
                shown = await self._shown(execution_id, tenant_id, organization_id, is_patient=left > 0)
                if shown is not None and (shown.position >= position or has_ended(shown.row) or left <= 0):
                    return shown
                self._feed.hurry()
                await watch.changed(left if shown is not None else min(left, NOT_SHOWN_SECONDS))

    async def wait_terminal(
        self, execution_id: int, *, tenant_id: str, organization_id: str, timeout_seconds: float
    ) -> ShownExecution:
        """The projection when the execution has ended, or when the time is up."""
        deadline = self._clock.monotonic() + timeout_seconds
        with self._watched.watch(execution_id, until_end=True) as watch:
            while True:
                left = deadline - self._clock.monotonic()
                shown = await self._shown(execution_id, tenant_id, organization_id, is_patient=left > 0)
                if shown is not None and (has_ended(shown.row) or left <= 0):
                    return shown
                await watch.changed(left if shown is not None else min(left, NOT_SHOWN_SECONDS))
                told = self._watched.told(execution_id)
                if told is not None and has_ended(told):
                    # What was just written need not be read.
                    return ShownExecution(row=told, watermark=told.applied_position)

    async def _shown(
        self, execution_id: int, tenant_id: str, organization_id: str, *, is_patient: bool
    ) -> ShownExecution | None:
        """What is shown; nothing for whoever waits anyway while the projection is being made again."""
        try:
            return await self.find(execution_id, tenant_id=tenant_id, organization_id=organization_id)
        except NotShownYet:
            if not is_patient:
                raise
            return None

    async def newest(
        self, *, tenant_id: str, organization_id: str, limit: int, before: int | None = None, status: str | None = None
    ) -> list[ExecutionRow]:
        """The newest executions, or those that are older than one of them."""
        return await self._executions.newest(
            tenant_id=tenant_id, organization_id=organization_id, limit=limit, before=before, status=status
        )
