"""`python`: user code in a warm child process, never in the worker."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from noetl.core.errors import Failure, ToolFailed
from noetl.ports.tool import Place, ToolCall, ToolResult, ToolSettings
from noetl.tools.python.child.landing import TABLE_GONE
from noetl.tools.python.environment import environment_of
from noetl.tools.python.landed import GivenTables, LandingFolder, kept_parts, may_make_tables
from noetl.tools.python.pool import ChildPool, PythonTask

TABLE_TRIES = 3
"""How often a table is looked for when the copy that was found is gone before code could begin."""


class PythonTool:
    """Runs code and, because it owns the children, renders templates that need a time limit."""

    kind = "python"
    opens_tables = True

    def __init__(self, settings: ToolSettings) -> None:
        self._landing = LandingFolder(settings.landing)
        self._pool = ChildPool(children_max=settings.python_children, memory_bytes_max=settings.python_memory_bytes)

    async def start(self) -> None:
        await self._pool.start()

    async def close(self) -> None:
        await self._pool.close()
        self._landing.close()

    async def run(self, call: ToolCall) -> ToolResult:
        code = _code(call.fields) if call.script is None else call.script.text
        if isinstance(code, Failure):
            return ToolResult(failure=code)
        try:
            environment = environment_of(call)
        except ToolFailed as error:
            return ToolResult(failure=error.failure)
        for _ in range(TABLE_TRIES - 1):
            result = await self._given(call, code, environment)
            if result.failure is None or result.failure.code != TABLE_GONE:
                return result
        return await self._given(call, code, environment)

    async def _given(self, call: ToolCall, code: str, environment: Mapping[str, str]) -> ToolResult:
        given = GivenTables(self._landing.path)
        try:
            return await self._run(call, code, environment, *await given.prepare(call))
        except ToolFailed as error:
            return ToolResult(failure=error.failure)
        finally:
            given.close()

    async def _run(
        self,
        call: ToolCall,
        code: str,
        environment: Mapping[str, str],
        input_: Mapping[str, object],
        tables: Mapping[str, object] | None,
    ) -> ToolResult:
        libs = call.fields.get("libs")
        run = self._pool.run_row if call.is_row else self._pool.run
        can_land = call.tables is not None and call.sink is not None
        shared = await call.tables.landing_place() if call.tables is not None and may_make_tables(code) else None
        outcome = await run(
            PythonTask(
                code=code,
                input=input_,
                names=call.names,
                context=call.context,
                libs=libs if isinstance(libs, dict) else {},
                env=environment,
                timeout_seconds=call.timeout_seconds,
                filename=f"<{call.step}/{call.label}>" if call.script is None else call.script.name,
                landing=str(self._landing.path) if can_land else None,
                shared=(str(shared.folder), shared.prefix, shared.offset, shared.bytes_max)
                if shared is not None
                else None,
                tables=tables,
            ),
            tenant=call.tenant_id,
            organization=call.organization_id,
            log=call.log,
        )
        if outcome.dropped_chars and call.log is not None:
            call.log.left_out(outcome.dropped_chars)
        value = outcome.value
        parts: Mapping[Place, Mapping[str, object]] = {}
        if outcome.landed:
            with self._landing.in_hand(outcome.landed):
                value, parts = await kept_parts(self._landing.path, shared, outcome, call)
        elif not outcome.is_answered:
            self._landing.forget(outcome.pid, shared)
        return ToolResult(
            value=value,
            parts=parts,
            failure=outcome.failure,
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
