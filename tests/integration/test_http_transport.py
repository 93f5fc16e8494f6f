"""`http` against servers that say exactly what a test wants: bodies of every kind, broken answers, TLS, connections."""

from __future__ import annotations

import asyncio
import base64
import datetime
import errno
import gzip
import ipaddress
import json
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from noetl.adapters.objects.filesystem import FilePayloads
from noetl.clients.http import sessions as sessions_module
from noetl.core import limits
from noetl.core.codec import canonical_bytes
from noetl.core.reference import reference_from_json
from noetl.core.results.index import Node
from noetl.engine.payloads import Payloads
from noetl.engine.work.calling.body_sink import PayloadBodySink
from noetl.ports.tool import BodySink, ToolResult
from noetl.tools.http import reading
from tests.support.aio import asynchronous
from tests.support.web import http_call, http_tool, raw_server, web_server

MIB = 1024 * 1024


async def answered(
    content: bytes, content_type: str, *, headers: Mapping[str, str] | None = None, **fields: Any
) -> ToolResult:
    """The result of a call that is answered with these bytes."""

    async def handler(_request: web.BaseRequest) -> web.Response:
        return web.Response(body=content, headers={**(headers or {}), "Content-Type": content_type})

    async with web_server(handler) as port, http_tool() as tool:
        return await tool.run(http_call(f"http://127.0.0.1:{port}/", **fields))


# --- decoding --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "content_type", "response_type", "expected"),
    [
        (b'{"a": 1}', "application/json", "auto", {"a": 1}),
        (b'{"a": 1}', "application/problem+json; charset=utf-8", "auto", {"a": 1}),
        (b'{"a": 1}', "text/plain", "auto", {"a": 1}),
        (b"[1, 2]", "application/octet-stream", "auto", [1, 2]),
        (b"12", "text/plain", "auto", 12),
        (b"12", "text/plain", "text", "12"),
        (b'{"a": 1}', "application/json", "text", '{"a": 1}'),
        (b'{"a": 1}', "text/html", "json", {"a": 1}),
        (b"<p>x</p>", "text/html", "auto", "<p>x</p>"),
        (b"not json", "application/json", "auto", "not json"),
        ("é€".encode(), "text/plain", "auto", "é€"),
        ("é".encode("latin-1"), "text/plain; charset=ISO-8859-1", "auto", "é"),
        ("é€".encode("utf-16"), 'text/plain; charset="utf-16"', "auto", "é€"),
        (b"\xff\xfe\xfa", "text/plain", "auto", "\ufffd\ufffd\ufffd"),
        (b"x", "text/plain; charset=no-such", "auto", "x"),
        (b"x", "text/plain; charset=idna", "auto", "x"),
        (b"\x89PNG\x00", "image/png", "auto", base64.b64encode(b"\x89PNG\x00").decode()),
        (b"plain", "application/pdf", "auto", base64.b64encode(b"plain").decode()),
        (b"plain", "text/plain", "binary", base64.b64encode(b"plain").decode()),
        (b"\x00\x01", "application/octet-stream", "auto", base64.b64encode(b"\x00\x01").decode()),
        (b"<svg/>", "image/svg+xml", "auto", "<svg/>"),
        (b"", "application/json", "auto", None),
        (b"", "text/plain", "auto", ""),
        (b"", "image/png", "auto", ""),
        (b"\xef\xbb\xbf{}", "application/json", "auto", {}),
        (b'{"n": NaN, "m": [Infinity, -Infinity, 1e999]}', "application/json", "auto", {"n": None, "m": [None] * 3}),
        (
            b'{"big": 123456789012345678901234567890}',
            "application/json",
            "auto",
            {"big": 123456789012345678901234567890},
        ),
        (b'["\\ud800x"]', "application/json", "auto", ["?x"]),
        (b'["\\ud83d\\ude00"]', "application/json", "auto", ["\U0001f600"]),
        (b'["a\xff"]', "application/json", "auto", ["a\ufffd"]),
        (b'["\xe9"]', "application/json; charset=latin-1", "auto", ["é"]),
        ('["é"]'.encode("utf-16"), "application/json; charset=utf-16", "auto", ["é"]),
        (b"[" * 100_000, "text/plain", "auto", "[" * 100_000),
    ],
)
@asynchronous
async def test_a_body_is_decoded_by_its_type(
    content: bytes, content_type: str, response_type: str, expected: object
) -> None:
    result = await answered(content, content_type, response_type=response_type)
    assert result.failure is None
    value: Any = result.value
    assert value["data"] == expected
    assert type(value["data"]) is type(expected)
    assert value["body"] == expected
    canonical_bytes(value)


