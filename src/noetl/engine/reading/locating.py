"""The rows behind a locator: found as the API finds the rows of a result, but not opened."""

from __future__ import annotations

from dataclasses import replace

from noetl.core.codec import parse_json
from noetl.core.dataset import MEDIA_DATASET, MEDIA_PARQUET, is_manifest, is_tabular
from noetl.core.errors import LocatorInvalid, ResultNotTabular
from noetl.core.execution.state import StepResult
from noetl.core.limits import SOURCE_ROWS_BYTES_MAX
from noetl.core.locator import Kind, Locator
from noetl.core.reference import MEDIA_ARROW, MEDIA_JSON, MEDIA_PARTED, STORE_ANY, Reference, reference_from_json
from noetl.core.results.members import parsed_path
from noetl.engine.payloads import Payloads
from noetl.engine.reading.rows import ListRows
from noetl.engine.reading.service import StepReading
from noetl.ports.data.payloads import LargePayloadStore, PayloadStore
from noetl.ports.data.sources import PlainRows

RowsLocated = Reference | PlainRows
_MARKS = {b"PAR1": MEDIA_PARQUET, b"\xff\xff\xff\xff": MEDIA_ARROW}
_MARK_BYTES = 4


def unsized(named: Locator, text: str) -> Reference:
    """The reference of which a locator is a part.  Raises LocatorInvalid for one that names no payload."""
    if named.kind is not Kind.PAYLOAD:
        raise LocatorInvalid(
            f"{text} names a {named.kind}: rows are behind locators of payloads (…/payloads/sha256/DIGEST) and of "
            "results (…/execution/ID/result/STEP)"
        )
    return Reference(kind="payload", uri=text, sha256=named["sha256"], media_type=MEDIA_JSON, bytes=0, store=STORE_ANY)


async def sniffed(
    store: LargePayloadStore, bare: Reference, *, tenant_id: str, organization_id: str
) -> Reference | None:
    """What a payload is by its first bytes; None when it is not there."""
    owner = {"tenant_id": tenant_id, "organization_id": organization_id}
    size = await store.size_of(bare, **owner)
    if size is None:
        return None
    sized = replace(bare, bytes=size)
    mark = await store.get_range(sized, offset=0, length=min(_MARK_BYTES, size), **owner)
    if mark in _MARKS:
        return replace(sized, media_type=_MARKS[mark])
    document = parse_json(await store.get(_bounded(sized), **owner))
    if is_manifest(document):
        return replace(sized, media_type=MEDIA_DATASET)
    is_parted = isinstance(document, dict) and document.keys() == {"value", "parts"}
    return replace(sized, media_type=MEDIA_PARTED) if is_parted else sized


async def rows_behind(
    small: PayloadStore,
    large: LargePayloadStore,
    reference: Reference,
    path: str,
    *,
    tenant_id: str,
    organization_id: str,
) -> RowsLocated:
    """Raises ResultUnknown and ResultNotTabular."""
    if not path and is_tabular(reference.media_type):
        return reference
    if reference.media_type == MEDIA_PARQUET:
        raise ResultNotTabular(f"{reference.uri} is one part of a dataset: load the locator of its manifest")
    owner = {"tenant_id": tenant_id, "organization_id": organization_id}
    result = StepResult(run=1, status="ok", reference=reference.to_json(), atoms={})
    payloads = Payloads(small=small, large=large)
    reading = StepReading(reference.uri, result, payloads=payloads, large=large, owner=owner)
    found = await reading.located(parsed_path(path))
    if not isinstance(found, ListRows):
        return reference_from_json(found)
    _bounded(reference)
    rows: list[object] = []
    async for chunk in found.chunks(0, found.total):
        rows += chunk
    return PlainRows(rows=rows)


def _bounded(reference: Reference) -> Reference:
    """What is no table is held whole."""
    if reference.bytes > SOURCE_ROWS_BYTES_MAX:
        raise ResultNotTabular(
            f"{reference.uri} has {reference.bytes:,} bytes of JSON, and at most {SOURCE_ROWS_BYTES_MAX:,} are read as "
            "rows: return a table or a dataset in that step"
        )
    return reference
