"""Tokens: asked for once, remembered until shortly before they expire, and never quoted."""

from __future__ import annotations

import asyncio

import pytest

from noetl.adapters.memory.clock import VirtualClock
from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import TOKEN_CACHE_MAX
from noetl.core.secret import Secret
from noetl.engine.work.calling.grants import stored_token, token_grant
from noetl.engine.work.calling.tokens import Answer, TokenCache, TokenRequest, fetch_token
from noetl.ports.secrets import Credential
from noetl.ports.session import CommandMessage
from noetl.ports.tool import ToolCall, ToolResult
from tests.support.aio import asynchronous

CANARY = "canary-Zq8fX2"
MESSAGE = CommandMessage(1, "acme", "sales", "a#1", 1, {"step": "a"})


class Endpoint:
    """Gives a new token each time it is asked, when it is let."""

    def __init__(self, seconds: float = 3600.0) -> None:
        self.asked = 0
        self.seconds = seconds
        self.failure: ToolFailed | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask(self) -> tuple[Answer, float]:
        self.asked += 1
        number = self.asked
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return Secret({"token": f"t{number}"}), self.seconds


async def got(cache: TokenCache, endpoint: Endpoint, clock: VirtualClock, key: object = "k") -> object:
    return (await cache.get(key, endpoint.ask, clock)).reveal()["token"]


# --- remembering -------------------------------------------------------------------------------------------


@asynchronous
async def test_a_token_is_asked_for_again_a_margin_before_it_expires() -> None:
    cache, endpoint, clock = TokenCache(), Endpoint(100.0), VirtualClock()
    assert await got(cache, endpoint, clock) == "t1"
    clock.advance(69.0)
    assert await got(cache, endpoint, clock) == "t1"
    clock.advance(1.0)
    assert await got(cache, endpoint, clock) == "t2"


@asynchronous
async def test_a_short_life_is_used_by_half() -> None:
    cache, endpoint, clock = TokenCache(), Endpoint(10.0), VirtualClock()
    assert await got(cache, endpoint, clock) == "t1"
    clock.advance(4.9)
    assert await got(cache, endpoint, clock) == "t1"
    clock.advance(0.2)
    assert await got(cache, endpoint, clock) == "t2"


@asynchronous
async def test_each_key_has_its_own_and_one_that_was_refused_is_forgotten() -> None:
    cache, endpoint, clock = TokenCache(), Endpoint(), VirtualClock()
    assert await got(cache, endpoint, clock, "a") == "t1"
    assert await got(cache, endpoint, clock, "b") == "t2"
    cache.forget("a")
    assert await got(cache, endpoint, clock, "a") == "t3"
    assert await got(cache, endpoint, clock, "b") == "t2"


@asynchronous
async def test_the_cache_is_bounded_and_the_longest_unused_goes_first() -> None:
    cache, endpoint, clock = TokenCache(), Endpoint(), VirtualClock()
    for number in range(TOKEN_CACHE_MAX):
        await got(cache, endpoint, clock, number)
    await got(cache, endpoint, clock, 0)
    await got(cache, endpoint, clock, "one more")
    asked = endpoint.asked
    await got(cache, endpoint, clock, 0)
    assert endpoint.asked == asked
    await got(cache, endpoint, clock, 1)
    assert endpoint.asked == asked + 1


@asynchronous
async def test_those_who_come_meanwhile_wait_for_the_one_that_is_under_way() -> None:
    cache, endpoint, clock = TokenCache(), Endpoint(), VirtualClock()
    endpoint.may_answer.clear()
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(got(cache, endpoint, clock)) for _ in range(20)]
        await asyncio.sleep(0)
        endpoint.may_answer.set()
    assert {task.result() for task in waiting} == {"t1"}
    assert endpoint.asked == 1


@asynchronous
async def test_they_share_its_failure_and_the_next_one_asks_again() -> None:
    cache, endpoint, clock = TokenCache(), Endpoint(), VirtualClock()
    endpoint.may_answer.clear()
    endpoint.failure = ToolFailed(Failure(kind="auth", message="no"))
    waiting = [asyncio.ensure_future(got(cache, endpoint, clock)) for _ in range(3)]
    await asyncio.sleep(0)
    endpoint.may_answer.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [ToolFailed] * 3
    assert endpoint.asked == 1
    endpoint.failure = None
    assert await got(cache, endpoint, clock) == "t2"


@asynchronous
async def test_when_the_one_that_asks_is_stopped_another_takes_over() -> None:
    cache, endpoint, clock = TokenCache(), Endpoint(), VirtualClock()
    endpoint.may_answer.clear()
    first = asyncio.ensure_future(got(cache, endpoint, clock))
    second = asyncio.ensure_future(got(cache, endpoint, clock))
    third = asyncio.ensure_future(got(cache, endpoint, clock))
    await asyncio.sleep(0)
    third.cancel()  # one who only waits leaves the others alone
    first.cancel()
    await asyncio.sleep(0)
    endpoint.may_answer.set()
    assert await second == "t2"
    assert first.cancelled()
    assert third.cancelled()


# --- asking ------------------------------------------------------------------------------------------------


class Http:
    """Stands where the http tool stands, with an answer that a test chooses."""

    kind = "http"

    def __init__(self, body: object, failure: Failure | None = None) -> None:
        self.calls: list[ToolCall] = []
        self._result = ToolResult(value={"data": body}, failure=failure)

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def run(self, call: ToolCall) -> ToolResult:
        self.calls.append(call)
        return self._result


