"""Small servers on loopback that do exactly what a test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from noetl.clients.http.sessions import Resolve, system_resolve
from noetl.ports.tool import BodySink, ToolCall, ToolSettings
from noetl.tools.http.tool import HttpTool

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def web_server(
    handler: Handler, *hosts: str, tls: ssl.SSLContext | None = None, port: int = 0
) -> AsyncIterator[int]:
    """Serves a handler at one port of some addresses, 127.0.0.1 unless they are named."""
    runner = web.ServerRunner(web.Server(handler, access_log=None))
    await runner.setup()
    try:
        for host in hosts or ("127.0.0.1",):
            await web.TCPSite(runner, host, port, ssl_context=tls).start()
            port = runner.addresses[0][1]
        yield port
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw_server(talk: Talk) -> AsyncIterator[int]:
    """Serves bytes as they are, for what no proper server would say."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def http_tool(*allow: str, resolve: Resolve = system_resolve) -> AsyncIterator[HttpTool]:
    """The tool, allowed to reach loopback unless something else is named."""
    settings = ToolSettings(python_children=1, python_memory_bytes=1, http_allow=allow or ("loopback",))
    tool = HttpTool(settings, resolve=resolve)
    await tool.start()
    try:
        yield tool
    finally:
        await tool.close()


def http_call(
    url: object = None,
    *,
    given: dict[str, object] | None = None,
    auth: object = None,
    sink: BodySink | None = None,
    timeout_seconds: float = 20.0,
    tenant_id: str = "acme",
    **fields: object,
) -> ToolCall:
    """A call with these fields; `given` is its `input`."""
    return ToolCall(
        fields={"url": url, **fields},
        input=given or {},
        names={},
        context=None,
        timeout_seconds=timeout_seconds,
        tenant_id=tenant_id,
        organization_id="sales",
        execution_id=1,
        step="load",
        label="load_task",
        auth=auth,  # type: ignore[arg-type]
        sink=sink,
    )
