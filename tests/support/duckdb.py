"""Calls of the duckdb tool with tables that are kept in files of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from noetl.adapters.arrow.tables import ArrowTables
from noetl.adapters.objects.filesystem import FilePayloads
from noetl.core.reference import Reference, reference_from_json
from noetl.ports.data.tables import OpenTable
from noetl.ports.tool import ToolCall, ToolResult, ToolSettings
from noetl.tools.duckdb.tool import DuckdbTool

OWNER: dict[str, Any] = {"tenant_id": "default", "organization_id": "default"}


@dataclass(frozen=True, slots=True)
class KeptTable:
    """A stored table as the input of a call."""

    tables: ArrowTables
    stored: Reference

    @property
    def reference(self) -> Mapping[str, object]:
        return self.stored.to_json()

    async def open(self) -> OpenTable:
        return await self.tables.open(self.stored, **OWNER)


class TableSink:
    def __init__(self, tables: ArrowTables) -> None:
        self._tables = tables

    async def landing_place(self) -> None:
        return None

    async def keep(self, source: object) -> Mapping[str, object]:
        return (await self._tables.keep(source, **OWNER)).to_json()


@dataclass(frozen=True, slots=True)
class Duck:
    """A running tool."""

    tool: DuckdbTool
    tables: ArrowTables
    folder: Path

    async def call(self, sql: object = None, *, execution: int = 7, **more: Any) -> ToolResult:
        fields = {**({} if sql is None else {"query": sql}), **more.pop("fields", {})}
        given = more.pop("tables", {})
        call = ToolCall(
            fields=fields,
            input={**more.pop("input", {}), **dict.fromkeys(given)},
            names={},
            context=None,
            timeout_seconds=more.pop("timeout", 30.0),
            execution_id=execution,
            step="s",
            label="t",
            tables=TableSink(self.tables),
            given_tables={(name,): KeptTable(self.tables, stored) for name, stored in given.items()},
            **OWNER,
        )
        return await self.tool.run(replace(call, **more))

    async def value(self, sql: object = None, **more: Any) -> Any:
        """The value of a call that must succeed, with its rows in place."""
        result = await self.call(sql, **more)
        assert result.failure is None, result.failure
        return await self.filled(result)

    async def filled(self, result: ToolResult) -> Any:
        value: Any = result.value
        for place, reference in result.parts.items():
            opened = await self.tables.open(reference_from_json(reference), **OWNER)
            inner = value
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = opened.rows(0, opened.row_count)
            opened.close()
        return value

    async def rows(self, sql: object = None, **more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.value(sql, **more))["rows"]
        return found

    async def failure(self, sql: object = None, **more: Any) -> Any:
        result = await self.call(sql, **more)
        assert result.failure is not None, result.value
        return result.failure

    async def keep(self, table: Any) -> Reference:
        return await self.tables.keep(table, **OWNER)


@asynccontextmanager
async def duckdb_tool(home: Path, **settings: Any) -> AsyncIterator[Duck]:
    made = ToolSettings(python_children=1, python_memory_bytes=2**30, duckdb_folder=str(home / "duckdb"), **settings)
    tool = DuckdbTool(made)
    await tool.start()
    try:
        yield Duck(tool, ArrowTables(FilePayloads(home / "payloads")), home / "duckdb")
    finally:
        await tool.close()
        await asyncio.sleep(0)
