"""No way to an address that the policy refuses: spellings, names that change, redirects.  Asserted at the sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from noetl.clients.http.policy import AddressPolicy
from noetl.core.secret import Secret
from noetl.ports.secrets import Credential
from tests.support.aio import asynchronous
from tests.support.web import http_call, http_tool, web_server

# Every host here is, to some reader, this machine or the metadata service of a platform.
LOOPBACK_HOSTS = [
    *("127.0.0.1", "127.1", "127.0.1", "127.0.0.1.", "127.00.0.1", "127.000.000.001", "0127.0.0.1", "127.0.0.01"),
    *("2130706433", "2130706433.", "017700000001", "0x7f000001", "0X7F000001", "0x7f.1", "0x7f.0.0.1", "0x7f.0.1"),
    *("0x7F.0x0.0x0.0x1", "0177.0.0.1", "0177.0.0.01", "00000177.0.0.1", "0177.1", "0x7f.0.0.0x1", "127.0x1"),
    *("127.255.255.254", "127.8.8.8", "127.127.127.127", "0", "0.0.0.0", "0x0", "00000000", "0.0"),
    *("①②⑦.⓪.⓪.①", "１２７.０.０.１", "127。0。0。1", "127．0．0．1", "127｡0｡0｡1"),
    *("127%2e0%2e0%2e1", "%31%32%37.0.0.1", "127.0.0.1%00", "127.0.0.1%20", "127.0.0.1%09"),
    *("localhost", "LOCALHOST", "localhost.", "LocalHost", "ⓛocalhost", "localtest.test", "ip6-localhost"),
    *("[::1]", "[0:0:0:0:0:0:0:1]", "[0000::0001]", "[::0001]", "[::]", "[0::0]", "[::1%25lo]", "[::1%lo]"),
    *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::FFFF:127.0.0.1]"),
    *("[::127.0.0.1]", "[::7f00:1]", "[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"),
    *("[::ffff:0:127.0.0.1]", "[fe80::1]", "[fc00::1]", "user@127.0.0.1", "example.test@127.0.0.1", "a:b@127.1"),
]
METADATA_HOSTS = [
    *("169.254.169.254", "169.254.43518", "169.16689662", "2852039166", "0xa9fea9fe", "0xa9.0xfe.0xa9.0xfe"),
    *("0251.0376.0251.0376", "0251.254.169.254", "025177524776", "169.254.169.254.", "①⑥⑨.②⑤④.①⑥⑨.②⑤④"),
    *("[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]", "[::a9fe:a9fe]", "[fd00:ec2::254]"),
    *("metadata.test", "100.100.100.200", "168.63.129.16", "192.0.0.192", "[fe80::a9fe:a9fe]", "10.0.0.1"),
]
NAMES = {
    "localhost": ["127.0.0.1"],
    "ip6-localhost": ["::1"],
    "localtest.test": ["127.0.0.1"],
    "metadata.test": ["169.254.169.254"],
}


@dataclass
class Sockets:
    """What was tried at the level of sockets."""

    attempts: list[object] = field(default_factory=list)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Sockets:
    """Notes every connection that this process begins, by whatever library."""
    seen = Sockets()
    connect = socket.socket.connect

    def noted(one: socket.socket, address: object) -> None:
        seen.attempts.append(address)
        connect(one, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", noted)
    return seen


async def resolve(host: str, _port: int) -> list[str]:
    try:
        return NAMES[host.lower().rstrip(".")]
    except KeyError:
        raise socket.gaierror(socket.EAI_NONAME, "unknown") from None


@asynccontextmanager
async def listeners() -> AsyncIterator[tuple[int, list[str]]]:
    """The same port on both loopback addresses, and the paths that anybody asked for there."""
    asked: list[str] = []

    async def handler(request: web.BaseRequest) -> web.Response:
        asked.append(request.path)
        return web.json_response({"secret": "inside"})

    async with web_server(handler, "127.0.0.1", "::1") as port:
        yield port, asked


def test_the_table_is_long_enough() -> None:
    assert len(LOOPBACK_HOSTS) + len(METADATA_HOSTS) >= 60
    assert len({*LOOPBACK_HOSTS, *METADATA_HOSTS}) == len(LOOPBACK_HOSTS) + len(METADATA_HOSTS)


@asynchronous
async def test_no_spelling_reaches_this_machine_or_the_metadata_service(sockets: Sockets) -> None:
    async with listeners() as (port, asked), http_tool("93.184.216.34/32", resolve=resolve) as tool:
        for host in [*LOOPBACK_HOSTS, *METADATA_HOSTS]:
            for url in (f"http://{host}:{port}/", f"http://{host}/", f"https://{host}:{port}/x?y#z"):
                result = await tool.run(http_call(url, timeout_seconds=2.0))
                assert result.failure is not None, url
                assert result.failure.kind == "config", (url, result.failure)
                assert result.failure.code in ("ADDRESS_REFUSED", "URL_INVALID"), (url, result.failure)
                assert result.value is None
        assert sockets.attempts == []
        assert asked == []


@asynchronous
async def test_the_wall_at_the_socket_stands_alone(sockets: Sockets, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("check_host", "check_resolved"):
        monkeypatch.setattr(AddressPolicy, other, lambda *_: None)
    async with listeners() as (port, asked), http_tool("93.184.216.34/32") as tool:
        for host in [*LOOPBACK_HOSTS, *METADATA_HOSTS]:
            result = await tool.run(http_call(f"http://{host}:{port}/", timeout_seconds=2.0))
            assert result.failure is not None, host
    tried = [address[0] for address in sockets.attempts if isinstance(address, tuple) and address[1] == port]
    assert tried == []
    assert asked == []


@asynchronous
async def test_the_witnesses_of_these_tests_do_see_a_connection(sockets: Sockets) -> None:
    async with listeners() as (port, asked), http_tool("loopback", resolve=resolve) as tool:
        for host in ("127.0.0.1", "[::1]", "localhost", "[::ffff:127.0.0.1]", "user@127.0.0.1"):
            result = await tool.run(http_call(f"http://{host}:{port}/seen"))
            assert result.failure is None, host
    assert len(asked) == 5
    assert len(sockets.attempts) >= 4


@pytest.mark.parametrize("answer", [[["127.0.0.2"], ["127.0.0.1"]], [["127.0.0.2", "127.0.0.1"]], [["127.0.0.1"]]])
@asynchronous
async def test_a_name_that_changes_its_address_is_judged_again(sockets: Sockets, answer: list[list[str]]) -> None:
    """127.0.0.2 is allowed and stands for a public address, 127.0.0.1 is not."""
    asked: list[str] = []
    calls = 0

    async def flipping(_host: str, _port: int) -> list[str]:
        nonlocal calls
        calls += 1
        return answer[min(calls, len(answer)) - 1]

    async def handler(request: web.BaseRequest) -> web.Response:
        asked.append(str(request.transport and request.transport.get_extra_info("sockname")[0]))
        return web.Response(text="x", headers={"Connection": "close"})

    async with web_server(handler, "127.0.0.1", "127.0.0.2") as port:
        for _ in range(4):
            before = calls
            # A new tool has an empty cache, as an old one has when its time is over.
            async with http_tool("127.0.0.2/32", resolve=flipping) as tool:
                for _ in range(3):
                    await tool.run(http_call(f"http://rebind.test:{port}/"))
            assert calls - before <= 3
    assert "127.0.0.1" not in asked
    assert all(address == ("127.0.0.2", port) for address in sockets.attempts)
    assert bool(asked) is (len(answer) == 2)


@asynchronous
async def test_a_name_is_resolved_once_for_a_connection_and_the_checked_address_is_used() -> None:
    calls: list[str] = []

    async def resolving(host: str, _port: int) -> list[str]:
        calls.append(host)
        return ["127.0.0.2"]

    async def handler(request: web.BaseRequest) -> web.Response:
        return web.json_response({"host": request.headers["Host"]})

    async with web_server(handler, "127.0.0.2") as port, http_tool("127.0.0.2/32", resolve=resolving) as tool:
        for _ in range(5):
            result = await tool.run(http_call(f"http://api.test:{port}/"))
            assert result.value["data"] == {"host": f"api.test:{port}"}  # type: ignore[index]
    assert calls == ["api.test"]


# --- redirects -------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """One request as a server saw it."""

    at: str
    method: str
    path: str
    headers: dict[str, str]
    body: str


@asynccontextmanager
async def redirecting(*hosts: str) -> AsyncIterator[tuple[int, list[Seen]]]:
    """Answers with a redirect to the query's `to`, with the status of its path."""
    seen: list[Seen] = []

    async def handler(request: web.BaseRequest) -> web.Response:
        at = request.transport.get_extra_info("sockname")[0] if request.transport else ""
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen.append(Seen(at, request.method, request.path, headers, await request.text()))
        target = request.query.get("to")
        if target is None:
            return web.json_response({"done": True})
        return web.Response(status=int(request.path.strip("/")), headers={"Location": target})

    async with web_server(handler, *hosts) as port:
        yield port, seen


