"""What a call of `artifact` wants, read from its fields and its input (dsl §9.11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from noetl.core.codec import parse_json
from noetl.core.errors import Failure, ToolFailed
from noetl.core.locator import SCHEME, is_ours
from noetl.ports.tool import ToolCall

ACTIONS = ("get", "put")
NOETL, FILE = "noetl", "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`reference` is what `result_ref` or a `noetl://` address says; `path` a file; `data` what is to be put."""

    action: str
    scheme: str
    uri: str | None = None
    reference: Mapping[str, object] | str | None = None
    path: str | None = None
    data: object = None
    is_compressed: bool = False


def request_of(call: ToolCall) -> Request:
    """Raises ToolFailed."""
    given = {**call.input, **call.fields}
    action = given.get("action") or "get"
    if action not in ACTIONS:
        raise wrong(f"action must be get or put, not {action!r}")
    is_compressed = _compression(given.get("compress"))
    if action == "get" and "result_ref" in given:
        return Request(action=action, scheme=NOETL, reference=_reference(given["result_ref"]))
    uri = given.get("uri")
    if uri is None and action == "put":
        uri = SCHEME
    if not isinstance(uri, str) or not uri:
        raise wrong("result_ref or uri is needed" if action == "get" else "uri must be text")
    if action == "put" and "data" not in given:
        raise wrong("data is needed")
    scheme = urlsplit(uri).scheme.lower()
    if scheme == FILE:
        path, data = _file(uri), given.get("data")
        return Request(action=action, scheme=FILE, uri=uri, path=path, data=data, is_compressed=is_compressed)
    if not is_ours(uri):
        named = scheme or "addresses without a scheme"
        message = f"artifact: there is no driver for {named}: use {SCHEME} or file://"
        raise ToolFailed(Failure(kind="unsupported", message=message))
    if action == "get":
        return Request(action=action, scheme=NOETL, uri=uri, reference=uri)
    if uri != SCHEME:
        raise wrong(f"a stored payload is named by its content: write uri: {SCHEME}")
    return Request(action=action, scheme=NOETL, uri=uri, data=given["data"], is_compressed=is_compressed)


def _reference(value: object) -> Mapping[str, object] | str:
    if value is None or value == "":
        message = "artifact: result_ref is empty: the result that it names was small and is not stored externally"
        raise ToolFailed(Failure(kind="missing_reference", message=message))
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = parse_json(value)
        except ValueError as error:
            raise _no_reference() from error
    if isinstance(value, Mapping) and isinstance(value.get("_ref"), Mapping):
        # What stands for a body that was too large to hold.
        value = value["_ref"]
    if isinstance(value, Mapping) or (isinstance(value, str) and is_ours(value)):
        return value
    raise _no_reference()


def _no_reference() -> ToolFailed:
    return wrong(f"result_ref is no reference: it is neither a mapping nor a {SCHEME} address")


def _file(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise wrong("a file is written as file:///folder/name, without host, query and fragment")
    path = unquote(parts.path)
    if not path.startswith("/") or "\0" in path:
        raise wrong("a file is written as file:///folder/name")
    return path


def _compression(value: object) -> bool:
    if value in (None, False, "", "none"):
        return False
    if value in (True, "gzip", "gz"):
        return True
    raise wrong(f"compress must be gzip, true or false, not {value!r}")


def wrong(message: str) -> ToolFailed:
    return ToolFailed(Failure(kind="config", message=f"artifact: {message}"))
