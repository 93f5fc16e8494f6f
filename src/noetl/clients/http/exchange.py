"""One exchange: send, follow redirects hop by hop under the policy, and answer with the last response."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache

import aiohttp
from yarl import URL

from noetl.clients.http.failures import place, refused_failure, timeout_failure, transport_failure
from noetl.clients.http.policy import AddressPolicy, AddressRefused
from noetl.clients.http.request import HttpRequest, checked_url
from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import HTTP_REDIRECTS_MAX

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEEPS_BODY = frozenset({307, 308})
# Above this aiohttp wants a body as a stream, which it sends in pieces.
_STREAMED_BODY_BYTES = 512 * 1024


class Exchange:
    """The state of one call: where it is now, and what may still be sent along."""

    def __init__(self, request: HttpRequest, policy: AddressPolicy) -> None:
        self._policy = policy
        self._request = request
        self.method = request.method
        self.url = request.url
        self._headers = request.headers
        self._body = request.body
        self._hops = 0

    @asynccontextmanager
    async def response(self, session: aiohttp.ClientSession) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer that is no redirect to be followed.  Its connection is reused only if the block ends well."""
        while True:
            response = await self._send(session)
            is_done = False
            try:
                target = self._target(response)
                if target is None:
                    yield response
                is_done = True
            finally:
                if is_done:
                    response.release()
                else:
                    response.close()
            if target is None:
                return
            self._move(target, response.status)

    async def _send(self, session: aiohttp.ClientSession) -> aiohttp.ClientResponse:
        url = self.url
        assert url.raw_host is not None
        assert url.port is not None
        self._policy.check_host(url.raw_host, url.port)
        body = self._body
        return await session.request(
            self.method,
            url,
            headers=self._headers,
            data=io.BytesIO(body) if body is not None and len(body) > _STREAMED_BODY_BYTES else body,
            allow_redirects=False,
            timeout=_timeout(self._request.connect_seconds, self._request.read_seconds),
        )

    def _target(self, response: aiohttp.ClientResponse) -> URL | None:
        """Where a redirect leads, or None when the answer is to be taken as it is."""
        if response.status not in _REDIRECTS or not self._request.follows_redirects:
            return None
        location = response.headers.get("Location")
        if not location:
            return None
        self._hops += 1
        if self._hops > HTTP_REDIRECTS_MAX:
            raise ToolFailed(self._failure("TOO_MANY_REDIRECTS", f"more than {HTTP_REDIRECTS_MAX} redirects"))
        try:
            target = self.url.join(URL(location))
            # A name and password in a redirect are the sender's invention, not the playbook's.
            return checked_url(target.with_user(None) if target.user is not None else target)
        except (ValueError, ToolFailed):
            raise ToolFailed(self._failure("REDIRECT_INVALID", "the redirect leads to no http address")) from None

    def _failure(self, code: str, what: str) -> Failure:
        return Failure(kind="client_error", code=code, message=f"{place(self.method, self.url)}: {what}")

    def _move(self, target: URL, status: int) -> None:
        """Go to the next hop: never with credentials to another origin, and without body where the rules drop it."""
        if target.origin() != self.url.origin():
            self._headers = self._request.headers_elsewhere()
        if status not in _KEEPS_BODY and self.method not in ("GET", "HEAD"):
            self.method = "GET"
            self._body = None
            self._headers = self._headers.copy()
            self._headers.popall("Content-Type", None)
        self.url = target


@asynccontextmanager
async def limited(exchange: Exchange, seconds: float) -> AsyncIterator[None]:
    """The time limit of a whole exchange; whatever ends it without an answer becomes ToolFailed."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except AddressRefused:
        raise ToolFailed(refused_failure(exchange.method, exchange.url)) from None
    except aiohttp.ClientError as error:
        raise ToolFailed(transport_failure(exchange.method, exchange.url, error)) from error
    except TimeoutError:
        message = f"no answer within {seconds:g} s"
        raise ToolFailed(timeout_failure(exchange.method, exchange.url, message)) from None
    except OSError as error:
        raise ToolFailed(transport_failure(exchange.method, exchange.url, error)) from error


@lru_cache(maxsize=64)
def _timeout(connect_seconds: float | None, read_seconds: float | None) -> aiohttp.ClientTimeout:
    """The limits of single waits; the call as a whole is limited by its caller."""
    return aiohttp.ClientTimeout(total=None, connect=connect_seconds, sock_read=read_seconds)
