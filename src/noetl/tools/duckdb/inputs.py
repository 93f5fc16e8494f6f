"""Values of a call's input as tables: what is a table stays one, lists of rows become one.  Anything else is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from noetl.core.limits import DUCKDB_TABLES_MAX
from noetl.ports.data.tables import OpenTable
from noetl.ports.tool import TableInput, ToolCall
from noetl.tools.duckdb.failures import failed

Source = dict[str, object]
"""As the child is told of it: a name, with a place in a file or with the rows themselves."""


async def opened_sources(call: ToolCall, stack: AsyncExitStack) -> list[Source]:
    """Every table of the input, open until the stack is left.  Raises ToolFailed."""
    sources: list[Source] = []
    for name, value in call.input.items():
        table = call.given_tables.get((name,)) or call.given_tables.get((name, "rows"))
        source = await _mapped(table, stack) if table is not None else _listed(value)
        if source is not None:
            sources.append({"name": name, **source})
    if len(sources) > DUCKDB_TABLES_MAX:
        raise failed("config", f"input has {len(sources)} tables, at most {DUCKDB_TABLES_MAX}")
    return sources


async def _mapped(table: TableInput, stack: AsyncExitStack) -> Source:
    opened: OpenTable = await table.open()
    stack.callback(opened.close)
    file = await opened.looked(opened.mapped)
    return {"path": str(file.path), "offset": file.offset, "length": file.length}


def _listed(value: object) -> Source | None:
    """Rows that are plain data: a list of them, or a result with a list of them."""
    if isinstance(value, Mapping):
        rows, columns = value.get("rows"), value.get("columns")
        if not isinstance(rows, list | tuple):
            return None
        known = list(columns) if isinstance(columns, list | tuple) else []
        return {"rows": _rows(rows), "columns": [str(name) for name in known]}
    if isinstance(value, list | tuple):
        return {"rows": _rows(value), "columns": []}
    return None


def _rows(rows: Sequence[Any]) -> list[Mapping[str, object]]:
    """A list of anything else is a table with one column."""
    return [row if isinstance(row, Mapping) else {"value": row} for row in rows]
