"""A process that asks for a body with the http tool, stores it in files, and tells how much memory that took.

python -m tests.support.body_reader URL FOLDER [RESPONSE_TYPE]
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any

from noetl.adapters.objects.filesystem import FilePayloads
from noetl.engine.payloads import Payloads
from noetl.engine.work.calling.body_sink import PayloadBodySink
from noetl.ports.tool import ToolResult
from tests.support.web import http_call, http_tool

ADDRESS_SPACE_BYTES = 1024**3


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def read(url: str, folder: Path, response_type: str) -> dict[str, object]:
    files = FilePayloads(folder)
    payloads = Payloads(small=files, large=files)
    sink = PayloadBodySink(payloads, tenant_id="acme", organization_id="sales")
    async with http_tool() as tool:
        # Everything is loaded and at its place before it is measured.
        await tool.run(http_call(f"{url.partition('?')[0]}?bytes=20000000", sink=sink))
        before = peak_bytes()
        call = http_call(url, sink=sink, timeout_seconds=3600, response_type=response_type)
        result: ToolResult = await tool.run(call)
    value: Any = result.value
    assert result.failure is None, result.failure
    reference: Any = result.parts.get(("data",)) or value["data"]["_ref"]
    return {"bytes": reference["bytes"], "reference": reference, "grown": peak_bytes() - before}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    print(json.dumps(asyncio.run(read(sys.argv[1], Path(sys.argv[2]), *(sys.argv[3:] or ["auto"])))))
