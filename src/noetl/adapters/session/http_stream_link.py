"""The kept connection of a worker process to its server: requests, answers, and what their failures mean."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import quote

import aiohttp
import msgspec

from noetl.core import errors
from noetl.core.errors import HostUnavailable, NoetlError, RequestInvalid, Transient

CONNECT_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 60.0
RETRY_AFTER_SECONDS_MAX = 60.0
CHUNK_BYTES = 1024 * 1024
Body = bytes | io.BytesIO | AsyncIterator[bytes] | None
JSON_BODY = {"Content-Type": "application/json"}
_NOT_FOUND = 404
_DENIED = (401, 403)
_CODES: Mapping[str, type[NoetlError]] = {
    kind.code: kind
    for kind in (
        errors.AppendOverloaded,
        errors.EnvelopeInvalid,
        errors.ExecutionClosed,
        errors.ExecutionUnknown,
        errors.LeaseLost,
        errors.LedgerBusy,
        errors.LedgerCorrupt,
        errors.LedgerUnavailable,
        errors.PayloadCorrupt,
        errors.PayloadMissing,
        errors.PayloadUnreadable,
        errors.NotShownYet,
        errors.RequestInvalid,
        errors.ShardMoved,
        errors.StorageFull,
        errors.StoreRefused,
        errors.StoreUnavailable,
        errors.TransitionConflict,
        errors.VersionConflict,
    )
}


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where the server is and what opens it.  `others` are servers on the same ledger, for when this one is away."""

    url: str
    token: str | None
    others: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"ServerPlace({self.url})"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


def owner_headers(tenant_id: str, organization_id: str) -> dict[str, str]:
    return {"Noetl-Tenant": quote(tenant_id, safe=""), "Noetl-Organization": quote(organization_id, safe="")}


def error_of(code: object, detail: object) -> NoetlError:
    """The error that a refusal stands for; a code that is not known here is still a refusal."""
    return _CODES.get(str(code), RequestInvalid)(f"{detail}")


class ServerLink:
    """`async with` it.  Every failure to get an answer is HostUnavailable, every refusal the error it names."""

    def __init__(self, place: ServerPlace) -> None:
        self.place = place
        """The server that is asked now."""
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ServerLink:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS_MAX, sock_read=ANSWER_SECONDS_MAX)
        self._http = aiohttp.ClientSession(
            headers=self.place.headers,
            timeout=timeout,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
        )
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        assert self._http is not None
        await self._http.close()

    def turn(self) -> None:
        """To the next server, if there is another one."""
        if self.place.others:
            following, *rest = self.place.others
            self.place = ServerPlace(following, self.place.token, (*rest, self.place.url))

    def _at(self, path: str) -> str:
        return f"{self.place.url}{path}"

    async def content(
        self, method: str, path: str, *, body: Body = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        assert self._http is not None, "the link is not open"
        try:
            async with self._http.request(
                method, self._at(path), data=body, headers=headers, allow_redirects=False
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise HostUnavailable(f"the server at {self.place.url} does not answer: {error!r}") from error
        if response.status >= 300:
            raise refusal(response.status, content, response.headers.get("Retry-After"))
        return content

    async def chunks(self, path: str, *, headers: Mapping[str, str] | None = None) -> AsyncIterator[bytes]:
        """The body of an answer, as it comes."""
        assert self._http is not None, "the link is not open"
        try:
            async with self._http.get(self._at(path), headers=headers, allow_redirects=False) as response:
                if response.status >= 300:
                    raise refusal(response.status, await response.read())
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise HostUnavailable(f"the server at {self.place.url} does not answer: {error!r}") from error

    async def size(self, path: str, *, headers: Mapping[str, str] | None = None) -> int | None:
        """How many bytes there are at a path; None when there is nothing."""
        assert self._http is not None, "the link is not open"
        try:
            async with self._http.head(self._at(path), headers=headers, allow_redirects=False) as response:
                if response.status == _NOT_FOUND:
                    return None
                if response.status >= 300:
                    raise refusal(response.status, b"")
                return int(response.headers["Content-Length"])
        except (aiohttp.ClientError, TimeoutError, OSError, KeyError, ValueError) as error:
            raise HostUnavailable(f"the server at {self.place.url} does not answer: {error!r}") from error

    async def ask(
        self, method: str, path: str, *, body: object = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, object]:
        """A JSON answer to a JSON question."""
        content = None if body is None else msgspec.json.encode(body)
        return _document(await self.content(method, path, body=content, headers={**JSON_BODY, **(headers or {})}))


def refusal(status: int, content: bytes, retry_after: str | None = None) -> NoetlError:
    """The error that an answer stands for; one that is for now says when to try again."""
    error = _refusal(status, content)
    if isinstance(error, Transient) and retry_after is not None and retry_after.isascii() and retry_after.isdigit():
        error.retry_after_seconds = min(float(retry_after), RETRY_AFTER_SECONDS_MAX)
    return error


def _refusal(status: int, content: bytes) -> NoetlError:
    try:
        document = _document(content)
    except HostUnavailable:
        document = {}
    code, detail = document.get("code"), document.get("detail", f"status {status}")
    if status >= 500 and code not in _CODES:
        return HostUnavailable(f"the server answers {status}: {detail}")
    if code is None or code not in _CODES:
        return Refused(status, str(code), str(detail))
    return error_of(code, detail)


class Refused(RequestInvalid):
    """A refusal without an error of ours: unauthorized, forbidden, too large, not found."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        self.status = status
        super().__init__(f"{code}: {detail}")

    @property
    def is_denied(self) -> bool:
        return self.status in _DENIED

    @property
    def is_not_found(self) -> bool:
        return self.status == _NOT_FOUND


def _document(content: bytes) -> dict[str, object]:
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HostUnavailable(f"the server's answer is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise HostUnavailable("the server's answer is not a JSON object")
    return found
