"""What went wrong as recorded data: kind, code, and a message without query, credentials or inner addresses."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import aiohttp
from yarl import URL

from noetl.clients.http.policy import AddressRefused
from noetl.core.errors import Failure

_KINDS = {401: "auth", 403: "auth", 404: "not_found", 429: "rate_limit"}
_RETRYABLE = frozenset({"rate_limit", "server_error", "connection", "timeout"})
_URL_CHARS_MAX = 200
_RESETS = (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED)


def config_failure(message: str, code: str | None = None) -> Failure:
    return Failure(kind="config", code=code, message=f"http: {message}")


def place(method: str, url: URL) -> str:
    """`GET https://host/path`.  A query may hold secrets and is left out."""
    text = f"{method} {url.origin()}{url.raw_path}"
    return text if len(text) <= _URL_CHARS_MAX else text[: _URL_CHARS_MAX - 1] + "…"


def status_failure(method: str, url: URL, status: int, headers: Mapping[str, str]) -> Failure | None:
    """The failure of an answer, or None for 2xx and 3xx."""
    if status < 400:
        return None
    kind = _KINDS.get(status) or ("server_error" if status >= 500 else "client_error")
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
    return Failure(
        kind=kind,
        code=f"HTTP_{status}",
        status=status,
        message=f"{place(method, url)} answered {status} {phrase}".rstrip(),
        retryable=kind in _RETRYABLE,
        retry_after=retry_after(headers) if status in (429, 503) else None,
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait.  A date counts from the answer's own `Date`, so that nobody's clock has to be right."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    until, sent = _date(text), _date(headers.get("date", ""))
    if until is None or sent is None:
        return None
    return max(0.0, (until - sent).total_seconds())


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    # Without a zone it cannot be compared; RFC 9110 knows only GMT.
    return moment if moment.tzinfo is not None else None


def timeout_failure(method: str, url: URL, what: str) -> Failure:
    message = f"{place(method, url)}: {what}"
    return Failure(kind="timeout", code="TIMEOUT", message=message, retryable=True, exception_type="TimeoutError")


def refused_failure(method: str, url: URL) -> Failure:
    return Failure(
        kind="config",
        code="ADDRESS_REFUSED",
        message=f"{place(method, url)}: the address policy does not admit this host; "
        "an installation allows hosts beyond the public internet by NOETL_HTTP_ALLOW",
    )


def transport_failure(method: str, url: URL, error: aiohttp.ClientError | OSError) -> Failure:
    """A request that got no answer.  The texts of the driver are not passed on: they name inner addresses."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, AddressRefused):
        return refused_failure(method, url)
    if isinstance(error, asyncio.TimeoutError):
        is_connecting = isinstance(error, aiohttp.ConnectionTimeoutError)
        return timeout_failure(method, url, "no connection in time" if is_connecting else "no answer in time")
    kind, code, what = _described(error, cause)
    return Failure(
        kind=kind,
        code=code,
        message=f"{place(method, url)}: {what}",
        retryable=kind in _RETRYABLE,
        exception_type=type(cause).__name__,
    )


def _described(error: Exception, cause: Exception) -> tuple[str, str, str]:
    if isinstance(error, aiohttp.InvalidURL):
        return "config", "URL_INVALID", "the URL is not valid"
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ServerFingerprintMismatch):
        return "connection", "TLS_ERROR", "the secure connection failed; the certificate may not be trusted"
    if isinstance(cause, socket.gaierror) or isinstance(error, aiohttp.ClientConnectorDNSError):
        return "connection", "DNS_ERROR", "the host name has no address"
    if isinstance(cause, ConnectionRefusedError):
        return "connection", "CONN_REFUSED", "connection refused"
    number = getattr(cause, "errno", None)
    if isinstance(error, aiohttp.ServerDisconnectedError) or number in _RESETS:
        return "connection", "CONN_RESET", "the server closed the connection"
    if number in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return "connection", "HOST_UNREACHABLE", "there is no way to the host"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "connection", "BODY_INCOMPLETE", "the answer ended before its body was complete or could be decoded"
    if isinstance(error, aiohttp.ClientResponseError):
        return "parse", "HTTP_MALFORMED", "the answer is not HTTP"
    return "connection", "CONN_ERROR", "the connection failed"


def storage_failure(error: OSError) -> Failure:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    what = "there is no space for the body" if is_full else "the body could not be stored"
    kind, code = ("storage_quota", "NO_SPACE") if is_full else ("storage_access", "STORE_FAILED")
    return Failure(kind=kind, code=code, message=f"http: {what}", exception_type=type(error).__name__)
