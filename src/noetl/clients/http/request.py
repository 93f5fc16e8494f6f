"""The fields of a task as one request (dsl §9.3).  Pure: what cannot be sent is refused here, with the field's name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl, urlencode

from multidict import CIMultiDict
from yarl import URL

from noetl.clients.http.credentials import auth_headers, basic_authorization
from noetl.clients.http.failures import config_failure
from noetl.core.errors import ToolFailed
from noetl.core.expression import is_true, to_text
from noetl.ports.secrets import Credential

RESPONSE_TYPES = ("auto", "json", "text", "binary")
BODY_FIELDS = ("json", "form", "body", "payload", "data")
_QUERY_METHODS = frozenset({"GET", "HEAD", "DELETE"})
_METHOD = re.compile(r"[A-Z]{3,20}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# The transport writes these itself; a hand-written one could make two readers see two requests.
_REFUSED_HEADERS = frozenset({"host", "transfer-encoding", "upgrade", "te", "trailer", "proxy-connection"})
_IGNORED_HEADERS = frozenset({"content-length", "connection", "keep-alive"})
# Whatever looks like a credential stays with the origin that it was meant for.
_CREDENTIAL_HEADER = re.compile(r"auth|cookie|token|secret|api-?key|apikey|password|credential|session|signature", re.I)
_JSON_TYPE = "application/json"
_FORM_TYPE = "application/x-www-form-urlencoded"
_TEXT_TYPE = "text/plain; charset=utf-8"
_UNITS = (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0))


class Asking(Protocol):
    """Who asks for a request: a call of a tool, or a data source with its options."""

    @property
    def fields(self) -> Mapping[str, object]: ...

    @property
    def input(self) -> Mapping[str, object]:
        """Counts where `fields` says nothing."""
        ...

    @property
    def auth(self) -> Credential | Mapping[str, Credential] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One request, ready to be sent."""

    method: str
    url: URL
    headers: CIMultiDict[str]
    body: bytes | None
    is_verified: bool
    follows_redirects: bool
    response_type: str
    connect_seconds: float | None
    read_seconds: float | None
    credentials: frozenset[str]
    """Names, in lower case, of the headers that the credential wrote."""

    def headers_elsewhere(self) -> CIMultiDict[str]:
        """The headers without anything secret, for another origin."""
        return CIMultiDict(
            (name, value)
            for name, value in self.headers.items()
            if name.lower() not in self.credentials and not is_credential_header(name)
        )


def is_credential_header(name: str) -> bool:
    """Whether a header looks like one that holds a secret."""
    return _CREDENTIAL_HEADER.search(name) is not None


def read_request(call: Asking) -> HttpRequest:
    """Raises ToolFailed with kind `config`, or `auth` when the credential does not fit."""
    method = to_text(_given(call, "method") or "GET").strip().upper()
    if _METHOD.fullmatch(method) is None or method == "CONNECT":
        raise _wrong(f"method {method[:20]!r} is not one this tool can send")
    url = _url(_given(call, "url", "endpoint"))
    headers = _headers(_given(call, "headers"))
    secret = auth_headers(call.auth, call.fields.get("auth"))
    if url.user is not None:
        secret = {"Authorization": basic_authorization(url.user, url.password or ""), **secret}
        url = url.with_user(None)
    query, body = _query_and_body(call, method, headers)
    if query:
        url = url.extend_query(query)
    for name, value in secret.items():
        headers[name] = value
    response_type = to_text(_given(call, "response_type") or "auto").lower()
    if response_type not in RESPONSE_TYPES:
        raise _wrong(f"response_type must be one of {', '.join(RESPONSE_TYPES)}, not {response_type[:20]!r}")
    connect_seconds, read_seconds = _timeouts(call.fields.get("timeout"))
    return HttpRequest(
        method=method,
        url=url,
        headers=headers,
        body=body,
        is_verified=_flag(call, "verify_ssl", "verify"),
        follows_redirects=_flag(call, "follow_redirects"),
        response_type=response_type,
        connect_seconds=connect_seconds,
        read_seconds=read_seconds,
        credentials=frozenset(name.lower() for name in secret),
    )


def _given(call: Asking, *names: str) -> object:
    """The first of the fields that is given, by the tool or else by `input`."""
    for source in (call.fields, call.input):
        for name in names:
            value = source.get(name)
            if value is not None:
                return value
    return None


def _flag(call: Asking, *names: str) -> bool:
    value = _given(call, *names)
    return True if value is None else is_true(value)


# --- url and query ---------------------------------------------------------------------------------------


def _url(value: object) -> URL:
    text = "" if value is None else to_text(value).strip()
    if not text:
        raise _wrong("url is required")
    if _CONTROL.search(text):
        raise _wrong("url has a line break or another control character", "URL_INVALID")
    try:
        return checked_url(URL(text))
    except ValueError:
        # What yarl says would repeat the text, and with it what its query holds.
        raise _wrong("url is not a valid address", "URL_INVALID") from None


