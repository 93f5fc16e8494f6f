"""`playbook`: starts another playbook.  The engine does that itself: waiting for an execution must hold no slot and
outlive the worker, which no tool can.  This module says that the kind exists."""

from __future__ import annotations

from noetl.core.errors import Failure
from noetl.ports.tool import ToolCall, ToolResult, ToolSettings


class PlaybookTool:
    kind = "playbook"

    def __init__(self, settings: ToolSettings) -> None:
        del settings

    async def start(self) -> None:
        return None

    async def run(self, call: ToolCall) -> ToolResult:
        message = f"step {call.step!r}, task {call.label!r}: a playbook is started by the engine and not by a tool"
        return ToolResult(failure=Failure(kind="unsupported", message=message))

    async def close(self) -> None:
        return None
