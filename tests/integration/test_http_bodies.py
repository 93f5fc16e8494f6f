"""Large answers through the whole engine: the body goes to the payload store as it arrives, the result names it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from aiohttp import web

from noetl.core.limits import HTTP_BODY_BYTES_IN_MEMORY_MAX
from noetl.core.reference import reference_from_json
from noetl.processes.server.owners import Owner
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import OWNER, running_engine
from tests.support.web import web_server

CHUNK = b"0123456789abcdef" * 4096
CHUNKS = HTTP_BODY_BYTES_IN_MEMORY_MAX // len(CHUNK) + 3


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


async def large(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    await response.prepare(request)
    for _ in range(CHUNKS):
        await response.write(CHUNK)
    return response


@asynchronous
async def test_a_large_body_is_a_payload_that_the_result_names(address: str, tmp_path: Path) -> None:
    async with web_server(large) as port, running_engine(address, tmp_path) as engine:
        told = await engine.run(f"""
        workflow:
          - step: start
            tool: {{kind: http, url: "http://127.0.0.1:{port}/"}}
        """)
        assert told.state.failure is None
        body = told.result["data"]
        assert body["bytes"] == CHUNKS * len(CHUNK)
        content = await engine.engine.payloads.read(reference_from_json(body["_ref"]), **OWNER)
    assert hashlib.sha256(content).hexdigest() == hashlib.sha256(CHUNK * CHUNKS).hexdigest()
    assert all(len(str(event.result)) < 2_000 for event in told.events)


async def telling(request: web.BaseRequest) -> web.StreamResponse:
    """Sends back, late and cut in two, what it was given."""
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    await response.prepare(request)
    for _ in range(CHUNKS):
        await response.write(CHUNK)
    secret = request.headers["Authorization"].encode()
    await response.write(secret[:-5])
    await response.write(secret[-5:])
    return response


@asynchronous
async def test_a_large_body_with_a_credential_in_it_is_not_stored(address: str, tmp_path: Path) -> None:
    canary = "canary-3d07e9b2"
    async with web_server(telling) as port, running_engine(address, tmp_path) as engine:
        await engine.engine.credentials.put(
            "canary", type="bearer", data={"token": canary}, owner=Owner("default", "default")
        )
        told = await engine.run(f"""
        workflow:
          - step: start
            tool: {{kind: http, url: "http://127.0.0.1:{port}/", auth: canary}}
        """)
    assert told.state.failure is not None
    assert "SECRET_IN_BODY" in str(told.state.failure)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if canary.encode() in path.read_bytes()]