def checked_url(url: URL) -> URL:
    """An absolute http or https URL without its fragment."""
    if url.scheme not in ("http", "https"):
        raise _wrong(f"url must begin with http:// or https://, not {url.scheme[:20]!r}", "URL_INVALID")
    if not url.raw_host or not url.port:
        raise _wrong("url needs a host and a port above 0", "URL_INVALID")
    return url.with_fragment(None) if url.raw_fragment else url


def pairs(value: object, name: str) -> list[tuple[str, str]]:
    """Parameters of a query or a form: null is left out, booleans are words, lists repeat the key (dsl §7.2)."""
    if isinstance(value, str):
        return parse_qsl(value.removeprefix("?"), keep_blank_values=True)
    if not isinstance(value, Mapping):
        raise _wrong(f"{name} must be a mapping or a text")
    return [
        (str(key), _word(item))
        for key, entry in value.items()
        for item in (entry if isinstance(entry, list | tuple) else (entry,))
        if item is not None
    ]


def _word(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else to_text(value)


# --- headers and body ------------------------------------------------------------------------------------


def _headers(value: object) -> CIMultiDict[str]:
    headers: CIMultiDict[str] = CIMultiDict()
    if value is None:
        return headers
    if not isinstance(value, Mapping):
        raise _wrong("headers must be a mapping")
    for key, entry in value.items():
        name = str(key).strip()
        if _HEADER_NAME.fullmatch(name) is None:
            raise _wrong(f"{name[:50]!r} is not the name of a header")
        if name.lower() in _REFUSED_HEADERS:
            raise _wrong(f"header {name!r} is set by the transport and cannot be given")
        if entry is None or name.lower() in _IGNORED_HEADERS:
            continue
        text = to_text(entry).strip()
        if _CONTROL.search(text.replace("\t", " ")):
            raise _wrong(f"header {name!r} has a line break or another control character")
        headers[name] = text
    return headers


def _query_and_body(call: Asking, method: str, headers: CIMultiDict[str]) -> tuple[list[tuple[str, str]], bytes | None]:
    """The query from `params` and `data`, and the encoded body, whose type is written into the headers."""
    params = _given(call, "params")
    query = [] if params is None else pairs(params, "params")
    name, value = _body_field(call)
    if name == "data":
        more, value = _split_data(value, method)
        query += [] if more is None else pairs(more, "data")
    if name is None or value is None:
        return query, None
    body, media_type = _encoded(name, value, headers.get("Content-Type", ""))
    headers.setdefault("Content-Type", media_type)
    return query, body


def _body_field(call: Asking) -> tuple[str | None, object]:
    for source in (call.fields, call.input):
        given = [name for name in BODY_FIELDS if source.get(name) is not None]
        if len(given) > 1:
            raise _wrong(f"{' and '.join(given)} are given: a request has one body")
        if given:
            return given[0], source[given[0]]
    return None, None


def _split_data(value: object, method: str) -> tuple[object, object]:
    """`data` is the query of a request without a body; otherwise its `query` and `body`, or the body."""
    parts = value if isinstance(value, Mapping) and value and value.keys() <= {"query", "body"} else None
    if method in _QUERY_METHODS:
        inner = parts.get("query") if parts is not None else None
        return (inner if isinstance(inner, Mapping) else value), None
    if parts is not None:
        return parts.get("query"), parts.get("body")
    return None, value


def _encoded(name: str, value: object, content_type: str) -> tuple[bytes, str]:
    is_form = content_type.partition(";")[0].strip().lower() == _FORM_TYPE
    if name == "form" or (is_form and name != "json" and isinstance(value, Mapping)):
        text = value if isinstance(value, str) else urlencode(pairs(value, name))
        return text.encode(), _FORM_TYPE
    if isinstance(value, str) and name != "json":
        return _utf8(value), _TEXT_TYPE
    try:
        return _utf8(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))), _JSON_TYPE
    except (TypeError, ValueError, RecursionError) as error:
        raise _wrong(f"{name} has no JSON form") from error


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


# --- timeouts --------------------------------------------------------------------------------------------


def _timeouts(value: object) -> tuple[float | None, float | None]:
    """`{connect, read}`; the time of the whole call is the pipeline's."""
    if value is None:
        return None, None
    if not isinstance(value, Mapping) or not value.keys() <= {"connect", "read"}:
        raise _wrong("spec.timeout must be seconds or {connect, read}")
    return _seconds(value.get("connect")), _seconds(value.get("read"))


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    text = str(value).strip()
    unit, factor = next(((unit, factor) for unit, factor in _UNITS if text.endswith(unit)), ("", 1.0))
    try:
        seconds = float(text.removesuffix(unit)) * factor
    except ValueError:
        seconds = -1.0
    if isinstance(value, bool) or not 0.0 < seconds < float("inf"):
        raise _wrong(f"{text[:20]!r} is not a time in seconds")
    return seconds


def _wrong(message: str, code: str | None = None) -> ToolFailed:
    return ToolFailed(config_failure(message, code))
