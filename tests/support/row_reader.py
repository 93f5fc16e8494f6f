"""A process that runs a statement with the postgres tool, stores its rows, and tells how much memory that took.

python -m tests.support.row_reader SOCKET_FOLDER PORT DATABASE FOLDER STATEMENT
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any

from noetl.adapters.arrow.tables import ArrowTables
from noetl.adapters.objects.filesystem import FilePayloads
from tests.support.sql import credential, new_tool, tool_call


class Sink:
    def __init__(self, folder: Path) -> None:
        self._tables = ArrowTables(FilePayloads(folder))

    async def keep(self, source: object) -> dict[str, object]:
        reference = await self._tables.keep(source, tenant_id="acme", organization_id="sales")
        return reference.to_json()

    async def landing_place(self) -> None:
        return None


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def read(host: str, port: str, database: str, folder: Path, statement: str) -> dict[str, object]:
    auth = credential(db_host=host, db_port=int(port), db_user="noetl", db_name=database)
    sink = Sink(folder)
    tool = new_tool()
    await tool.start()
    try:
        # Everything is loaded and at its place before it is measured.
        warm = "SELECT g, g::text AS t, now() AS n, g / 3.0 AS m FROM generate_series(1, 50000) AS g"
        await tool.run(tool_call(auth, {"command": warm}, tables=sink))
        before = peak_bytes()
        result = await tool.run(tool_call(auth, {"command": statement}, tables=sink, timeout_seconds=600))
    finally:
        await tool.close()
    assert result.failure is None, result.failure
    reference: Any = result.parts[("rows",)]
    return {"reference": reference, "grown": peak_bytes() - before}


if __name__ == "__main__":
    host, port, database, folder, statement = sys.argv[1:]
    print(json.dumps(asyncio.run(read(host, port, database, Path(folder), statement))))
