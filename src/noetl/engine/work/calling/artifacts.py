"""Stored results for the artifact tool: those of one owner, by their references."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from noetl.core.codec import parse_json
from noetl.core.errors import EnvelopeInvalid, Failure, PayloadCorrupt, PayloadMissing, ToolFailed
from noetl.core.locator import payload_digest, payload_locator
from noetl.core.reference import (
    MEDIA_JSON,
    MEDIA_LOOP,
    MEDIA_PIPELINE,
    STORE_LARGE,
    STORE_SMALL,
    Reference,
    reference_from_json,
)
from noetl.engine.payloads import Payloads
from noetl.engine.results import read_result
from noetl.engine.work.calling.redact import Redactor
from noetl.ports.tool import Artifact

_RESULTS = frozenset((MEDIA_JSON, MEDIA_PIPELINE, MEDIA_LOOP))
# The members of what is kept of pipelines and loops, for an address that does not say what it names.
_PIPELINE_KEYS = frozenset(("order", "results"))
_LOOP_KEYS = frozenset(("total", "success", "failed", "status", "frames"))


class Artifacts:
    """Reads and keeps for one owner and knows no other, and keeps no secret that the redactor has seen."""

    def __init__(self, payloads: Payloads, *, redactor: Redactor, tenant_id: str, organization_id: str) -> None:
        self._payloads = payloads
        self._redactor = redactor
        self._owner = {"tenant_id": tenant_id, "organization_id": organization_id}

    async def read(self, reference: Mapping[str, object] | str) -> Artifact:
        """Raises ToolFailed: what is not there, or not this owner's, is missing."""
        try:
            if isinstance(reference, str):
                return await self._by_address(reference)
            return await self._by_reference(self._checked(reference))
        except PayloadMissing as error:
            raise _missing(str(error)) from error
        except PayloadCorrupt as error:
            raise ToolFailed(Failure(kind="storage_access", code=error.code, message=f"artifact: {error}")) from error

    async def keep(self, content: bytes, *, media_type: str, compression: str | None) -> dict[str, object]:
        if self._redactor.finds(content):
            message = "artifact: data holds a credential: it was not stored"
            raise ToolFailed(Failure(kind="storage_access", code="SECRET_IN_BODY", message=message))
        if compression is not None:
            content = gzip.compress(content, mtime=0)
        payload = await self._payloads.keep(content, media_type=media_type, **self._owner)
        await self._payloads.store(payload)
        return replace(payload.reference, compression=compression).to_json()

    def _checked(self, document: Mapping[str, object]) -> Reference:
        try:
            reference = reference_from_json(dict(document))
        except EnvelopeInvalid as error:
            message = f"artifact: result_ref is no reference: {error}"
            raise ToolFailed(Failure(kind="config", message=message)) from error
        if reference.uri != self._uri(reference.sha256):
            raise _missing(f"{reference.uri} is no payload of this tenant and organization")
        return reference

    def _uri(self, sha256: object) -> str:
        return payload_locator(self._owner["tenant_id"], self._owner["organization_id"], str(sha256))

    async def _by_reference(self, reference: Reference) -> Artifact:
        if reference.media_type in _RESULTS and reference.compression is None:
            value = await read_result(self._payloads, reference.to_json(), **self._owner)
            return Artifact(uri=reference.uri, size_bytes=reference.bytes, content_type=MEDIA_JSON, value=value)
        content = await self._payloads.read(reference, **self._owner)
        return Artifact(
            uri=reference.uri,
            size_bytes=len(content),
            content_type=reference.media_type,
            content=content,
            compression=reference.compression,
        )

    async def _by_address(self, uri: str) -> Artifact:
        """What an address names.  It does not say what is behind it, so the content must."""
        digest = payload_digest(uri)
        if digest is None or uri != self._uri(digest):
            raise _missing(f"{uri} is no payload of this tenant and organization")
        store, content = await self._anywhere(uri, digest)
        media_type = _media_type(content)
        if media_type != MEDIA_JSON:
            return await self._by_reference(
                replace(_bare(uri, digest, store), media_type=media_type, bytes=len(content))
            )
        return Artifact(uri=uri, size_bytes=len(content), content_type=None, content=content, compression="gzip")

    async def _anywhere(self, uri: str, digest: str) -> tuple[str, bytes]:
        try:
            return STORE_SMALL, await self._payloads.read(_bare(uri, digest, STORE_SMALL), **self._owner)
        except PayloadMissing:
            return STORE_LARGE, await self._payloads.read(_bare(uri, digest, STORE_LARGE), **self._owner)


def _bare(uri: str, digest: str, store: str) -> Reference:
    return Reference(kind="payload", uri=uri, sha256=digest, media_type=MEDIA_JSON, bytes=0, store=store)


def _media_type(content: bytes) -> str:
    if not content.startswith(b"{"):
        return MEDIA_JSON
    try:
        document: Any = parse_json(content)
    except (ValueError, RecursionError):
        return MEDIA_JSON
    if set(document) - {"x"} == _PIPELINE_KEYS and isinstance(document["results"], dict):
        is_pipeline = isinstance(document["order"], list) and sorted(document["order"]) == sorted(document["results"])
        return MEDIA_PIPELINE if is_pipeline else MEDIA_JSON
    is_loop = document.keys() >= _LOOP_KEYS and document.keys() <= _LOOP_KEYS | {"count", "fanin"}
    return MEDIA_LOOP if is_loop else MEDIA_JSON


def _missing(message: str) -> ToolFailed:
    return ToolFailed(Failure(kind="missing_reference", message=f"artifact: {message}"))
