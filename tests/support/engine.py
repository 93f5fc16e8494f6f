"""The embedded engine in the test's own process, on a fresh database of the shared server."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noetl.core.event import Event
from noetl.core.execution.state import ExecutionState, Status
from noetl.engine.catalog import Registered
from noetl.engine.executions import Origin, StartRequest
from noetl.ports.tool import Tool
from noetl.settings import read_settings
from noetl.wiring.databases import prepare_database
from noetl.wiring.engine import Engine

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: test}\n"
# A driver of Spark may have to start first, on a machine that is busy.
FINISH_SECONDS_MAX = 110.0
OWNER = {"tenant_id": "default", "organization_id": "default"}


@dataclass(frozen=True, slots=True)
class _Owner:
    tenant_id: str = OWNER["tenant_id"]
    organization_id: str = OWNER["organization_id"]


@dataclass(frozen=True, slots=True)
class Told:
    """One finished execution with its story."""

    state: ExecutionState
    result: Any
    events: list[Event]

    def of_type(self, event_type: str) -> list[Event]:
        return [event for event in self.events if event.event_type == event_type]


def completed(told: Told) -> Any:
    """The result of an execution that must have come to a good end."""
    assert told.state.status is Status.COMPLETED, told.state.failure
    return told.result


@dataclass(frozen=True, slots=True)
class Running:
    engine: Engine

    async def start(self, body: str, payload: Mapping[str, object] | None = None, key: str | None = None) -> int:
        request = StartRequest(
            text=HEAD + textwrap.dedent(body), file="test.yaml", payload=payload or {}, idempotency_key=key, **OWNER
        )
        return (await self.engine.service.start(request)).execution_id

    async def start_version(self, path: str, version: int | None = None) -> int:
        """Start a playbook of the catalog."""
        found = await self.engine.catalog.find(path, version=version, owner=_Owner())
        request = StartRequest(text=found.text, file=path, payload={}, **OWNER)
        return (await self.engine.service.start(request, Origin(entry=found.entry))).execution_id

    async def finish(self, execution_id: int) -> Told:
        state = await self.engine.service.wait_terminal(execution_id, timeout_seconds=FINISH_SECONDS_MAX, **OWNER)
        assert state.is_terminal, state
        result = await self.engine.service.result(state)
        return Told(state, result, await self.engine.ledger.read_execution(execution_id))

    async def run(self, body: str, payload: Mapping[str, object] | None = None) -> Told:
        return await self.finish(await self.start(body, payload))

    async def register(self, path: str, body: str) -> Registered:
        """Put a playbook into the catalog."""
        text = HEAD.replace("name: test", f"name: test, path: {path}") + textwrap.dedent(body)
        return await self.engine.catalog.register(text, file="registered.yaml", owner=_Owner())

    async def state(self, execution_id: int) -> ExecutionState:
        return await self.engine.service.state(execution_id, **OWNER)

    async def until(self, execution_id: int, holds: Callable[[ExecutionState], object]) -> ExecutionState:
        """The first state for which something holds."""
        async with asyncio.timeout(60):
            with self.engine.watchers.watch(execution_id) as watch:
                while not holds(state := await self.state(execution_id)):
                    await watch.changed(1)
        return state

    async def cancel(self, execution_id: int, reason: str = "enough") -> ExecutionState:
        return await self.engine.service.cancel(execution_id, reason=reason, **OWNER)


@asynccontextmanager
async def running_engine(
    address: str,
    home: Path,
    variables: Mapping[str, str] | None = None,
    *,
    tools: Mapping[str, Tool] | None = None,
    has_worker: bool = True,
) -> AsyncIterator[Running]:
    """`variables` are more of the environment of the process, `tools` stand in for installed ones."""
    settings = read_settings({"NOETL_HOME": str(home), **(variables or {})})
    await prepare_database(settings, address, is_embedded=True)
    engine = Engine(settings, address, instance="test", has_worker=has_worker)
    engine.tools = {**engine.tools, **(tools or {})}
    await engine.open()
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(engine.run())
            await engine.is_restored.wait()
            yield Running(engine)
            running.cancel()
    finally:
        await engine.close()
