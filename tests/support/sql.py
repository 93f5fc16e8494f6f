"""Calls of the postgres tool on databases of the shared server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from noetl.core.secret import Secret
from noetl.ports.secrets import Credential
from noetl.ports.tool import ToolCall, ToolResult, ToolSettings
from noetl.tools.postgres.tool import PostgresTool
from tests.support.postgres import RunningServer, shared_server


def credential(name: str = "pg", type_: str = "postgres", **data: object) -> Credential:
    return Credential(name=name, type=type_, data=Secret(data))


def login(database: str, user: str = "noetl", server: RunningServer | None = None, **more: object) -> Credential:
    """A credential for a database of the server."""
    address = (server or shared_server()).address
    fields = {"db_host": str(address.socket_dir), "db_port": address.port, "db_user": user, "db_name": database}
    return credential("pg", "postgres", **fields, **more)


def tool_call(
    auth: Credential | Mapping[str, Credential] | None,
    fields: Mapping[str, object],
    *,
    timeout_seconds: float = 20.0,
    tenant_id: str = "default",
) -> ToolCall:
    return ToolCall(
        fields=fields,
        input={},
        names={},
        context=None,
        timeout_seconds=timeout_seconds,
        tenant_id=tenant_id,
        organization_id="default",
        execution_id=1,
        step="step",
        label="task",
        auth=auth,
    )


class Sql:
    """The tool with one credential."""

    def __init__(self, tool: PostgresTool, auth: Credential) -> None:
        self.tool = tool
        self.auth = auth

    async def run(self, command: object = None, **fields: object) -> ToolResult:
        given = fields if command is None else {"command": command, **fields}
        return await self.tool.run(tool_call(self.auth, given))

    async def value(self, command: object = None, **fields: object) -> dict[str, Any]:
        """The result of a call that must succeed."""
        result = await self.run(command, **fields)
        assert result.failure is None, result.failure
        assert isinstance(result.value, dict)
        return result.value

    async def scalar(self, command: str, **fields: object) -> Any:
        (row,) = (await self.value(command, **fields))["rows"]
        (value,) = row.values()
        return value


def new_tool(private_hosts: tuple[str, ...] = ()) -> PostgresTool:
    return PostgresTool(ToolSettings(python_children=1, python_memory_bytes=1, postgres_private_hosts=private_hosts))


@asynccontextmanager
async def running_sql(database: str, user: str = "noetl") -> AsyncIterator[Sql]:
    tool = new_tool()
    await tool.start()
    try:
        yield Sql(tool, login(database, user))
    finally:
        await tool.close()
