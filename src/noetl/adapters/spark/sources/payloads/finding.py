"""What a locator names, as far as planning needs it: the schema of the rows and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from noetl.adapters.arrow.files.inferred import batch_of, schema_of
from noetl.adapters.spark.sources.payloads.options import ReadOptions
from noetl.adapters.spark.sources.payloads.pointer import path_of, read_pointer
from noetl.adapters.spark.sources.waiting import check_owner
from noetl.adapters.spark.types import schema_from_text
from noetl.core.dataset import MEDIA_DATASET, Manifest, manifest_from
from noetl.core.errors import PayloadCorrupt, RequestInvalid
from noetl.core.locator import SCHEME, is_ours, parse
from noetl.core.reference import MEDIA_ARROW, STORE_SMALL, Reference
from noetl.core.results.columns import SINGLE, Columns
from noetl.ports.data.sources import PlainRows, SourceAccess, SourceStores

_MESSAGE_HEAD_BYTES = 8
SCHEMA_BYTES_MAX = 16 * 1024**2
"""A schema that is larger is no schema."""


@dataclass(frozen=True, slots=True)
class Owner:
    tenant_id: str
    organization_id: str

    def names(self) -> dict[str, str]:
        return {"tenant_id": self.tenant_id, "organization_id": self.organization_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDataset:
    owner: Owner
    schema: pa.Schema
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTable:
    owner: Owner
    schema: pa.Schema
    reference: Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRows:
    """Few rows, which travel with the plan: an Arrow stream."""

    schema: pa.Schema
    content: bytes


Found = FoundDataset | FoundTable | FoundRows


async def find(stores: SourceStores, options: ReadOptions, access: SourceAccess) -> Found:
    """Raises LocatorInvalid, RequestInvalid, PayloadMissing, PayloadCorrupt, ResultUnknown, ResultNotTabular."""
    named = await _named(stores, options, access)
    if isinstance(named, PlainRows):
        return _plain(named.rows)
    owner = owner_of(named)
    if named.media_type == MEDIA_DATASET:
        manifest = manifest_from(await stores.content(named, **owner.names()))
        return FoundDataset(owner=owner, manifest=manifest, schema=schema_from_text(manifest.arrow_schema))
    assert named.media_type == MEDIA_ARROW, named.media_type
    if named.store == STORE_SMALL:
        content = await stores.content(named, **owner.names())
        return FoundRows(schema=_schema(content, named), content=content)
    return FoundTable(owner=owner, reference=named, schema=await _head(stores, named, owner))


def owner_of(reference: Reference) -> Owner:
    locator = parse(reference.uri)
    assert locator.tenant_id is not None
    assert locator.organization_id is not None
    return Owner(locator.tenant_id, locator.organization_id)


async def _named(stores: SourceStores, options: ReadOptions, access: SourceAccess) -> Reference | PlainRows:
    if is_ours(options.path):
        locator = parse(options.path)
        check_owner(access, locator.tenant_id, locator.organization_id)
        return await stores.located(options.path, options.part)
    path = path_of(options.path)
    reference = read_pointer(path)
    if reference is None:
        raise RequestInvalid(f"{path} is not there: load a {SCHEME} locator, or a file that a write of noetl has made")
    owner = owner_of(reference)
    check_owner(access, owner.tenant_id, owner.organization_id)
    if reference.media_type in (MEDIA_DATASET, MEDIA_ARROW):
        return reference
    return await stores.located(reference.uri, options.part)


async def _head(stores: SourceStores, reference: Reference, owner: Owner) -> pa.Schema:
    """The first message of the stream: a mark, the size of the message, and the message."""
    names = owner.names()
    mark = await stores.large.get_range(reference, offset=0, length=_MESSAGE_HEAD_BYTES, **names)
    length = _MESSAGE_HEAD_BYTES + int.from_bytes(mark[4:], "little")
    if not _MESSAGE_HEAD_BYTES < length <= min(SCHEMA_BYTES_MAX, reference.bytes):
        raise PayloadCorrupt(f"{reference.uri} is no readable table: it does not begin with a schema")
    return _schema(await stores.large.get_range(reference, offset=0, length=length, **names), reference)


def _schema(content: bytes, reference: Reference) -> pa.Schema:
    try:
        return ipc.read_schema(pa.py_buffer(content))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise PayloadCorrupt(f"{reference.uri} is no readable table: it does not begin with a schema") from error


def _plain(rows: Sequence[object]) -> FoundRows:
    columns = Columns()
    columns.add(rows)
    schema = schema_of(columns.types())
    keyed: list[Any] = [row or {} for row in rows] if columns.is_keyed else [{SINGLE: row} for row in rows]
    batch = batch_of(keyed, schema)
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    return FoundRows(schema=schema, content=sink.getvalue().to_pybytes())
