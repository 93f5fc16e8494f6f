"""What a worker without the database reads and keeps through a real server: payloads and sealed credentials."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from noetl.adapters.session.http_stream_link import ServerLink, ServerPlace
from noetl.adapters.session.http_stream_stores import HttpCredentials, HttpPayloads
from noetl.core.errors import PayloadCorrupt, PayloadMissing, RequestInvalid
from noetl.core.reference import MEDIA_JSON, Payload, Reference, address
from noetl.settings import read_settings
from noetl.wiring.credentials import credential_cipher
from tests.support.aio import asynchronous
from tests.support.server import Place, place
from tests.support.yaml import one_step

OWNER = {"tenant_id": "größe/x", "organization_id": "default"}
DEFAULT = {"tenant_id": "default", "organization_id": "default"}
KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture(scope="module")
def server() -> Iterator[Place]:
    with place(NOETL_CREDENTIAL_KEY=KEY) as found:
        found.start_server()
        yield found


def link_to(server: Place) -> ServerLink:
    return ServerLink(ServerPlace(server.url, server.tokens["worker_token"]))


def large(content: bytes) -> Payload:
    return address(content, media_type=MEDIA_JSON, store="file", **OWNER)


@asynchronous
async def test_a_large_payload_is_put_and_read_back_by_its_owner_only(server: Place) -> None:
    payload = large(os.urandom(5_000_000))
    async with link_to(server) as link:
        store = HttpPayloads(link)
        await store.put(payload)
        await store.put(payload)
        assert await store.get(payload.reference, **OWNER) == payload.content
        with pytest.raises(PayloadMissing):
            await store.get(payload.reference, tenant_id="other", organization_id="default")
        with pytest.raises(PayloadMissing):
            await store.get(large(b"never put").reference, **OWNER)


@asynchronous
async def test_a_body_of_unknown_size_is_put_as_a_stream(server: Place) -> None:
    content = os.urandom(3_000_000)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 70_000):
            yield content[start : start + 70_000]

    async with link_to(server) as link:
        store = HttpPayloads(link)
        reference = await store.put_stream(chunks(), media_type="text/csv", **OWNER)
        assert (reference.sha256, reference.bytes, reference.store) == (
            hashlib.sha256(content).hexdigest(),
            len(content),
            "file",
        )
        assert await store.get(reference, **OWNER) == content


@asynchronous
async def test_some_of_the_bytes_are_read_by_themselves(server: Place) -> None:
    payload = large(os.urandom(3_000_000))
    async with link_to(server) as link:
        store = HttpPayloads(link)
        await store.put(payload)
        found = await store.get_range(payload.reference, offset=1_000_000, length=70_000, **OWNER)
        assert found == payload.content[1_000_000:1_070_000]
        with pytest.raises(PayloadCorrupt, match="fewer than"):
            await store.get_range(payload.reference, offset=2_999_999, length=2, **OWNER)
        with pytest.raises(PayloadMissing):
            await store.get_range(payload.reference, offset=0, length=1, tenant_id="other", organization_id="default")


def test_a_range_is_answered_as_the_protocol_says(server: Place) -> None:
    digest = hashlib.sha256(b"0123456789" * 10_000).hexdigest()
    path = f"/api/payloads/{digest}"
    headers = {"Content-Type": "text/plain"}
    assert server.request("PUT", path, b"0123456789" * 10_000, token="worker_token", headers=headers).status == 201
    ranges = {
        "bytes=5-14": ("5-14", b"5678901234"),
        "bytes=99995-": ("99995-99999", b"56789"),
        "bytes=-3": ("99997-99999", b"789"),
        "bytes=99999-100000": ("99999-99999", b"9"),
        "bytes=-200000": ("0-99999", b"0123456789" * 10_000),
    }
    for store in ("?store=file", ""):
        for asked, (told, content) in ranges.items():
            part = server.request("GET", path + store, headers={"Range": asked})
            assert (part.status, part.content) == (206, content)
            assert part.headers["content-range"] == f"bytes {told}/100000"
        for other in ("bytes=-", "bytes=9-5", "bytes=0-1,3-4", "lines=1-2"):
            whole = server.request("GET", path + store, headers={"Range": other})
            assert (whole.status, len(whole.content), whole.headers["content-length"]) == (200, 100_000, "100000")
        for behind in ("bytes=100000-", "bytes=100000-100001", "bytes=-0"):
            answer = server.request("GET", path + store, headers={"Range": behind})
            assert (answer.status, answer.json["code"]) == (416, "range_not_satisfiable")
            assert answer.headers["content-range"] == "bytes */100000"
        for version, status in ((f'"{digest}"', 206), ('"another"', 200), (f'W/"{digest}"', 200)):
            answer = server.request("GET", path + store, headers={"Range": "bytes=0-3", "If-Range": version})
            assert answer.status == status


def test_a_head_says_whether_there_is_a_payload_and_how_large(server: Place) -> None:
    digest = hashlib.sha256(b"h" * 80_000).hexdigest()
    path = f"/api/payloads/{digest}"
    assert server.request("HEAD", path).status == 404
    headers = {"Content-Type": "text/plain"}
    assert server.request("PUT", path, b"h" * 80_000, token="worker_token", headers=headers).status == 201
    found = server.request("HEAD", f"{path}?store=file")
    assert (found.status, found.content, found.headers["content-length"]) == (200, b"", "80000")
    assert found.headers["etag"] == f'"{digest}"'
    for elsewhere in ("?store=db", "?store=s3", "?store=tape"):
        assert server.request("HEAD", path + elsewhere).status == 404
        assert server.request("GET", path + elsewhere).status == 404
    refused = server.request("PUT", f"{path}?store=s3", b"h", token="worker_token", headers=headers)
    assert (refused.status, refused.json["code"]) == (422, "request_invalid")


def test_a_damaged_payload_is_never_a_whole_answer(server: Place) -> None:
    for size in (70_000, 9_000_000):
        content = os.urandom(size)
        path = f"/api/payloads/{hashlib.sha256(content).hexdigest()}"
        headers = {"Content-Type": "text/plain"}
        assert server.request("PUT", path, content, token="worker_token", headers=headers).status == 201
        (file,) = (server.home / "payloads").rglob(path.rpartition("/")[2])
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        if size < 1_000_000:
            answer = server.request("GET", path)
            assert (answer.status, answer.json["code"]) == (409, "payload_corrupt")
        else:
            with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
                server.request("GET", path)
            reference = address(content, media_type="text/plain", store="file", **DEFAULT).reference

            async def read(reference: Reference = reference) -> None:
                async with link_to(server) as link:
                    await HttpPayloads(link).get(reference, **DEFAULT)

            with pytest.raises(PayloadCorrupt):
                asyncio.run(read())


@asynchronous
async def test_bytes_of_another_digest_are_refused(server: Place) -> None:
    payload = large(b"x" * 100_000)
    async with link_to(server) as link:
        with pytest.raises(RequestInvalid, match="digest"):
            await HttpPayloads(link).put(Payload(payload.reference, b"y" * 100_000, **OWNER))
        with pytest.raises(PayloadMissing):
            await HttpPayloads(link).get(payload.reference, **OWNER)


def test_a_payload_is_not_sent_again_to_whoever_has_it(server: Place) -> None:
    digest = hashlib.sha256(b"z" * 70_000).hexdigest()
    path = f"/api/payloads/{digest}"
    put = server.request("PUT", path, b"z" * 70_000, token="worker_token", headers={"Content-Type": "text/plain"})
    assert (put.status, put.json["media_type"], put.json["bytes"]) == (201, "text/plain", 70_000)
    got = server.request("GET", path)
    assert got.content == b"z" * 70_000
    for known in (f'"{digest}"', f'W/"{digest}"', f'"another", "{digest}"', "*"):
        for method in ("GET", "HEAD"):
            again = server.request(method, path, headers={"If-None-Match": known})
            assert (again.status, again.content) == (304, b"")
    absent = f"/api/payloads/{'0' * 64}"
    for known in (f'"{"0" * 64}"', "*"):
        assert server.request("GET", absent, headers={"If-None-Match": known}).status == 404
    assert server.request("GET", path, headers={"If-None-Match": '"another"'}).status == 200


@asynchronous
async def test_a_credential_travels_sealed_and_is_opened_by_the_worker(server: Place) -> None:
    body = {"type": "bearer", "data": {"token": "s3cret-canary"}}
    headers = {"Noetl-Tenant": "gr%C3%B6%C3%9Fe%2Fx"}
    answer = server.request("PUT", "/api/credentials/api%2Fkey", body, headers=headers)
    assert answer.status == 200, answer.content
    raw = server.request("GET", "/api/worker/credentials/api%2Fkey", token="worker_token", headers=headers)
    assert raw.status == 200
    assert b"canary" not in raw.content
    settings = read_settings({"NOETL_CREDENTIAL_KEY": KEY})
    async with link_to(server) as link:
        sealed = await HttpCredentials(link).find("api/key", **OWNER)
        assert sealed is not None
        opened = await credential_cipher(settings, is_embedded=False).open(sealed)
        assert opened.data.reveal() == {"token": "s3cret-canary"}
        assert await HttpCredentials(link).find("api/key", tenant_id="other", organization_id="default") is None
        assert await HttpCredentials(link).find("no such", **OWNER) is None
    assert "canary" not in server.logs()


def test_a_small_payload_has_its_media_type(server: Place) -> None:
    event = server.events(server.submit(one_step("result = 1")))[0]
    reference = event["meta"]["playbook"]
    got = server.request("GET", f"/api/payloads/{reference['sha256']}", token="worker_token")
    assert (got.status, got.headers["content-type"]) == (200, reference["media_type"])
    assert hashlib.sha256(got.content).hexdigest() == reference["sha256"]


def test_a_large_result_comes_back_through_a_worker_process(server: Place) -> None:
    server.start_worker()
    text = one_step("result = {'rows': [{'n': n, 'text': 'x' * 50} for n in range(20_000)]}")
    final = server.finish(server.submit(text))
    assert final["status"] == "COMPLETED", final["error"]
    assert final["result"]["rows"][19_999] == {"n": 19_999, "text": "x" * 50}


def test_a_server_that_is_away_for_a_moment_fails_nobody() -> None:
    payload = large(os.urandom(200_000))

    async def put_and_get(server: Place) -> bytes:
        async with link_to(server) as link:
            store = HttpPayloads(link)
            putting = asyncio.ensure_future(store.put(payload))
            await asyncio.to_thread(server.start_server)
            await putting
            return await store.get(payload.reference, **OWNER)

    with place() as server:
        first = server.start_server()
        first.signal(signal.SIGKILL)
        first.wait()
        assert asyncio.run(put_and_get(server)) == payload.content
