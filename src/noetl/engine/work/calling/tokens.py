"""Access tokens: asked for at an endpoint through the `http` tool, and remembered until shortly before they expire.

The http tool does the asking, so that the rules about addresses hold here as well.  No message says more than whose
token it was: an endpoint likes to repeat what it was sent."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field

from noetl.core.codec import canonical_bytes, sha256_hex
from noetl.core.errors import Failure, ToolFailed
from noetl.core.expression import to_text
from noetl.core.limits import (
    TOKEN_CACHE_MAX,
    TOKEN_MARGIN_SECONDS,
    TOKEN_REQUEST_SECONDS_MAX,
    TOKEN_SECONDS_DEFAULT,
    TOKEN_SECONDS_MAX,
)
from noetl.core.secret import Secret
from noetl.ports.clock import Clock
from noetl.ports.session import CommandMessage
from noetl.ports.tool import Tool, ToolCall, ToolResult

TOKEN_FIELD = "access_token"  # noqa: S105 - the name of a field
TTL_FIELD = "expires_in"
# What can be tried again says so, whatever the kind of the failure is.
_PASSING = frozenset(("connection", "timeout", "rate_limit", "server_error"))

Answer = Secret[Mapping[str, object]]
Ask = Callable[[], Awaitable[tuple[Answer, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """How a token is asked for.  `owner` is what messages call it."""

    owner: str
    url: str
    method: str = "POST"
    headers: Mapping[str, object] = field(default_factory=dict, repr=False)
    params: Mapping[str, object] | None = field(default=None, repr=False)
    body: tuple[str, object] | None = field(default=None, repr=False)
    token_field: str | None = None
    ttl_field: str | None = None

    def digest(self) -> str:
        """Equal requests get equal tokens; the values themselves are not kept as a key."""
        parts = [self.url, self.method, dict(self.headers), self.params, self.body, self.token_field, self.ttl_field]
        return sha256_hex(canonical_bytes(parts))


class TokenCache:
    """The tokens of one worker.  Whoever comes while one is being fetched waits for that one."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, tuple[float, Answer]] = OrderedDict()
        self._asked: dict[Hashable, asyncio.Future[Answer | ToolFailed | None]] = {}

    async def get(self, key: Hashable, ask: Ask, clock: Clock) -> Answer:
        """The answer that is known, or a new one: `ask` gives it and for how many seconds it holds."""
        while True:
            until, known = self._known.get(key, (0.0, None))
            if known is not None and clock.monotonic() < until:
                self._known.move_to_end(key)
                return known
            under_way = self._asked.get(key)
            if under_way is None:
                return await self._ask(key, ask, clock)
            answer = await asyncio.shield(under_way)
            if isinstance(answer, ToolFailed):
                raise answer
            if answer is not None:
                return answer

    def forget(self, key: Hashable) -> None:
        """Somebody did not accept it."""
        self._known.pop(key, None)

    async def _ask(self, key: Hashable, ask: Ask, clock: Clock) -> Answer:
        waiting = self._asked[key] = asyncio.get_running_loop().create_future()
        told: Answer | ToolFailed | None = None
        try:
            answer, seconds = await ask()
            self._keep(key, answer, clock.monotonic() + seconds - min(TOKEN_MARGIN_SECONDS, seconds / 2))
            told = answer
        except ToolFailed as error:
            told = error
            raise
        else:
            return answer
        finally:
            # Nothing told means that this command was stopped: one of those who wait asks again.
            del self._asked[key]
            waiting.set_result(told)

    def _keep(self, key: Hashable, answer: Answer, until: float) -> None:
        self._known[key] = (until, answer)
        self._known.move_to_end(key)
        while len(self._known) > TOKEN_CACHE_MAX:
            self._known.popitem(last=False)


async def fetch_token(request: TokenRequest, http: Tool | None, message: CommandMessage) -> tuple[Answer, float]:
    """The JSON answer of an endpoint, with the token also as `token`, and for how many seconds it holds."""
    if http is None:
        raise _failed(request, "the tool http, which asks for it, is not available in this installation")
    result = await http.run(_call(request, message))
    failure = result.failure
    if failure is not None:
        status = f" with HTTP {failure.status}" if failure.status is not None else f" ({failure.kind})"
        raise _failed(request, f"the request for it failed{status}", retryable=failure.kind in _PASSING)
    answer = _body(result)
    if answer is None:
        raise _failed(request, "the endpoint did not answer with a JSON object")
    token = _at(answer, request.token_field or TOKEN_FIELD)
    if request.token_field is not None and not isinstance(token, str):
        raise _failed(request, f"the answer has no text in {request.token_field!r}")
    value = {**answer, "token": token} if isinstance(token, str) else answer
    return Secret(value), _seconds(_at(answer, request.ttl_field or TTL_FIELD))


def _call(request: TokenRequest, message: CommandMessage) -> ToolCall:
    fields: dict[str, object] = {
        "url": request.url,
        "method": request.method,
        "headers": dict(request.headers),
        # What is sent would be sent again, to whatever address the answer names.
        "follow_redirects": False,
    }
    if request.params is not None:
        fields["params"] = request.params
    if request.body is not None:
        name, body = request.body
        fields[name] = body
    return ToolCall(
        fields=fields,
        input={},
        names={},
        context=None,
        timeout_seconds=TOKEN_REQUEST_SECONDS_MAX,
        tenant_id=message.tenant_id,
        organization_id=message.organization_id,
        execution_id=message.execution_id,
        step=str(message.body.get("step", "")),
        label="keychain",
    )


def _body(result: ToolResult) -> dict[str, object] | None:
    body = result.value.get("data") if isinstance(result.value, dict) else None
    return body if isinstance(body, dict) else None


def _at(answer: object, path: str) -> object:
    """`a.b` is `b` inside `a`, unless there is a key of that very name."""
    if isinstance(answer, dict) and path in answer:
        return answer[path]
    for key in path.split("."):
        if not isinstance(answer, dict):
            return None
        answer = answer.get(key)
    return answer


def _seconds(value: object) -> float:
    try:
        seconds = float(to_text(value))
    except ValueError:
        return TOKEN_SECONDS_DEFAULT
    return min(seconds, TOKEN_SECONDS_MAX) if math.isfinite(seconds) and seconds > 0 else TOKEN_SECONDS_DEFAULT


def _failed(request: TokenRequest, reason: str, *, retryable: bool = False) -> ToolFailed:
    message = f"{request.owner} gives no token: {reason}"
    return ToolFailed(Failure(kind="auth", code="TOKEN_REFUSED", message=message, retryable=retryable))
