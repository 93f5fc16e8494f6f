"""The options of `noetl_http`, read and checked.  Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from noetl.clients.http.request import is_credential_header
from noetl.core.credential_keys import credential_at
from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import (
    SOURCE_HTTP_PARTITIONS,
    SOURCE_HTTP_RETRIES,
    SOURCE_HTTP_SECONDS_MAX,
    SOURCE_PAGES_MAX,
    SOURCE_PARTITIONS_MAX,
)

NAME = "noetl_http"
_METHODS = ("GET", "POST")
_REQUEST = frozenset({"url", "path", "method", "headers", "params", "body", "auth", "verify_ssl", "timeout_seconds"})
_NUMBERED = frozenset({"page_param", "page_start", "page_size_param", "page_size", "offset_param", "more_path"})
_COUNTED = frozenset({"pages", "pages_path", "total_path", "partitions"})
_CHAINED = frozenset({"next_path", "cursor_param", "next_link"})
_KNOWN = _REQUEST | _NUMBERED | _COUNTED | _CHAINED | {"data_path", "rate_per_s", "retries"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    fields: Mapping[str, object]
    """Of one request, as the http tool has them."""
    data_path: tuple[str, ...]
    page_param: str | None
    offset_param: str | None
    page_start: int
    page_size_param: str | None
    page_size: int | None
    pages: int | None
    pages_path: tuple[str, ...]
    total_path: tuple[str, ...]
    more_path: tuple[str, ...]
    next_path: tuple[str, ...]
    cursor_param: str | None
    is_linked: bool
    partitions: int
    rate_per_s: float | None
    retries: int
    timeout_seconds: float

    @property
    def is_numbered(self) -> bool:
        """Pages have numbers, so any of them can be asked for at once."""
        return self.page_param is not None or self.offset_param is not None

    @property
    def is_chained(self) -> bool:
        """Each page says which one is next."""
        return bool(self.next_path) or self.is_linked


def http_options(options: Mapping[str, str]) -> HttpOptions:
    """Raises ToolFailed with the name of the option."""
    unknown = sorted(name for name in options if name.lower() not in _KNOWN)
    if unknown:
        raise wrong(f"{', '.join(unknown)}: there is no such option; there are {', '.join(sorted(_KNOWN))}")
    offset = options.get("offset_param")
    page_size = _whole(options, "page_size", None, 1, SOURCE_PAGES_MAX)
    found = HttpOptions(
        fields=_fields(options),
        data_path=_path(options.get("data_path")),
        page_param=options.get("page_param"),
        offset_param=offset,
        page_start=_whole(options, "page_start", 0 if offset else 1, 0, SOURCE_PAGES_MAX) or 0,
        page_size_param=options.get("page_size_param"),
        page_size=page_size,
        pages=_whole(options, "pages", None, 1, SOURCE_PAGES_MAX),
        pages_path=_path(options.get("pages_path")),
        total_path=_path(options.get("total_path")),
        more_path=_path(options.get("more_path")),
        next_path=_path(options.get("next_path")),
        cursor_param=options.get("cursor_param"),
        is_linked=_flag(options, "next_link", default=False),
        partitions=_whole(options, "partitions", SOURCE_HTTP_PARTITIONS, 1, SOURCE_PARTITIONS_MAX) or 1,
        rate_per_s=_number(options, "rate_per_s"),
        retries=_whole(options, "retries", SOURCE_HTTP_RETRIES, 0, 100) or 0,
        timeout_seconds=_number(options, "timeout_seconds") or SOURCE_HTTP_SECONDS_MAX,
    )
    _check(found)
    return found


def _check(options: HttpOptions) -> None:
    ways = (options.page_param is not None, options.offset_param is not None, options.is_chained)
    if sum(ways) > 1:
        raise wrong("page_param, offset_param and next_path (or next_link) are given: pages have one order")
    if options.next_path and options.is_linked:
        raise wrong("next_path and next_link are given: the next page is in the body or in the header Link")
    needs_size = bool(options.offset_param) or bool(options.total_path)
    if needs_size and options.page_size is None:
        raise wrong("page_size is required with offset_param and with total_path")
    counts = [name for name in ("pages", "pages_path", "total_path") if getattr(options, name)]
    if len(counts) > 1:
        raise wrong(f"{' and '.join(counts)} are given: one of them says how many pages there are")
    if counts and not options.is_numbered:
        raise wrong(f"{counts[0]} needs page_param or offset_param")
    if options.cursor_param and not options.next_path:
        raise wrong("cursor_param needs next_path: where a page has the cursor of the next one")


def _fields(options: Mapping[str, str]) -> dict[str, object]:
    url = options.get("url") or options.get("path")
    if not url:
        raise wrong("url is required")
    headers = _mapping(options, "headers")
    for name in headers:
        if is_credential_header(name):
            raise wrong(f"header {name!r} may be a secret, and options are seen in plans and logs: use auth")
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise wrong("url has a user in it, and options are seen in plans and logs: use auth")
    fields: dict[str, object] = {"url": url, "method": _method(options), "headers": headers}
    fields["params"] = _mapping(options, "params")
    fields["verify_ssl"] = _flag(options, "verify_ssl", default=True)
    if options.get("body"):
        fields["json"] = _json(options, "body")
    _check_secrets("url", dict(parse_qsl(url.partition("?")[2].partition("#")[0])))
    _check_secrets("params", fields["params"])
    _check_secrets("body", fields.get("json"))
    return fields


def _method(options: Mapping[str, str]) -> str:
    method = options.get("method", "GET").strip().upper()
    if method not in _METHODS:
        raise wrong(
            f"method must be {' or '.join(_METHODS)}, not {method[:20]!r}: a read changes nothing, and is repeated"
        )
    return method


def _check_secrets(name: str, value: object) -> None:
    found = credential_at(value)
    if found is not None:
        member = ".".join(str(step) for step in found)[:200]
        raise wrong(f"{name}: {member} may be a secret, and options are seen in plans and logs: use auth")


def wrong(message: str, code: str = "OPTION_INVALID") -> ToolFailed:
    return ToolFailed(Failure(kind="config", code=code, message=f"{NAME}: {message}"))


def _path(text: str | None) -> tuple[str, ...]:
    return tuple(part for part in (text or "").split(".") if part)


def _json(options: Mapping[str, str], name: str) -> object:
    try:
        return json.loads(options[name])
    except ValueError:
        raise wrong(f"{name} must be JSON") from None


def _mapping(options: Mapping[str, str], name: str) -> dict[str, object]:
    if not options.get(name):
        return {}
    found = _json(options, name)
    if not isinstance(found, dict):
        raise wrong(f"{name} must be a JSON object")
    return found


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise wrong(f"{name} must be true or false, not {text!r}")
    return text == "true"


def _whole(options: Mapping[str, str], name: str, default: int | None, low: int, high: int) -> int | None:
    text = options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not low <= int(text[:9]) <= high:
        raise wrong(f"{name} must be a whole number from {low} to {high}, not {text!r}")
    return int(text)


def _number(options: Mapping[str, str], name: str) -> float | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 < number < float("inf"):
        raise wrong(f"{name} must be a number above 0, not {text!r}")
    return number
