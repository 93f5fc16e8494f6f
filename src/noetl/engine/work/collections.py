"""Collections of loops: stored so that a frame reads only its slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from noetl.core import limits
from noetl.core.codec import canonical_bytes
from noetl.core.expression import plain
from noetl.core.expression.views import part_of
from noetl.core.reference import MEDIA_COLLECTION, Payload
from noetl.engine.payloads import Payloads
from noetl.engine.stored.reader import Reader
from noetl.engine.stored.sources import settled


async def store_rows(payloads: Payloads, rows: Sequence[object], **owner: str) -> tuple[Payload, list[Payload]]:
    """The payload that names a collection, and all payloads that must travel with the fact about it; what would make
    that too heavy is stored before."""
    document: dict[str, object] = {"total": len(rows)}
    made: list[Payload] = []
    carried = 0
    if len(canonical_bytes(rows)) <= limits.PAYLOAD_INLINE_BYTES_MAX // 2:
        document["rows"] = list(rows)
    else:
        chunks = []
        for first, chunk in _chunks(rows):
            payload = await payloads.keep_json(chunk, media_type=MEDIA_COLLECTION, **owner)
            carried += payload.reference.bytes
            if carried <= limits.COLLECTION_CARRIED_BYTES_MAX:
                made.append(payload)
            else:
                await payloads.store(payload)
            chunks.append({"first": first, "rows": len(chunk), "ref": payload.reference.to_json()})
        document["chunks"] = chunks
    index = await payloads.keep_json(document, media_type=MEDIA_COLLECTION, **owner)
    return index, [index, *made]


def _chunks(rows: Sequence[object]) -> list[tuple[int, list[object]]]:
    found: list[tuple[int, list[object]]] = []
    chunk: list[object] = []
    size = 0
    for index, row in enumerate(rows):
        chunk.append(row)
        size += len(canonical_bytes(row))
        if len(chunk) >= limits.COLLECTION_CHUNK_ROWS or size >= limits.COLLECTION_CHUNK_BYTES:
            found.append((index + 1 - len(chunk), chunk))
            chunk, size = [], 0
    if chunk:
        found.append((len(rows) - len(chunk), chunk))
    return found


async def rows_between(
    payloads: Payloads, collection: Mapping[str, Any], first: int, end: int, **owner: str
) -> list[object]:
    """Rows of a collection as `loop.started` records it: inline, in chunks of their own, or a list in a stored result,
    of which only the parts are read in which they stand."""
    if "ref" not in collection:
        inline: list[object] = collection["v"]
        return inline[first:end]
    if collection["ref"]["media_type"] != MEDIA_COLLECTION:
        entry = Reader(payloads, **owner).entry(collection)
        return cast("list[object]", await settled(lambda: plain(part_of(entry, slice(first, end)))))
    document = await payloads.read_json(collection["ref"], **owner)
    if "rows" in document:
        rows: list[object] = document["rows"]
        return rows[first:end]
    found: list[object] = []
    for chunk in document["chunks"]:
        start = chunk["first"]
        if start < end and start + chunk["rows"] > first:
            low, high = max(first - start, 0), min(end - start, chunk["rows"])
            content = await payloads.read_json(chunk["ref"], **owner)
            if isinstance(content, Mapping):
                # A collection of its own: the rows that a claim has recorded.
                found.extend(await rows_between(payloads, {"ref": chunk["ref"]}, low, high, **owner))
            else:
                found.extend(content[low:high])
    return found
