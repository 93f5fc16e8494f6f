"""Large JSON and long texts as answers of `http`: stored once, with an index, never held; and the same values."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from noetl.adapters.objects.filesystem import FilePayloads
from noetl.clients.http.body import content_type, decoded
from noetl.core import limits
from noetl.core.secret import Secret
from noetl.engine.payloads import Payloads
from noetl.engine.work.calling.body_sink import PayloadBodySink
from noetl.engine.work.calling.redact import Redactor
from noetl.ports.secrets import Credential
from noetl.ports.tool import ToolResult
from noetl.tools.http import reading
from tests.support.aio import asynchronous
from tests.support.web import http_call, http_tool, web_server

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
PARTS = {("data",), ("body",)}


class Store:
    """A store of payloads and the sink into it."""

    def __init__(self, folder: Path, redactor: Redactor | None = None) -> None:
        self._folder = folder
        files = FilePayloads(folder)
        self.payloads = Payloads(small=files, large=files)
        self.sink = PayloadBodySink(self.payloads, redactor=redactor, **OWNER)

    def files(self) -> list[Path]:
        return [path for path in self._folder.rglob("*") if path.is_file()]

    async def value(self, result: ToolResult) -> Any:
        """What both names of the body lead to."""
        assert set(result.parts) == PARTS
        assert result.parts[("data",)] == result.parts[("body",)]
        assert result.value["data"] is None  # type: ignore[index]
        assert result.value["body"] is None  # type: ignore[index]
        return await self.payloads.read_json(result.parts[("data",)], **OWNER)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


async def asked(store: Store, chunks: Iterator[bytes], header: str = "application/json", **fields: Any) -> ToolResult:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": header}, status=fields.pop("status", 200))
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        return response

    async with web_server(handler) as port, http_tool() as tool:
        # Not a matter of time: under a busy processor so much text takes its while.
        call = http_call(f"http://127.0.0.1:{port}/", **{"sink": store.sink, "timeout_seconds": 120.0, **fields})
        return await tool.run(call)


def rows(count: int) -> Iterator[bytes]:
    yield b'{"paging": {"next": 2}, "rows": ['
    for number in range(count):
        yield (b", " if number else b"") + json.dumps({"n": number, "text": "é" * 50, "m": number / 3}).encode()
    yield b'], "end": NaN}'


@asynchronous
async def test_large_json_is_stored_once_with_an_index_and_never_held(store: Store) -> None:
    count = 60_000
    size = sum(map(len, rows(count)))
    assert size > 16 * 1024 * 1024
    tracemalloc.start()
    try:
        result = await asked(store, rows(count))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.failure is None
    assert peak < size // 2
    reference = result.parts[("body",)]
    stored = [path for path in store.files() if path.stat().st_size > 1024 * 1024]
    assert [path.stat().st_size for path in stored] == [reference["bytes"]]
    root = await store.payloads.read_index(reference, **OWNER)
    assert root is not None
    inner = root.parts[1].inner
    assert inner is not None
    part = inner.part_at(50_000)
    (members,) = await store.payloads.read_parts(reference, [(True, part)], **OWNER)
    assert members[50_000 - part.first] == {"n": 50_000, "text": "é" * 50, "m": 50_000 / 3}
    value = await store.value(result)
    assert value == decoded(b"".join(rows(count)), content_type("application/json"), response_type="auto")
    assert value["end"] is None


LONG = b"x" * (limits.HTTP_VALUE_BYTES_MAX + 10)
ODD = {
    "no JSON": (b"[1, 2" + LONG, "auto", "application/json"),
    "one key twice": (b'{"a": 1, "b": "' + LONG + b'", "a": 2}', "auto", "application/json"),
    "latin": (b'["\xe9' + LONG + b'"]', "auto", "application/json; charset=latin-1"),
    "not UTF-8": (b'["\xe9' + LONG + b'"]', "auto", "application/json"),
    "nested too deeply": (b"[" * 5_000 + b'"' + LONG + b'"' + b"]" * 5_000, "auto", "application/json"),
    "a text": (b'"' + LONG + b'"', "json", "text/plain"),
    "many keys": (json.dumps({f"key {n}": "x" * 30 for n in range(70_000)}).encode(), "auto", "application/json"),
}


@pytest.mark.parametrize("name", list(ODD))
@asynchronous
async def test_odd_json_is_read_as_a_whole_and_has_the_same_value(store: Store, name: str) -> None:
    content, response_type, header = ODD[name]
    result = await asked(store, iter([content]), header, response_type=response_type)
    assert result.failure is None
    expected = decoded(content, content_type(header), response_type=response_type)
    value: Any = result.value
    assert value["data"] == value["body"] == expected
    assert result.parts == {}
    assert store.files() == []


@asynchronous
async def test_what_is_not_the_json_that_was_demanded_is_a_failure(store: Store) -> None:
    result = await asked(store, iter([b"[1, 2" + LONG]), "text/plain", response_type="json")
    assert result.failure is not None
    assert result.failure.code == "JSON_INVALID"
    assert result.value["data"].startswith("[1, 2xxx")  # type: ignore[index]


@asynchronous
async def test_an_error_answer_keeps_its_large_body(store: Store) -> None:
    result = await asked(store, rows(30_000), status=500)
    assert result.failure is not None
    assert result.failure.kind == "server_error"
    assert (await store.value(result))["paging"] == {"next": 2}


@asynchronous
async def test_json_beyond_the_limit_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RESULT_BYTES_MAX", 4 * 1024 * 1024)
    result = await asked(store, rows(60_000))
    assert result.failure is not None
    assert (result.failure.kind, result.failure.code) == ("storage_quota", "BODY_TOO_LARGE")
    assert store.files() == []


@asynchronous
async def test_a_long_text_is_stored_once(store: Store) -> None:
    text = "é" * (limits.HTTP_VALUE_BYTES_MAX + 1)
    result = await asked(store, iter([text.encode()]), "text/plain; charset=utf-8")
    assert result.failure is None
    assert await store.value(result) == text
    assert len(store.files()) == 1


@pytest.mark.parametrize("header", ["application/json", "text/plain"])
@asynchronous
async def test_a_body_with_a_credential_in_it_stays_a_value_which_can_be_scrubbed(tmp_path: Path, header: str) -> None:
    redactor = Redactor()
    redactor.learn(Credential(name="c", type="bearer", data=Secret({"token": "canary-3d07e9b2"})))
    store = Store(tmp_path, redactor)
    content = b'["' + LONG + b'", {"token": "canary-3d07e9b2"}]'
    result = await asked(store, iter([content]), header, response_type="json" if "json" in header else "text")
    assert result.failure is None
    assert result.parts == {}
    assert "canary" in str(result.value["data"])  # type: ignore[index]
    assert "canary" not in str(redactor.scrub(result.value))
    assert store.files() == []


@asynchronous
async def test_a_server_that_goes_away_in_the_middle_leaves_nothing(store: Store) -> None:
    def broken() -> Iterator[bytes]:
        yield from rows(60_000)
        raise ConnectionResetError

    result = await asked(store, broken())
    assert result.failure is not None
    assert result.failure.kind == "connection"
    assert store.files() == []