@pytest.mark.parametrize("host", [*LOOPBACK_HOSTS[:40:4], *METADATA_HOSTS[::4], "[::1]", "[::ffff:127.0.0.1]"])
@pytest.mark.parametrize("status", [302, 307])
@asynchronous
async def test_a_redirect_leads_nowhere_that_the_first_request_could_not_go(
    sockets: Sockets, host: str, status: int
) -> None:
    servers, tools = redirecting("127.0.0.2", "127.0.0.1", "::1"), http_tool("127.0.0.2/32", resolve=resolve)
    async with servers as (port, seen), tools as tool:
        chain = f"http://127.0.0.2:{port}/{status}?to=/{status}%3Fto%3Dhttp://{host}:{port}/inside"
        result = await tool.run(http_call(chain, timeout_seconds=2.0))
    assert result.failure is not None
    assert result.failure.code in ("ADDRESS_REFUSED", "REDIRECT_INVALID"), result.failure
    assert result.value is None
    assert {one.at for one in seen} == {"127.0.0.2"}
    assert all(address == ("127.0.0.2", port) for address in sockets.attempts)


@pytest.mark.parametrize(
    "target", ["file:///etc/hostname", "gopher://127.0.0.2/", "ftp://127.0.0.2/", "mailto:a@b.test", "http://[::1"]
)
@asynchronous
async def test_a_redirect_to_something_else_than_http_is_refused(target: str) -> None:
    async with redirecting("127.0.0.2") as (port, seen), http_tool("127.0.0.2/32") as tool:
        result = await tool.run(http_call(f"http://127.0.0.2:{port}/302", params={"to": target}))
    assert result.failure is not None
    assert result.failure.code == "REDIRECT_INVALID", result.failure
    assert len(seen) == 1


