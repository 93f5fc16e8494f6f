"""`http`: one request and its answer as data (dsl §9.3)."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from noetl.clients.http.body import content_type
from noetl.clients.http.exchange import Exchange, limited
from noetl.clients.http.failures import status_failure
from noetl.clients.http.policy import AddressPolicy
from noetl.clients.http.request import HttpRequest, read_request
from noetl.clients.http.sessions import Resolve, Sessions, system_resolve
from noetl.core.errors import ToolFailed
from noetl.ports.tool import Place, ToolCall, ToolResult, ToolSettings
from noetl.tools.http.reading import Body, read_body


class HttpTool:
    kind = "http"

    def __init__(self, settings: ToolSettings, *, resolve: Resolve = system_resolve) -> None:
        self._policy = AddressPolicy(settings.http_allow)
        self._sessions = Sessions(self._policy, resolve)

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        await self._sessions.close()

    async def run(self, call: ToolCall) -> ToolResult:
        try:
            request = read_request(call)
        except ToolFailed as error:
            return ToolResult(failure=error.failure)
        exchange = Exchange(request, self._policy)
        try:
            async with limited(exchange, call.timeout_seconds):
                return await self._perform(call, request, exchange)
        except ToolFailed as error:
            return ToolResult(failure=error.failure)

    async def _perform(self, call: ToolCall, request: HttpRequest, exchange: Exchange) -> ToolResult:
        started = monotonic()
        await self._sessions.trim()
        with self._sessions.session(call.tenant_id, call.organization_id, verify=request.is_verified) as session:
            async with exchange.response(session) as response:
                status, headers = response.status, flat_headers(response.headers)
                failure = status_failure(exchange.method, exchange.url, status, headers)
                kind = content_type(headers.get("content-type", ""))
                try:
                    body = await read_body(response, kind, response_type=request.response_type, sink=call.sink)
                except ToolFailed as error:
                    body, failure = Body(error.data), failure or error.failure
        value = {
            "status_code": status,
            "headers": headers,
            "url": str(exchange.url),
            "elapsed": round(monotonic() - started, 6),
            "data": body.value,
            "body": body.value,
        }
        # Both names of a body that is stored on its own lead to the same payload.
        parts: dict[Place, Mapping[str, object]] = {}
        if body.reference is not None:
            parts = {("data",): body.reference, ("body",): body.reference}
        facts = {"http": {"status": status, "headers": headers}}
        return ToolResult(value=value, parts=parts, failure=failure, facts=facts)


def flat_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Names in lower case, a repeated one joined, and bytes that are no text replaced."""
    flat: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower()
        text = value if value.isascii() else value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        flat[key] = f"{flat[key]}, {text}" if key in flat else text
    return flat
