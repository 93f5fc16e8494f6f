"""`python`: user code in a warm child process, never in the worker."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from noetl.core.errors import Failure, ToolFailed
from noetl.ports.tool import ToolCall, ToolResult, ToolSettings
from noetl.tools.python.environment import environment_of
from noetl.tools.python.pool import ChildPool, PythonTask


class PythonTool:
    """Runs code and, because it owns the children, renders templates that need a time limit."""

    kind = "python"

    def __init__(self, settings: ToolSettings) -> None:
        self._pool = ChildPool(children_max=settings.python_children, memory_bytes_max=settings.python_memory_bytes)

    async def start(self) -> None:
        await self._pool.start()

    async def close(self) -> None:
        await self._pool.close()

    async def run(self, call: ToolCall) -> ToolResult:
        code = _code(call.fields) if call.script is None else call.script.text
        if isinstance(code, Failure):
            return ToolResult(failure=code)
        try:
            environment = environment_of(call)
        except ToolFailed as error:
            return ToolResult(failure=error.failure)
        libs = call.fields.get("libs")
        run = self._pool.run_row if call.is_row else self._pool.run
        outcome = await run(
            PythonTask(
                code=code,
                input=call.input,
                names=call.names,
                context=call.context,
                libs=libs if isinstance(libs, dict) else {},
                env=environment,
                timeout_seconds=call.timeout_seconds,
                filename=f"<{call.step}/{call.label}>" if call.script is None else call.script.name,
            ),
            tenant=call.tenant_id,
            organization=call.organization_id,
        )
        return ToolResult(
            value=outcome.value,
            failure=outcome.failure,
            stdout=outcome.stdout,
            traceback=outcome.traceback,
            facts={"pid": outcome.pid},
        )

    async def render(
        self,
        source: object,
        names: Mapping[str, object],
        *,
        now: str | None,
        timeout_seconds: float,
        tenant: str,
        organization: str,
        strict: bool = False,
    ) -> object:
        return await self._pool.render(
            source,
            names,
            now=now,
            timeout_seconds=timeout_seconds,
            tenant=tenant,
            organization=organization,
            strict=strict,
        )


def _code(fields: Mapping[str, object]) -> str | Failure:
    """The program text: `code_b64` before `code`."""
    encoded = fields.get("code_b64")
    if encoded is not None:
        try:
            return base64.b64decode(str(encoded), validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError) as error:
            return Failure(kind="config", message=f"python: code_b64 is not base64 of UTF-8 text: {error}")
    code = fields.get("code")
    if code is None:
        return Failure(kind="config", message="python: one of script, code_b64 or code is required")
    return str(code)
