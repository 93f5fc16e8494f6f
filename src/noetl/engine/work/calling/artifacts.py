"""Stored results for the artifact tool: those of one owner, by their references."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from noetl.core.codec import parse_json
from noetl.core.dataset import MEDIA_DATASET, is_manifest, is_tabular, manifest_from
from noetl.core.errors import EnvelopeInvalid, Failure, PayloadCorrupt, PayloadMissing, ToolFailed
from noetl.core.locator import payload_digest, payload_locator
from noetl.core.reference import (
    MEDIA_ARROW,
    MEDIA_JSON,
    MEDIA_LOOP,
    MEDIA_PIPELINE,
    STORE_ANY,
    STORE_SMALL,
    Reference,
    is_parted,
    parted_media,
    reference_from_json,
)
from noetl.core.results.parts import split
from noetl.engine.payloads import Payloads
from noetl.engine.results import read_result
from noetl.engine.stored.reader import Reader
from noetl.engine.stored.sources import settled
from noetl.engine.stored.unavailable import unavailable
from noetl.engine.work.calling.redact import Redactor
from noetl.engine.work.calling.tables import GivenTable
from noetl.ports.tool import Artifact

_RESULTS = frozenset((MEDIA_JSON, MEDIA_PIPELINE, MEDIA_LOOP))
# The members of what is kept of pipelines and loops, for an address that does not say what it names.
_PIPELINE_KEYS = frozenset(("order", "results"))
_PARTED_KEYS = frozenset(("value", "parts"))
_MANIFEST_KEYS = frozenset(("version", "format", "arrow_schema", "schema_digest", "row_count", "partition_by", "parts"))
# How an Arrow stream begins.
_ARROW_MAGIC = b"\xff\xff\xff\xff"
THREAD_BYTES_MIN = 64 * 1024
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
        except (PayloadMissing, PayloadCorrupt) as error:
            raise ToolFailed(unavailable(error, "artifact")) from error

    def table(self, reference: Mapping[str, object]) -> GivenTable:
        return GivenTable(self._payloads, reference, **self._owner)

    async def keep(self, content: bytes, *, media_type: str, compression: str | None) -> dict[str, object]:
        if self._redactor.finds(content):
            message = "artifact: data holds a credential: it was not stored"
            raise ToolFailed(Failure(kind="storage_access", code="SECRET_IN_BODY", message=message))
        if compression is not None:
            content = await _compressed(content)
        payload = await self._payloads.keep(content, media_type=media_type, **self._owner)
        await self._payloads.store(payload)
        return replace(payload.reference, compression=compression).to_json()

    def _checked(self, document: Mapping[str, object]) -> Reference:
        try:
            reference = reference_from_json(dict(document))
        except EnvelopeInvalid as error:
            message = f"artifact: result_ref is no reference: {error}"
            raise ToolFailed(Failure(kind="config", message=message)) from error
        digest = payload_digest(reference.uri)
        if digest is None or digest != reference.sha256 or reference.uri != self._uri(digest):
            raise _missing(f"{reference.uri} is no payload of this tenant and organization")
        return reference

    def _uri(self, sha256: str) -> str:
        return payload_locator(self._owner["tenant_id"], self._owner["organization_id"], sha256)

    async def _by_reference(self, reference: Reference) -> Artifact:
        if is_tabular(reference.media_type) or is_parted(reference.media_type):
            return await self._with_parts(reference)
        if reference.media_type in _RESULTS and reference.compression is None:
            value = await read_result(self._payloads, reference.to_json(), **self._owner)
            return Artifact(uri=reference.uri, size_bytes=reference.bytes, content_type=MEDIA_JSON, value=value)
        self._payloads.used.opened(reference.sha256)
        content = await self._payloads.read(reference, **self._owner)
        return Artifact(
            uri=reference.uri,
            size_bytes=len(content),
            content_type=reference.media_type,
            content=content,
            compression=reference.compression,
        )

    async def _with_parts(self, reference: Reference) -> Artifact:
        """A table, or a value with tables in it: they are named and not read."""
        if reference.media_type == MEDIA_ARROW and reference.row_count is None:
            reference = await self._table(reference, await self._payloads.read(reference, **self._owner))
        if reference.media_type == MEDIA_DATASET and reference.row_count is None:
            reference = _dataset(reference, await self._payloads.read(reference, **self._owner))
        reader = Reader(self._payloads, **self._owner)
        value, parts = await settled(lambda: split(reader.result(reference.to_json())))
        return Artifact(
            uri=reference.uri,
            size_bytes=reference.bytes,
            content_type=parts[()]._reference["media_type"] if () in parts else MEDIA_JSON,
            value=value,
            parts={place: part._reference for place, part in parts.items()},
        )

    async def _by_address(self, uri: str) -> Artifact:
        """What an address names.  It does not say what is behind it, so the content must."""
        digest = payload_digest(uri)
        if digest is None or uri != self._uri(digest):
            raise _missing(f"{uri} is no payload of this tenant and organization")
        store, content = await self._anywhere(uri, digest)
        if content.startswith(_ARROW_MAGIC) and self._payloads.tables is not None:
            with contextlib.suppress(PayloadCorrupt):  # other bytes may begin like this
                table = await self._table(replace(_bare(uri, digest, store), bytes=len(content)), content)
                return await self._with_parts(table)
        media_type = _media_type(content)
        if media_type != MEDIA_JSON:
            return await self._by_reference(
                replace(_bare(uri, digest, store), media_type=media_type, bytes=len(content))
            )
        return Artifact(uri=uri, size_bytes=len(content), content_type=None, content=content, compression="gzip")

    async def _table(self, bare: Reference, content: bytes) -> Reference:
        """The reference of a table, with what only its bytes tell."""
        if self._payloads.tables is None:
            raise PayloadMissing(f"{bare.uri} is a table, and this process cannot read tables")
        reference = replace(bare, media_type=MEDIA_ARROW)
        table = await self._payloads.tables.open_bytes(content, reference)
        try:
            return replace(reference, row_count=table.row_count)
        finally:
            table.close()

    async def _anywhere(self, uri: str, digest: str) -> tuple[str, bytes]:
        try:
            return STORE_SMALL, await self._payloads.read(_bare(uri, digest, STORE_SMALL), **self._owner)
        except PayloadMissing:
            return STORE_ANY, await self._payloads.read(_bare(uri, digest, STORE_ANY), **self._owner)


async def _compressed(content: bytes) -> bytes:
    """In a thread, unless it is done before a thread would begin."""
    if len(content) <= THREAD_BYTES_MIN:
        return gzip.compress(content, mtime=0)
    return await asyncio.to_thread(gzip.compress, content, mtime=0)


def _bare(uri: str, digest: str, store: str) -> Reference:
    return Reference(kind="payload", uri=uri, sha256=digest, media_type=MEDIA_JSON, bytes=0, store=store)


def _dataset(bare: Reference, content: bytes) -> Reference:
    """The reference of a dataset, with what only its manifest tells."""
    try:
        manifest = manifest_from(content)
    except EnvelopeInvalid as error:
        raise PayloadCorrupt(f"{bare.uri}: {error}") from error
    return replace(bare, row_count=manifest.row_count, schema_digest=manifest.schema_digest)


def _media_type(content: bytes) -> str:
    if not content.startswith(b"{"):
        return MEDIA_JSON
    try:
        document: Any = parse_json(content)
    except (ValueError, RecursionError):
        return MEDIA_JSON
    if is_manifest(document) and set(document) == _MANIFEST_KEYS:
        return MEDIA_DATASET
    if set(document) == _PARTED_KEYS and _are_parts(document["parts"]):
        held = _kept_media(document["value"])
        return parted_media(held) if held != MEDIA_LOOP else MEDIA_JSON
    return _kept_media(document)


def _are_parts(parts: Any) -> bool:
    """Whether these are places with references, which no other document has."""
    if not isinstance(parts, list) or not parts:
        return False
    return all(isinstance(part, list) and len(part) == 2 and _is_part(*part) for part in parts)


def _is_part(place: Any, reference: Any) -> bool:
    if not isinstance(place, list) or not isinstance(reference, dict):
        return False
    try:
        found = reference_from_json(reference)
    except EnvelopeInvalid:
        return False
    return payload_digest(str(found.uri)) == found.sha256


def _kept_media(document: Any) -> str:
    if not isinstance(document, dict):
        return MEDIA_JSON
    if set(document) - {"x"} == _PIPELINE_KEYS and isinstance(document["results"], dict):
        is_pipeline = isinstance(document["order"], list) and sorted(document["order"]) == sorted(document["results"])
        return MEDIA_PIPELINE if is_pipeline else MEDIA_JSON
    is_loop = document.keys() >= _LOOP_KEYS and document.keys() <= _LOOP_KEYS | {"count", "fanin"}
    return MEDIA_LOOP if is_loop else MEDIA_JSON


def _missing(message: str) -> ToolFailed:
    return ToolFailed(Failure(kind="missing_reference", message=f"artifact: {message}"))
