"""Calling a tool: credentials are resolved just before, and what they hold is scrubbed from everything just after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from noetl.core.errors import Failure, ToolFailed
from noetl.engine.work.calling.auth import resolve_auth
from noetl.engine.work.calling.body_sink import PayloadBodySink
from noetl.engine.work.calling.redact import Redactor
from noetl.engine.work.parts import WorkerParts
from noetl.ports.session import CommandMessage
from noetl.ports.tool import ToolCall, ToolResult

_AUTH_FIELDS = ("auth", "credential")


class Caller:
    """Belongs to one command or frame, and so do the secrets that it has seen."""

    def __init__(self, parts: WorkerParts, message: CommandMessage) -> None:
        self._tools = parts.tools
        self._credentials = parts.credentials
        self._owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
        self._redactor = Redactor()
        self.sink = PayloadBodySink(parts.payloads, redactor=self._redactor, **self._owner)
        self._has_seen_secrets = False

    async def run(self, kind: str, call: ToolCall) -> ToolResult:
        tool = self._tools.get(kind)
        if tool is None:
            message = f"tool kind {kind!r} is not available in this installation"
            raise ToolFailed(Failure(kind="unsupported", message=message))
        equipped = await self._equipped(call)
        try:
            result = await tool.run(equipped)
        except ToolFailed as error:
            result = ToolResult(value=error.data, failure=error.failure)
        return self._scrubbed(result) if self._has_seen_secrets else result

    async def _equipped(self, call: ToolCall) -> ToolCall:
        auth = call.fields.get("auth")
        if auth is None:
            auth = call.fields.get("credential")  # the older spelling
        if auth is None:
            return call
        resolved = await resolve_auth(auth, self._credentials, **self._owner)
        for credential in resolved.values() if isinstance(resolved, Mapping) else (resolved,):
            if credential is not None:
                self._redactor.learn(credential)
                self._has_seen_secrets = True
        fields = {name: value for name, value in call.fields.items() if name not in _AUTH_FIELDS}
        return replace(call, auth=resolved, fields=fields)

    def _scrubbed(self, result: ToolResult) -> ToolResult:
        scrub: Any = self._redactor.scrub
        failure = result.failure
        if failure is not None:
            failure = replace(failure, message=scrub(failure.message), details=scrub(failure.details))
        return replace(
            result,
            value=scrub(result.value),
            failure=failure,
            stdout=scrub(result.stdout),
            traceback=scrub(result.traceback),
            facts=scrub(result.facts),
        )
