"""Waiting for a projection: woken by the projector of this process, and by looking for what others project."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from noetl.core.errors import LedgerUnavailable
from noetl.core.execution.state import Status
from noetl.engine.control.watch import Watch, Watchers
from noetl.ports.ledger import ExecutionRow
from noetl.ports.projections import ExecutionViews

LOOKED_AT_ONCE_MAX = 5_000


class Watched:
    """Who waits for the projection of which execution.  `run` belongs to the caller's task group."""

    def __init__(self, views: ExecutionViews, *, poll_seconds: float) -> None:
        self._views = views
        self._poll_seconds = poll_seconds
        self._watchers = Watchers()
        self._waiting: dict[int, int] = {}
        self._seen: dict[int, tuple[int, str]] = {}
        self._told: dict[int, ExecutionRow] = {}
        self._wake = asyncio.Event()

    def projected(self, rows: Iterable[ExecutionRow]) -> None:
        """These rows are committed."""
        told = list(rows)
        for row in told:
            if row.execution_id in self._waiting:
                self._told[row.execution_id] = row
        ended = [row.execution_id for row in told if row.status != Status.RUNNING]
        self._watchers.notify([row.execution_id for row in told], ended)

    def watch(self, execution_id: int, *, until_end: bool = False) -> Watching:
        return Watching(self, execution_id, self._watchers.watch(execution_id, until_end=until_end))

    def begin(self, execution_id: int) -> None:
        self._waiting[execution_id] = self._waiting.get(execution_id, 0) + 1
        self._wake.set()

    def end(self, execution_id: int) -> None:
        self._waiting[execution_id] -= 1
        if not self._waiting[execution_id]:
            del self._waiting[execution_id]
            self._seen.pop(execution_id, None)
            self._told.pop(execution_id, None)

    def told(self, execution_id: int) -> ExecutionRow | None:
        """The last row of an execution that somebody waits for, if this process has written it."""
        return self._told.get(execution_id)

    async def run(self) -> None:
        """Look, for all who wait together, at what other processes have projected."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await asyncio.sleep(self._poll_seconds)
                try:
                    await self._look()
                except LedgerUnavailable:
                    continue

    async def _look(self) -> None:
        waiting = list(self._waiting)
        for begin in range(0, len(waiting), LOOKED_AT_ONCE_MAX):
            found = await self._views.positions(waiting[begin : begin + LOOKED_AT_ONCE_MAX])
            news = {one: told for one, told in found.items() if one in self._waiting and self._seen.get(one) != told}
            self._seen.update(news)
            for one in news:
                # Others project it as well: only the table knows.
                if one in self._told and self._told[one].applied_position < news[one][0]:
                    del self._told[one]
            self._watchers.notify(news, [one for one, (_, status) in news.items() if status != Status.RUNNING])


class Watching:
    """`with watched.watch(id) as watch:` then look, then `await watch.changed(…)`: no change is missed between."""

    def __init__(self, watched: Watched, execution_id: int, watch: Watch) -> None:
        self._watched = watched
        self._execution_id = execution_id
        self._watch = watch

    def __enter__(self) -> Watch:
        self._watched.begin(self._execution_id)
        return self._watch.__enter__()

    def __exit__(self, *_: object) -> None:
        self._watch.__exit__()
        self._watched.end(self._execution_id)
