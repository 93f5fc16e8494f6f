"""Calls of the postgres tool on databases of the shared server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa

from noetl.adapters.arrow.rows import rows_of
from noetl.core.secret import Secret
from noetl.ports.secrets import Credential
from noetl.ports.tool import TableSink, ToolCall, ToolResult, ToolSettings
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
    tables: TableSink | None = None,
    is_row: bool = False,
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
        tables=tables,
        is_row=is_row,
    )


class KeptTables:
    """A sink that holds what it is given: tables by the numbers in their references."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    async def keep(self, source: Any) -> dict[str, object]:
        if hasattr(source, "__arrow_c_stream__"):
            table = pa.RecordBatchReader.from_stream(source).read_all()
        else:
            table = pa.Table.from_batches([batch async for batch in source])
        table.validate(full=True)
        self.all.append(table)
        return {"number": len(self.all) - 1, "row_count": table.num_rows}

    async def landing_place(self) -> None:
        return None

    def rows(self, reference: Mapping[str, Any]) -> list[dict[str, object]]:
        """The rows behind a reference as templates see them."""
        batches = self.all[reference["number"]].to_batches()
        return [row for batch in batches for row in rows_of(batch)]

    def filled(self, result: ToolResult) -> Any:
        """The value of a result with its rows in their places."""
        value: Any = result.value
        for place, reference in result.parts.items():
            subject = value
            for key in place[:-1]:
                subject = subject[key]
            assert subject[place[-1]] is None
            subject[place[-1]] = self.rows(reference)
        return value


class Sql:
    """The tool with one credential; with a sink its rows are tables."""

    def __init__(self, tool: PostgresTool, auth: Credential, tables: KeptTables | None = None) -> None:
        self.tool = tool
        self.auth = auth
        self.tables = tables

    async def run(self, command: object = None, **fields: object) -> ToolResult:
        given = fields if command is None else {"command": command, **fields}
        return await self.tool.run(tool_call(self.auth, given, tables=self.tables))

    async def value(self, command: object = None, **fields: object) -> dict[str, Any]:
        """The result of a call that must succeed."""
        result = await self.run(command, **fields)
        assert result.failure is None, result.failure
        assert isinstance(result.value, dict)
        return result.value if self.tables is None else self.tables.filled(result)

    async def scalar(self, command: str, **fields: object) -> Any:
        (row,) = (await self.value(command, **fields))["rows"]
        (value,) = row.values()
        return value


def new_tool(private_hosts: tuple[str, ...] = ()) -> PostgresTool:
    return PostgresTool(ToolSettings(python_children=1, python_memory_bytes=1, postgres_private_hosts=private_hosts))


@asynccontextmanager
async def running_sql(database: str, user: str = "noetl", *, tables: KeptTables | None = None) -> AsyncIterator[Sql]:
    tool = new_tool()
    await tool.start()
    try:
        yield Sql(tool, login(database, user), tables)
    finally:
        await tool.close()
