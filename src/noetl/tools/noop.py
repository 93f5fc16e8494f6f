"""`noop`: gives back what it was given.  The carrier of policies, `set` and routing."""

from __future__ import annotations

from noetl.ports.tool import ToolCall, ToolResult, ToolSettings


class NoopTool:
    kind = "noop"

    def __init__(self, settings: ToolSettings) -> None:
        del settings

    async def start(self) -> None:
        return None

    async def run(self, call: ToolCall) -> ToolResult:
        return ToolResult(value=call.fields.get("result", {}))

    async def close(self) -> None:
        return None