@asynchronous
async def test_json_that_was_demanded_and_is_not_there_is_a_parse_failure_with_the_text() -> None:
    for content in (b"<p>sorry</p>", b"[" * 100_000):
        result = await answered(content, "text/html", response_type="json")
        assert result.failure is not None
        assert (result.failure.kind, result.failure.retryable) == ("parse", False)
        assert result.value["data"] == content.decode()  # type: ignore[index]


@asynchronous
async def test_headers_that_are_no_text_can_still_be_recorded() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX-A: \xff\xfe\r\nX-B: 1\r\nX-B: 2\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()

    async with raw_server(talk) as port, http_tool() as tool:
        result = await tool.run(http_call(f"http://127.0.0.1:{port}/"))
    value: Any = result.value
    assert value["data"] == "ok"
    assert value["headers"] == {"x-a": "\ufffd\ufffd", "x-b": "1, 2", "content-length": "2"}
    canonical_bytes(value)


# --- large bodies ----------------------------------------------------------------------------------------


class Counting:
    """A sink that keeps nothing."""

    def __init__(self) -> None:
        self.bytes = self.chunk_bytes_max = 0
        self.media_type = ""

    async def keep(self, chunks: AsyncIterator[bytes], *, media_type: str) -> Mapping[str, object]:
        self.media_type = media_type
        async for chunk in chunks:
            self.bytes += len(chunk)
            self.chunk_bytes_max = max(self.chunk_bytes_max, len(chunk))
        return {"uri": "noetl://kept", "bytes": self.bytes}

    async def keep_json(self, chunks: AsyncIterator[bytes], *, index: Callable[[], Node]) -> Mapping[str, object]:
        kept = await self.keep(chunks, media_type="application/json")
        return {**kept, "index": index().count}