@asynchronous
async def test_redirects_end_after_ten() -> None:
    loops: list[str] = []

    async def looping(request: web.BaseRequest) -> web.Response:
        loops.append(request.path)
        return web.Response(status=302, headers={"Location": f"/{len(loops)}"})

    async with web_server(looping) as port, http_tool() as tool:
        result = await tool.run(http_call(f"http://127.0.0.1:{port}/"))
    assert result.failure is not None
    assert result.failure.code == "TOO_MANY_REDIRECTS"
    assert len(loops) == 11


@asynchronous
async def test_a_redirect_without_a_target_is_the_answer() -> None:
    async with redirecting("127.0.0.1") as (port, seen), http_tool() as tool:
        result = await tool.run(http_call(f"http://127.0.0.1:{port}/302", params={"to": ""}))
    assert result.failure is None
    assert result.value["status_code"] == 302  # type: ignore[index]
    assert len(seen) == 1


SECRETS = {
    "Authorization": "Bearer by-hand",
    "Cookie": "session=1",
    "X-Api-Key": "key",
    "X-Auth-Token": "token",
    "Proxy-Authorization": "Basic x",
}


@asynchronous
async def test_credentials_stay_with_their_origin() -> None:
    credential = Credential(
        name="api", type="api_key", data=Secret({"api_key": "from the store", "header_name": "X-Plain"})
    )
    async with redirecting("127.0.0.1", "127.0.0.2") as (port, seen), http_tool() as tool:
        back = f"http://127.0.0.1:{port}/last"
        away = f"http://127.0.0.2:{port}/302?to={back}"
        result = await tool.run(
            http_call(
                f"http://127.0.0.1:{port}/307",
                params={"to": f"/302?to={away.replace('?', '%3F')}"},
                headers={**SECRETS, "X-Trace": "7"},
                auth=credential,
            )
        )
    assert result.failure is None
    assert [(one.at, one.path) for one in seen] == [
        ("127.0.0.1", "/307"),
        ("127.0.0.1", "/302"),
        ("127.0.0.2", "/302"),
        ("127.0.0.1", "/last"),
    ]
    names = {name.lower() for name in SECRETS} | {"x-plain"}
    for one in seen[:2]:
        assert names <= set(one.headers)
    for one in seen[2:]:
        assert not names & set(one.headers)
        assert one.headers["x-trace"] == "7"


@pytest.mark.parametrize(
    ("status", "method", "sent", "body"),
    [
        (301, "POST", "GET", ""),
        (302, "PUT", "GET", ""),
        (303, "DELETE", "GET", ""),
        (303, "HEAD", "HEAD", ""),
        (307, "POST", "POST", '{"n":1}'),
        (308, "PUT", "PUT", '{"n":1}'),
    ],
)
@asynchronous
async def test_method_and_body_follow_the_rules_of_redirects(status: int, method: str, sent: str, body: str) -> None:
    async with redirecting("127.0.0.1") as (port, seen), http_tool() as tool:
        fields = {"json": {"n": 1}} if method in ("POST", "PUT") else {}
        url = f"http://127.0.0.1:{port}/{status}"
        result = await tool.run(http_call(url, method=method, params={"to": "/there"}, **fields))
    assert result.failure is None
    assert (seen[1].method, seen[1].body, seen[1].path) == (sent, body, "/there")
    assert ("content-type" in seen[1].headers) is bool(body)
    assert result.value["url"] == f"http://127.0.0.1:{port}/there"  # type: ignore[index]


@asynchronous
async def test_redirects_can_be_left_to_the_playbook() -> None:
    async with redirecting("127.0.0.1") as (port, seen), http_tool() as tool:
        for flag in (False, "false", "no"):
            result = await tool.run(
                http_call(f"http://127.0.0.1:{port}/302", params={"to": "/x"}, follow_redirects=flag)
            )
            assert result.failure is None
            assert result.value["status_code"] == 302  # type: ignore[index]
            assert result.value["headers"]["location"] == "/x"  # type: ignore[index]
    assert len(seen) == 3