REQUEST = TokenRequest(owner="keychain entry 'k'", url="http://x", body=("form", {"client_secret": CANARY}))


async def fetched(body: object, **changes: str) -> tuple[dict[str, object], float]:
    request = TokenRequest(owner="x", url="http://x", **changes)  # type: ignore[arg-type]
    answer, seconds = await fetch_token(request, Http(body), MESSAGE)
    return dict(answer.reveal()), seconds


@asynchronous
async def test_the_answer_is_the_value_and_its_token_has_a_name() -> None:
    body = {"access_token": "t", "expires_in": 60, "scope": "all"}
    assert await fetched(body) == ({**body, "token": "t"}, 60.0)
    assert await fetched({"data": {"jwt": "t"}, "ttl": "90"}, token_field="data.jwt", ttl_field="ttl") == (
        {"data": {"jwt": "t"}, "ttl": "90", "token": "t"},
        90.0,
    )
    assert await fetched({"a.b": "t"}, token_field="a.b") == ({"a.b": "t", "token": "t"}, 300.0)


@pytest.mark.parametrize(
    ("expires", "seconds"),
    [("soon", 300.0), (None, 300.0), (-1, 300.0), (0, 300.0), ("inf", 300.0), (10**9, 86_400.0), ([1], 300.0)],
)
@asynchronous
async def test_a_life_that_makes_no_sense_is_the_usual_one(expires: object, seconds: float) -> None:
    assert (await fetched({"access_token": "t", "expires_in": expires}))[1] == seconds


@asynchronous
async def test_the_request_follows_no_redirect_and_carries_the_owner() -> None:
    http = Http({"access_token": "t"})
    await fetch_token(REQUEST, http, MESSAGE)
    (call,) = http.calls
    assert call.fields["follow_redirects"] is False
    assert call.fields["form"] == {"client_secret": CANARY}
    assert (call.tenant_id, call.organization_id, call.step) == ("acme", "sales", "a")


@pytest.mark.parametrize(
    ("http", "reason", "retryable"),
    [
        (None, "is not available", False),
        (Http([CANARY]), "did not answer with a JSON object", False),
        (Http(CANARY), "did not answer with a JSON object", False),
        (Http({}, Failure(kind="auth", status=401, message=CANARY)), "failed with HTTP 401", False),
        (Http({}, Failure(kind="connection", message=CANARY)), r"failed \(connection\)", True),
        (Http({}, Failure(kind="server_error", status=503, message=CANARY)), "failed with HTTP 503", True),
    ],
)
@asynchronous
async def test_a_failure_names_the_entry_and_quotes_nothing(http: Http | None, reason: str, retryable: bool) -> None:
    with pytest.raises(ToolFailed, match=reason) as caught:
        await fetch_token(REQUEST, http, MESSAGE)
    failure = caught.value.failure
    assert (failure.kind, failure.retryable) == ("auth", retryable)
    assert failure.message.startswith("keychain entry 'k' gives no token")
    assert CANARY not in failure.message
    assert CANARY not in repr(REQUEST)


def test_equal_requests_and_only_they_have_one_digest() -> None:
    same = TokenRequest(owner="another name", url="http://x", body=("form", {"client_secret": CANARY}))
    other = TokenRequest(owner="keychain entry 'k'", url="http://x", body=("form", {"client_secret": "other"}))
    assert same.digest() == REQUEST.digest() != other.digest()


# --- credentials that give one -----------------------------------------------------------------------------


def credential(type_: str, **data: object) -> Credential:
    return Credential(name="c", type=type_, data=Secret(data))


@pytest.mark.parametrize(
    ("given", "token"),
    [
        (credential("bearer", token="t"), "t"),
        (credential("secret", value="t"), "t"),
        (credential("secret", secret="t"), "t"),
        (credential("oauth2", access_token="t", token_type="x"), "t"),
        (credential("generic", access_token="t"), "t"),
        (credential("generic", access_token="old", endpoint="http://x"), None),
        (credential("basic", password="t", token="t"), None),
        (credential("bearer"), None),
    ],
)
def test_a_token_that_is_held_is_used(given: Credential, token: str | None) -> None:
    assert stored_token(given) == token


def test_a_generic_credential_with_an_endpoint_is_asked_there() -> None:
    given = credential("generic", token_url="http://x", client_id="i", client_secret=CANARY, scope="s", note="n")
    request = token_grant(given, "me")
    sent = {"client_id": "i", "client_secret": CANARY, "scope": "s", "grant_type": "client_credentials"}
    assert (request.url, request.method, request.body) == ("http://x", "POST", ("form", {**sent, "audience": "me"}))
    own = credential("generic", endpoint="http://y", form={"grant_type": "password"}, method="put", headers={"A": "b"})
    request = token_grant(own, None)
    assert (request.method, request.headers, request.body) == ("PUT", {"A": "b"}, ("form", {"grant_type": "password"}))


@pytest.mark.parametrize(
    ("type_", "reason"),
    [
        ("google_oauth", "has no provider"),
        ("service_account", "has no provider"),
        ("google_service_account", "has no provider"),
        ("postgres", "gives no token"),
        ("bearer", "gives no token"),
    ],
)
def test_another_type_gives_none_and_says_so(type_: str, reason: str) -> None:
    with pytest.raises(ToolFailed, match=reason) as caught:
        token_grant(credential(type_, token_uri=CANARY, endpoint=CANARY), None)
    assert caught.value.failure.kind == "auth"
    assert CANARY not in caught.value.failure.message