async def streamed(
    total: int, *, sink: BodySink | None, content_type: str, length: bool = False, **fields: Any
) -> ToolResult:
    """The result of a call that is answered with so many bytes, piece by piece."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": content_type})
        if length:
            response.content_length = total
        await response.prepare(request)
        piece = b"x" * 65_536
        for start in range(0, total, len(piece)):
            await response.write(piece[: total - start])
        await response.write_eof()
        return response

    async with web_server(handler) as port, http_tool() as tool:
        return await tool.run(http_call(f"http://127.0.0.1:{port}/", sink=sink, **fields))


@pytest.mark.parametrize("length", [True, False], ids=["known length", "chunked"])
@asynchronous
async def test_a_large_body_is_stored_and_the_value_is_its_reference(tmp_path: Path, length: bool) -> None:
    payloads = Payloads(small=FilePayloads(tmp_path), large=FilePayloads(tmp_path))
    owner = {"tenant_id": "acme", "organization_id": "sales"}
    sink = PayloadBodySink(payloads, **owner)
    total = limits.HTTP_BODY_BYTES_IN_MEMORY_MAX + 100_001
    result = await streamed(total, sink=sink, content_type="text/csv; header=present", length=length)
    assert result.failure is None
    value: Any = result.value
    assert (value["data"]["media_type"], value["data"]["bytes"]) == ("text/csv; header=present", total)
    assert value["body"] == value["data"]
    reference = reference_from_json(value["data"]["_ref"])
    assert await payloads.read(reference, **owner) == b"x" * total
    canonical_bytes(value)


@pytest.mark.parametrize("header", ["text/plain; x=日", "text/plain; x=\xff", "text/plain;\tx=1"])
@asynchronous
async def test_a_content_type_that_nobody_can_write_down_is_that_of_bytes(tmp_path: Path, header: str) -> None:
    payloads = Payloads(small=FilePayloads(tmp_path), large=FilePayloads(tmp_path))
    owner = {"tenant_id": "acme", "organization_id": "sales"}
    total = limits.HTTP_BODY_BYTES_IN_MEMORY_MAX + 1
    result = await streamed(total, sink=PayloadBodySink(payloads, **owner), content_type=header, length=True)
    assert result.failure is None
    value: Any = result.value
    assert value["data"]["media_type"] == "application/octet-stream"
    assert reference_from_json(value["data"]["_ref"]).media_type == "application/octet-stream"


@asynchronous
async def test_memory_stays_bounded_while_a_body_is_stored() -> None:
    sink = Counting()
    tracemalloc.start()
    try:
        result = await streamed(64 * MIB, sink=sink, content_type="application/zip", length=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.failure is None
    assert (sink.bytes, sink.media_type) == (64 * MIB, "application/zip")
    assert peak < 12 * MIB


@asynchronous
async def test_a_body_at_the_limit_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "HTTP_BODY_BYTES_IN_MEMORY_MAX", 100_000)
    for total, is_held in ((100_000, True), (100_001, False)):
        for length in (True, False):
            sink = Counting()
            result = await streamed(total, sink=sink, content_type="text/plain", length=length)
            assert isinstance(result.value["data"], str) is is_held  # type: ignore[index]
            assert sink.bytes == (0 if is_held else total)


@asynchronous
async def test_without_a_store_a_large_body_is_a_failure_that_still_tells_the_status() -> None:
    result = await streamed(limits.HTTP_BODY_BYTES_IN_MEMORY_MAX + 1, sink=None, content_type="text/csv")
    assert result.failure is not None
    assert (result.failure.kind, result.failure.retryable) == ("storage_access", False)
    assert result.value["status_code"] == 200  # type: ignore[index]
    assert result.value["data"] is None  # type: ignore[index]


@asynchronous
async def test_what_decompression_makes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(b"\0" * (40 * MIB))
    assert len(bomb) < 200_000
    monkeypatch.setattr(reading, "HTTP_BODY_BYTES_MAX", 16 * MIB)
    sink = Counting()
    packed = {"Content-Encoding": "gzip"}
    tracemalloc.start()
    try:
        result = await answered(bomb, "application/octet-stream", headers=packed, sink=sink)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.failure is not None
    assert result.failure.code == "BODY_TOO_LARGE"
    assert sink.bytes <= 16 * MIB
    assert peak < 24 * MIB
    small = await answered(gzip.compress(b'{"a": 1}'), "application/json", headers=packed)
    assert small.value["data"] == {"a": 1}  # type: ignore[index]


@pytest.mark.parametrize(
    ("error", "kind"),
    [(OSError(errno.ENOSPC, "full"), "storage_quota"), (PermissionError(errno.EACCES, "no"), "storage_access")],
)
@asynchronous
async def test_a_store_that_fails_is_not_taken_for_the_server(error: OSError, kind: str) -> None:
    class Broken(Counting):
        async def keep(self, chunks: AsyncIterator[bytes], *, media_type: str) -> Mapping[str, object]:
            del media_type
            async for _ in chunks:
                raise error
            return {}

    rows = json.dumps([{"text": "x" * 100}] * 40_000).encode()
    for result in (
        await streamed(limits.HTTP_BODY_BYTES_IN_MEMORY_MAX + 1, sink=Broken(), content_type="text/csv"),
        await streamed(limits.HTTP_VALUE_BYTES_MAX + 1, sink=Broken(), content_type="text/plain"),
        await answered(rows, "application/json", sink=Broken()),
    ):
        assert result.failure is not None
        assert result.failure.kind == kind


# --- answers that are none -------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (b"", "connection", "CONN_RESET"),
        (HEAD + b"Content-Length: 10\r\n\r\nabc", "connection", "BODY_INCOMPLETE"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", "connection", "BODY_INCOMPLETE"),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nnogzp", "connection", "BODY_INCOMPLETE"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "parse", "HTTP_MALFORMED"),
        (HEAD + b"Content-Length: -1\r\n\r\n", "parse", "HTTP_MALFORMED"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", "parse", "HTTP_MALFORMED"),
    ],
)
@asynchronous
async def test_a_broken_answer_is_a_failure_without_value(answer: bytes, kind: str, code: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    async with raw_server(talk) as port, http_tool() as tool:
        result = await tool.run(http_call(f"http://127.0.0.1:{port}/", method="POST"))
    assert result.failure is not None
    assert (result.failure.kind, result.failure.code) == (kind, code)
    assert result.failure.retryable is (kind == "connection")
    assert result.value is None


@asynchronous
async def test_no_server_is_a_refused_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with http_tool() as tool:
            result = await tool.run(http_call(f"http://127.0.0.1:{port}/x?key=hunter2"))
    assert result.failure is not None
    assert (result.failure.kind, result.failure.code) == ("connection", "CONN_REFUSED")
    assert result.failure.retryable
    assert result.failure.message == f"GET http://127.0.0.1:{port}/x: connection refused"


@asynchronous
async def test_a_name_without_address_is_a_dns_error() -> None:
    async def unknown(host: str, port: int) -> list[str]:
        if host == "none.test":
            return []
        raise socket.gaierror(socket.EAI_NONAME, "inner resolver at 10.0.0.2 says no")

    async with http_tool(resolve=unknown) as tool:
        for host in ("none.test", "unknown.test"):
            result = await tool.run(http_call(f"http://{host}/"))
            assert result.failure is not None
            assert (result.failure.kind, result.failure.code) == ("connection", "DNS_ERROR")
            assert result.failure.retryable
            assert "10.0.0.2" not in result.failure.message


@asynchronous
async def test_a_slow_name_server_counts_against_the_time_of_the_call() -> None:
    async def slow(host: str, port: int) -> list[str]:
        await asyncio.sleep(30)
        return ["127.0.0.1"]

    async with http_tool(resolve=slow) as tool:
        for fields in ({"timeout_seconds": 0.1}, {"timeout": {"connect": 0.1}}):
            result = await tool.run(http_call("http://slow.test/", **fields))  # type: ignore[arg-type]
            assert result.failure is not None
            assert result.failure.kind == "timeout"


# --- TLS -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for api.test and 127.0.0.1 that nobody signed but its own key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "api.test")])
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    names = [x509.DNSName("api.test"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


@asynchronous
async def test_a_certificate_is_verified_unless_the_task_says_otherwise(certificate: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    indicated: list[str | None] = []
    tls.sni_callback = lambda _socket, name, _context: indicated.append(name)

    async def handler(request: web.BaseRequest) -> web.Response:
        return web.json_response({"host": request.headers["Host"]})

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with web_server(handler, tls=tls) as port, http_tool("api.test", resolve=resolve) as tool:
        url = f"https://api.test:{port}/"
        for fields in ({}, {"verify_ssl": True}, {"verify": "true"}):
            refused = await tool.run(http_call(url, **fields))  # type: ignore[arg-type]
            assert refused.failure is not None
            assert (refused.failure.kind, refused.failure.code) == ("connection", "TLS_ERROR")
        for fields in ({"verify_ssl": False}, {"verify": "false"}):
            result = await tool.run(http_call(url, **fields))  # type: ignore[arg-type]
            assert result.failure is None
            assert result.value["data"] == {"host": f"api.test:{port}"}  # type: ignore[index]
    assert set(indicated) == {"api.test"}


# --- connections -----------------------------------------------------------------------------------------


@asynchronous
async def test_connections_are_kept_and_not_shared_between_tenants() -> None:
    peers: dict[str, set[object]] = {}

    async def handler(request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        peers.setdefault(request.path, set()).add(request.transport.get_extra_info("peername"))
        return web.Response(text="x")

    async with web_server(handler) as port, http_tool() as tool:
        for _ in range(10):
            for tenant in ("a", "b"):
                result = await tool.run(http_call(f"http://127.0.0.1:{port}/{tenant}", tenant_id=tenant))
                assert result.failure is None
        other = replace(http_call(f"http://127.0.0.1:{port}/other", tenant_id="a"), organization_id="other")
        await tool.run(other)
    assert [len(peers[path]) for path in ("/a", "/b", "/other")] == [1, 1, 1]
    assert len(peers["/a"] | peers["/b"] | peers["/other"]) == 3


@asynchronous
async def test_cookies_are_not_kept_between_calls() -> None:
    seen: list[str | None] = []

    async def handler(request: web.BaseRequest) -> web.Response:
        seen.append(request.headers.get("Cookie"))
        return web.Response(text="x", headers={"Set-Cookie": "session=1; Path=/"})

    async with web_server(handler) as port, http_tool() as tool:
        for _ in range(3):
            result = await tool.run(http_call(f"http://127.0.0.1:{port}/"))
            assert result.value["headers"]["set-cookie"] == "session=1; Path=/"  # type: ignore[index]
    assert seen == [None] * 3


@asynchronous
async def test_a_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def handler(_request: web.BaseRequest) -> web.Response:
        return web.Response(text="direct")

    async with web_server(handler) as port, http_tool() as tool:
        result = await tool.run(http_call(f"http://127.0.0.1:{port}/"))
    assert result.value["data"] == "direct"  # type: ignore[index]


@asynchronous
async def test_a_cancelled_call_lets_go_of_its_connection() -> None:
    is_asked, is_gone = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        is_asked.set()
        await reader.read()
        is_gone.set()

    async with raw_server(talk) as port, http_tool() as tool:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(tool.run(http_call(f"http://127.0.0.1:{port}/")))
            await is_asked.wait()
            task.cancel()
        async with asyncio.timeout(10):  # a connection that was kept would go later, unused
            await is_gone.wait()
        assert task.cancelled()


@asynchronous
async def test_idle_pools_beyond_the_limit_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "HTTP_SESSIONS_MAX", 3)

    async def handler(_request: web.BaseRequest) -> web.Response:
        return web.Response(text="x")

    async with web_server(handler) as port, http_tool() as tool:
        for number in range(10):
            result = await tool.run(http_call(f"http://127.0.0.1:{port}/", tenant_id=f"t{number}"))
            assert result.failure is None
        assert len(tool._sessions._pools) <= 4
