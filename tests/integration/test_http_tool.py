"""`http` against the stand-in: fields, bodies, results, failures (dsl §9.3, §8.4)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from noetl.core.secret import Secret
from noetl.ports.secrets import Credential
from noetl.ports.tool import ToolResult
from tests.support.aio import asynchronous
from tests.support.standin import standin_process
from tests.support.web import http_call, http_tool, web_server

SIX = {"status_code", "headers", "url", "elapsed", "data", "body"}


@pytest.fixture(scope="module")
def standin() -> Iterator[str]:
    with standin_process(rate_limit=0) as address:
        yield address


async def run(url: object = None, **fields: Any) -> ToolResult:
    async with http_tool() as tool:
        return await tool.run(http_call(url, **fields))


async def echoed(url: object, **fields: Any) -> dict[str, Any]:
    """What the echo service saw."""
    result = await run(url, **fields)
    assert result.failure is None, result.failure
    data = result.value["data"]  # type: ignore[index]
    assert isinstance(data, dict)
    return data


# --- results ---------------------------------------------------------------------------------------------


@asynchronous
async def test_a_result_has_six_keys_and_the_facts_of_http(standin: str) -> None:
    result = await run(f"{standin}/api/v1/assessments?page=2")
    assert result.failure is None
    value: Any = result.value
    assert set(value) == SIX
    assert value["status_code"] == 200
    assert value["url"] == f"{standin}/api/v1/assessments?page=2"
    assert value["headers"]["content-type"] == "application/json"
    assert 0 < value["elapsed"] < 5
    assert value["data"]["paging"]["page"] == 2
    assert value["body"] is value["data"]
    assert result.facts == {"http": {"status": 200, "headers": value["headers"]}}


@pytest.mark.parametrize(
    ("error_type", "kind", "status", "retryable"),
    [
        ("429", "rate_limit", 429, True),
        ("500", "server_error", 500, True),
        ("503", "server_error", 503, True),
        ("auth", "auth", 401, False),
        ("403", "auth", 403, False),
        ("404", "not_found", 404, False),
        ("teapot", "client_error", 400, False),
    ],
)
@asynchronous
async def test_an_error_status_is_a_failure_that_keeps_the_answer(
    standin: str, error_type: str, kind: str, status: int, retryable: bool
) -> None:
    url = f"{standin}/api/v1/errors?error_type={error_type}&retry_after=7"
    result = await run(url)
    failure, value = result.failure, result.value
    assert failure is not None
    assert (failure.kind, failure.code, failure.status) == (kind, f"HTTP_{status}", status)
    assert failure.retryable is retryable
    assert failure.retry_after == (7.0 if status in (429, 503) else None)
    assert isinstance(value, dict)
    assert set(value) == SIX
    assert value["data"]["error"]["status"] == status
    assert result.facts["http"]["status"] == status  # type: ignore[index]
    assert failure.message.startswith(f"GET {standin}/api/v1/errors answered {status}")
    assert "retry_after" not in failure.message


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": "120"}, 120.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT", "Date": "Wed, 21 Oct 2026 07:28:30 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "1.5"}, None),
        ({}, None),
    ],
)
@asynchronous
async def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    async def handler(_request: web.BaseRequest) -> web.Response:
        return web.Response(status=503, headers=headers)

    async with web_server(handler) as port:
        result = await run(f"http://127.0.0.1:{port}/")
    assert result.failure is not None
    assert result.failure.retry_after == seconds


# --- requests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"a": 1, "b": None, "c": True, "d": False, "e": 1.5}, "a=1&c=true&d=false&e=1.5"),
        ({"id": [1, None, "x"], "empty": []}, "id=1&id=x"),
        ({"q": "a b&c=d+é/?"}, "q=a+b%26c%3Dd%2B%C3%A9/?"),
        ({"filter": {"n": [1]}}, "filter=%7B%22n%22:+%5B1%5D%7D"),
        ("a=1&b=x%20y", "a=1&b=x+y"),
        ("?a=", "a="),
        ({}, ""),
    ],
)
@asynchronous
async def test_query_parameters(standin: str, params: object, expected: str) -> None:
    for fields in ({"params": params}, {"data": params}, {"method": "DELETE", "data": {"query": params}}):
        if fields.get("method") and not isinstance(params, dict):
            continue
        seen = await echoed(f"{standin}/anything?first=0", **fields)
        assert seen["url"] == f"{standin}/anything?first=0" + (f"&{expected}" if expected else "")
        assert (seen["data"], "Content-Type" in seen["headers"]) == ("", False)


FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("fields", "body", "content_type"),
    [
        ({"json": {"a": [1, None, "é"]}}, '{"a":[1,null,"é"]}', "application/json"),
        ({"json": "text"}, '"text"', "application/json"),
        ({"json": [], "headers": {"content-type": "application/vnd.x+json"}}, "[]", "application/vnd.x+json"),
        ({"form": {"a": 1, "b": None, "c": [True, "x y"]}}, "a=1&c=true&c=x+y", FORM),
        ({"form": "a=1"}, "a=1", FORM),
        ({"body": {"a": 1}}, '{"a":1}', "application/json"),
        ({"body": "a,b\n"}, "a,b\n", "text/plain; charset=utf-8"),
        ({"body": "<a/>", "headers": {"Content-Type": "text/xml"}}, "<a/>", "text/xml"),
        ({"body": {"a": 1, "b": None}, "headers": {"Content-Type": FORM}}, "a=1", FORM),
        ({"json": {"a": 1}, "headers": {"Content-Type": FORM}}, '{"a":1}', FORM),
        ({"payload": [1, 2]}, "[1,2]", "application/json"),
        ({"payload": "x"}, "x", "text/plain; charset=utf-8"),
        ({"data": {"a": 1}}, '{"a":1}', "application/json"),
        ({"data": {"a": 1}, "headers": {"Content-Type": f"{FORM}; charset=utf-8"}}, "a=1", f"{FORM}; charset=utf-8"),
        ({"data": {"query": {"q": 1}, "body": {"a": 1}}}, '{"a":1}', "application/json"),
        ({"data": {"query": {"q": 1}}}, "", None),
        ({"data": {"query": 1, "body": 2, "other": 3}}, '{"query":1,"body":2,"other":3}', "application/json"),
        ({"body": False}, "false", "application/json"),
        ({}, "", None),
    ],
)
@asynchronous
async def test_bodies(standin: str, fields: dict[str, Any], body: str, content_type: str | None) -> None:
    seen = await echoed(f"{standin}/anything", method="post", **fields)
    assert (seen["method"], seen["data"]) == ("POST", body)
    assert seen["headers"].get("Content-Type") == content_type
    wants_query = isinstance(fields.get("data"), dict) and fields["data"].get("query") == {"q": 1}
    assert seen["args"] == ({"q": "1"} if wants_query else {})


@asynchronous
async def test_a_large_body_is_sent_whole(standin: str) -> None:
    seen = await echoed(f"{standin}/anything", method="PUT", json={"text": "x" * 3_000_000})
    assert len(seen["json"]["text"]) == 3_000_000


@asynchronous
async def test_input_fills_what_the_tool_does_not_give(standin: str) -> None:
    given = {
        "url": f"{standin}/anything",
        "endpoint": "http://never.test/",
        "method": "PATCH",
        "headers": {"X-Trace": "7"},
        "params": {"a": 1},
        "json": {"n": 1},
        "page": 3,
    }
    seen = await echoed(None, given=given)
    assert (seen["method"], seen["args"], seen["json"]) == ("PATCH", {"a": "1"}, {"n": 1})
    assert seen["headers"]["X-Trace"] == "7"
    seen = await echoed(f"{standin}/anything/own", given=given, method="POST", body="own", headers={"X-Own": "1"})
    assert (seen["method"], seen["data"]) == ("POST", "own")
    assert seen["url"].startswith(f"{standin}/anything/own")
    assert "X-Trace" not in seen["headers"]
    assert (await echoed(None, endpoint=f"{standin}/get"))["method"] == "GET"


@asynchronous
async def test_headers_are_text_and_absent_ones_are_left_out(standin: str) -> None:
    headers = {"X-N": 5, "X-None": None, "X-List": [1], "Content-Length": "99", "Connection": "close"}
    seen = (await echoed(f"{standin}/anything", headers=headers))["headers"]
    assert (seen["X-N"], seen["X-List"]) == ("5", "[1]")
    assert "X-None" not in seen
    assert "Content-Length" not in seen
    assert seen["User-Agent"].startswith("noetl/")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"url": None}, "url is required"),
        ({"url": ""}, "url is required"),
        ({"url": "/relative"}, "http:// or https://"),
        ({"url": "ftp://example.test/"}, "http:// or https://"),
        ({"url": "file:///etc/hostname"}, "http:// or https://"),
        ({"url": "http://"}, "host"),
        ({"url": "http://example.test:0/"}, "port"),
        ({"url": "http://example.test:99999/"}, "not a valid address"),
        ({"url": "http://exa\nmple.test/"}, "control character"),
        ({"method": "GET / HTTP/1.1"}, "method"),
        ({"method": "CONNECT"}, "method"),
        ({"headers": {"X-A": "a\r\nX-B: b"}}, "'X-A' has a line break"),
        ({"headers": {"X A": "a"}}, "not the name of a header"),
        ({"headers": {"Host": "inner"}}, "'Host' is set by the transport"),
        ({"headers": {"transfer-encoding": "chunked"}}, "set by the transport"),
        ({"headers": ["a"]}, "headers must be a mapping"),
        ({"params": [1]}, "params must be"),
        ({"json": 1, "body": 2}, "json and body are given"),
        ({"json": {1, 2}}, "no JSON form"),
        ({"response_type": "xml"}, "response_type must be one of"),
        ({"timeout": {"connect": "soon"}}, "not a time"),
        ({"timeout": {"connect": -1}}, "not a time"),
        ({"timeout": {"total": 1}}, "spec.timeout"),
    ],
)
@asynchronous
async def test_a_field_that_cannot_be_sent_is_named(fields: dict[str, Any], text: str) -> None:
    result = await run(**{"url": "http://127.0.0.1:1/", **fields})
    assert result.failure is not None
    assert result.failure.kind == "config", result.failure
    assert text in result.failure.message
    assert not result.failure.retryable


# --- credentials -----------------------------------------------------------------------------------------


def credential(kind: str, **data: object) -> Credential:
    return Credential(name="api", type=kind, data=Secret(data))


@pytest.mark.parametrize(
    ("auth", "name", "value"),
    [
        (credential("bearer", token="t1"), "Authorization", "Bearer t1"),
        (credential("bearer", value="t2"), "Authorization", "Bearer t2"),
        (credential("Bearer", access_token="t3"), "Authorization", "Bearer t3"),
        (credential("secret", secret="t4"), "Authorization", "Bearer t4"),
        (credential("basic", username="u", password="pä"), "Authorization", "Basic dTpww6Q="),
        (credential("api_key", api_key="k"), "X-Api-Key", "k"),
        (credential("api_key", value="k", header_name="X-Own"), "X-Own", "k"),
        (credential("header", name="X-H", value="v"), "X-H", "v"),
        (credential("header", headers={"X-H": "v"}), "X-H", "v"),
        ({"main": credential("bearer", token="t5")}, "Authorization", "Bearer t5"),
    ],
)
@asynchronous
async def test_a_credential_becomes_a_header(standin: str, auth: object, name: str, value: str) -> None:
    seen = await echoed(f"{standin}/get", auth=auth, headers={"Authorization": "by hand"})
    assert seen["headers"][name] == value


@asynchronous
async def test_a_name_and_password_in_the_url_are_sent_and_not_shown(standin: str) -> None:
    url = standin.replace("http://", "http://user:hunter2@")
    seen = await run(f"{url}/get")
    assert seen.value["url"] == f"{standin}/get"  # type: ignore[index]
    assert seen.value["data"]["headers"]["Authorization"] == "Basic dXNlcjpodW50ZXIy"  # type: ignore[index]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"auth": credential("postgres", db_password="hunter2")}, "'api' has type 'postgres'"),
        ({"auth": credential("bearer", password="hunter2")}, "has no field token or value"),
        ({"auth": credential("basic", username="hunter2")}, "has no field password"),
        ({"auth": credential("bearer", token="hunter2\r\nX-A: b")}, "line break"),
    ],
)
@asynchronous
async def test_a_credential_that_does_not_fit_is_an_auth_failure_without_its_values(
    fields: dict[str, Any], text: str
) -> None:
    result = await run("http://127.0.0.1:1/", **fields)
    assert result.failure is not None
    assert (result.failure.kind, result.failure.retryable) == ("auth", False)
    assert text in result.failure.message
    assert "hunter2" not in repr(result)


@pytest.mark.parametrize("name", ["api", {"credential": "api"}])
@asynchronous
async def test_a_credential_that_was_not_resolved_is_an_auth_failure(name: object) -> None:
    call = http_call("http://127.0.0.1:1/")
    async with http_tool() as tool:
        result = await tool.run(replace(call, fields={**call.fields, "auth": name}))
    assert result.failure is not None
    assert result.failure.kind == "auth"
    assert "not resolved" in result.failure.message


# --- transport -------------------------------------------------------------------------------------------


@asynchronous
async def test_two_hundred_calls_run_at_once(standin: str) -> None:
    async with http_tool() as tool:
        await tool.run(http_call(f"{standin}/api/v1/concurrency/reset", method="POST"))
        url = f"{standin}/api/v1/concurrency/probe?delay_seconds=1.5"
        results = await asyncio.gather(*(tool.run(http_call(url)) for _ in range(200)))
        assert [result.failure for result in results] == [None] * 200
        stats: Any = (await tool.run(http_call(f"{standin}/api/v1/concurrency/stats"))).value
    # On a busy machine the first may have ended before the last began; a pool of the usual hundred would show.
    assert stats["data"]["max_active"] > 150


@asynchronous
async def test_no_answer_in_time_is_a_timeout(standin: str) -> None:
    url = f"{standin}/api/v1/errors?error_type=timeout&token=hunter2"
    result = await run(url, timeout_seconds=0.15)
    assert result.failure is not None
    assert (result.failure.kind, result.failure.code, result.failure.retryable) == ("timeout", "TIMEOUT", True)
    assert "0.15 s" in result.failure.message
    assert "hunter2" not in result.failure.message
    assert result.value is None
    result = await run(url, timeout={"read": "100ms", "connect": 5})
    assert result.failure is not None
    assert (result.failure.kind, result.failure.retryable) == ("timeout", True)


@asynchronous
async def test_a_message_names_the_place_and_no_secret(standin: str) -> None:
    url = standin.replace("http://", "http://user:hunter2@")
    result = await run(f"{url}/nothing?key=hunter2#hunter2")
    assert result.failure is not None
    assert result.failure.message == f"GET {standin}/nothing answered 404 Not Found"
    assert re.search("hunter2", repr(result.failure)) is None
