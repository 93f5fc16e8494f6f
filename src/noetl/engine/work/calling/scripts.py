"""Scripts in a worker: what is pinned comes by reference, everything else is fetched when its task runs.

A script that was fetched is kept as content of its own, so that the event can say what was run."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from noetl.core.errors import Failure, ScriptUnavailable, ToolFailed
from noetl.core.limits import SCRIPT_BYTES_MAX, SCRIPTS_CACHED_MAX, SCRIPTS_RECORDED_MAX
from noetl.core.playbook.scripts import FILE, HTTP, INLINE, TYPES, UNSUPPORTED_TYPES
from noetl.core.reference import MEDIA_SCRIPT
from noetl.engine.work.parts import WorkerParts
from noetl.ports.session import CommandMessage
from noetl.ports.tool import Script, ToolResult

Ask = Callable[[Mapping[str, object]], Awaitable[ToolResult]]
"""Asks the http tool, which keeps to its addresses and resolves credentials."""

# What a source may say about the request for it.
_REQUEST_KEYS = ("method", "headers", "params", "auth", "verify_ssl", "verify", "timeout")


class Scripts:
    """Belongs to one command or frame.  What it has fetched once it does not fetch again; `fetched` are the references
    by name, as they are recorded."""

    def __init__(self, parts: WorkerParts, message: CommandMessage) -> None:
        pinned: Any = message.body.get("scripts") or {}
        self._pinned: Mapping[str, Mapping[str, object]] = pinned
        self._payloads = parts.payloads
        self._files = parts.scripts
        self._owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
        self._known: OrderedDict[tuple[str, str], Script] = OrderedDict()
        self.fetched: dict[str, Mapping[str, object]] = {}
        self._turn = asyncio.Lock()

    async def load(self, descriptor: object, ask: Ask) -> Script:
        """The script of a rendered descriptor.  Raises ToolFailed."""
        uri, source = _checked(descriptor)
        kind = source.get("type")
        if kind == INLINE:
            return Script(uri or "inline script", str(source.get("code") or ""))
        if kind in UNSUPPORTED_TYPES:
            raise _failed("unsupported", f"scripts of type {kind} cannot be read by this installation", uri)
        if kind == FILE:
            if not uri:
                raise _failed("config", "uri is empty", uri)
            if uri in self._pinned:
                text = await self._payloads.read_text(self._pinned[uri], **self._owner)
                return Script(uri, text)
            return await self._once(FILE, uri, lambda: self._read(uri))
        if kind == HTTP:
            url = str(source.get("endpoint") or uri)
            return await self._once(HTTP, url, lambda: _requested(url, source, ask))
        raise _failed("config", f"source.type must be one of {', '.join(TYPES)}", uri)

    async def _once(self, kind: str, place: str, fetch: Callable[[], Awaitable[str]]) -> Script:
        async with self._turn:
            # Rows that run at the same time want the same script at the same time.
            known = self._known.get((kind, place))
            return known or await self._fetched(kind, place, fetch)

    async def _fetched(self, kind: str, place: str, fetch: Callable[[], Awaitable[str]]) -> Script:
        script = Script(_shown(place) if kind == HTTP else place, await fetch())
        self._known[kind, place] = script
        if len(self._known) > SCRIPTS_CACHED_MAX:
            self._known.popitem(last=False)
        if len(self.fetched) < SCRIPTS_RECORDED_MAX:
            payload = await self._payloads.keep(script.text.encode("utf-8"), media_type=MEDIA_SCRIPT, **self._owner)
            await self._payloads.store(payload)
            self.fetched[script.name] = payload.reference.to_json()
        return script

    async def _read(self, uri: str) -> str:
        if self._files is None:
            raise _failed("config", "this worker reads no files", uri)
        try:
            return (await self._files.read(uri)).decode("utf-8")
        except ScriptUnavailable as error:
            roots = ", ".join(self._files.roots) or "no folder: set NOETL_SCRIPT_ROOTS"
            message = f"{error}; a path that is computed is looked for where the task runs, below {roots}"
            raise _failed("config", message, uri) from error
        except UnicodeDecodeError:
            raise _failed("config", "it is not UTF-8 text", uri) from None


def _checked(descriptor: object) -> tuple[str, Mapping[str, object]]:
    uri = descriptor.get("uri") if isinstance(descriptor, Mapping) else None
    source = descriptor.get("source") if isinstance(descriptor, Mapping) else None
    if not isinstance(source, Mapping) or not isinstance(uri, str | None):
        raise _failed("config", "it is no mapping {uri, source: {type, …}} with a text as uri", "")
    return (uri or "").strip(), source


async def _requested(url: str, source: Mapping[str, object], ask: Ask) -> str:
    fields = {name: source[name] for name in _REQUEST_KEYS if source.get(name) is not None}
    result = await ask({**fields, "url": url, "response_type": "text"})
    if result.failure is not None:
        raise ToolFailed(_told(result.failure, url))
    body = result.value.get("body") if isinstance(result.value, Mapping) else None
    if not isinstance(body, str):
        raise _failed("config", "the answer is no text", _shown(url))
    if len(body) > SCRIPT_BYTES_MAX:
        raise _failed("config", f"it has more than {SCRIPT_BYTES_MAX:,} characters", _shown(url))
    return body


def _told(failure: Failure, url: str) -> Failure:
    """The failure of the request, as that of the task whose script it was for."""
    return Failure(
        kind=failure.kind,
        code=failure.code,
        message=f"script {_shown(url)!r}: {failure.message}",
        status=failure.status,
        retryable=failure.retryable,
        retry_after=failure.retry_after,
    )


def _shown(url: str) -> str:
    """An address without what may be secret in it: the user, the query."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    except ValueError:
        return "an address that is none"


def _failed(kind: str, message: str, uri: str) -> ToolFailed:
    name = f"script {uri[:200]!r}" if uri else "script"
    return ToolFailed(Failure(kind=kind, code="SCRIPT_UNAVAILABLE", message=f"{name}: {message}"))
