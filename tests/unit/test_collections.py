"""Collections of loops: stored in chunks, and a frame reads its own slice and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.core.codec import canonical_bytes
from noetl.core.limits import (
    COLLECTION_CARRIED_BYTES_MAX,
    COLLECTION_CHUNK_BYTES,
    COLLECTION_CHUNK_ROWS,
    PAYLOAD_INLINE_BYTES_MAX,
)
from noetl.core.reference import MEDIA_COLLECTION, Payload, Reference
from noetl.engine.payloads import Payloads
from noetl.engine.work.collections import rows_between, store_rows
from tests.support.aio import asynchronous

OWNER = {"tenant_id": "acme", "organization_id": "sales"}


class Counting(MemoryPayloads):
    """Remembers what was read."""

    def __init__(self) -> None:
        super().__init__({})
        self.read: list[str] = []

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        self.read.append(reference.sha256)
        return await super().get(reference, tenant_id=tenant_id, organization_id=organization_id)


class Stored:
    """A collection as one worker leaves it and another one finds it."""

    def __init__(self) -> None:
        self.store = Counting()
        self.made: list[Payload] = []
        self.document: Any = None
        self.entry: dict[str, Any] = {}

    async def keep(self, rows: list[object]) -> None:
        writer = Payloads(small=self.store, large=self.store)
        index, self.made = await store_rows(writer, rows, **OWNER)
        for payload in self.made:
            await self.store.put(payload)
        self.entry = {"ref": index.reference.to_json(), "path": []}
        self.document = await self.reader().read_json(self.entry["ref"], **OWNER)
        self.store.read.clear()

    def reader(self) -> Payloads:
        return Payloads(small=self.store, large=self.store)

    async def between(self, first: int, end: int) -> list[object]:
        return await rows_between(self.reader(), self.entry, first, end, **OWNER)


@asynchronous
async def test_a_small_collection_is_one_payload_that_travels_with_its_fact() -> None:
    stored = Stored()
    await stored.keep([{"id": n} for n in range(100)])
    assert set(stored.document) == {"total", "rows"}
    assert len(stored.made) == 1
    assert stored.made[0].reference.media_type == MEDIA_COLLECTION
    assert await stored.between(10, 12) == [{"id": 10}, {"id": 11}]
    assert len(stored.store.read) == 1


@asynchronous
async def test_many_rows_are_cut_by_number() -> None:
    stored = Stored()
    rows: list[object] = [f"row {n:012}" for n in range(2 * COLLECTION_CHUNK_ROWS + 7)]
    await stored.keep(rows)
    assert [(chunk["first"], chunk["rows"]) for chunk in stored.document["chunks"]] == [
        (0, COLLECTION_CHUNK_ROWS),
        (COLLECTION_CHUNK_ROWS, COLLECTION_CHUNK_ROWS),
        (2 * COLLECTION_CHUNK_ROWS, 7),
    ]
    assert len(stored.made) == 4


@asynchronous
async def test_large_rows_are_cut_by_size() -> None:
    stored = Stored()
    row = "x" * (COLLECTION_CHUNK_BYTES // 3)
    await stored.keep([row] * 10)
    assert [chunk["rows"] for chunk in stored.document["chunks"]] == [3, 3, 3, 1]
    await stored.keep(["x" * (2 * COLLECTION_CHUNK_BYTES), "y"])
    assert [chunk["rows"] for chunk in stored.document["chunks"]] == [1, 1]


@asynchronous
async def test_a_heavy_collection_does_not_travel_with_its_fact() -> None:
    stored = Stored()
    rows: list[object] = [f"{n:060}" for n in range(2 * COLLECTION_CARRIED_BYTES_MAX // 64)]
    await stored.keep(rows)
    assert sum(payload.reference.bytes for payload in stored.made) < 1.1 * COLLECTION_CARRIED_BYTES_MAX
    # Not in the list, and there all the same.
    assert await stored.between(len(rows) - 3, len(rows)) == rows[-3:]


@pytest.mark.parametrize("too_many", [0, 1])
@asynchronous
async def test_half_an_inline_payload_is_where_chunks_begin(too_many: int) -> None:
    room = PAYLOAD_INLINE_BYTES_MAX // 2 - len(canonical_bytes([""]))
    stored = Stored()
    await stored.keep(["x" * (room + too_many)])
    assert ("chunks" in stored.document) == bool(too_many)


@asynchronous
async def test_a_frame_reads_the_index_and_the_chunks_of_its_rows_only() -> None:
    stored = Stored()
    rows: list[object] = [f"row {n:012}" for n in range(5 * COLLECTION_CHUNK_ROWS)]
    await stored.keep(rows)
    edge = 2 * COLLECTION_CHUNK_ROWS
    assert await stored.between(edge, edge + 50) == rows[edge : edge + 50]
    chunks = [chunk["ref"]["sha256"] for chunk in stored.document["chunks"]]
    assert stored.store.read == [stored.entry["ref"]["sha256"], chunks[2]]
    stored.store.read.clear()
    assert await stored.between(edge - 1, edge + 1) == rows[edge - 1 : edge + 1]
    assert stored.store.read[1:] == chunks[1:3]


@given(st.data(), st.sampled_from([0, 1, 30, 3_000]), st.integers(1, 400))
@settings(max_examples=60)
@asynchronous
async def test_a_slice_of_a_stored_collection_is_a_slice_of_the_list(
    data: st.DataObject, width: int, count: int
) -> None:
    rows: list[object] = [{"n": n, "text": "x" * width} for n in range(count)]
    stored = Stored()
    await stored.keep(rows)
    assert stored.document["total"] == count
    first = data.draw(st.integers(0, count))
    end = data.draw(st.integers(first, count))
    assert await stored.between(first, end) == rows[first:end]
    assert await rows_between(stored.reader(), {"v": rows}, first, end, **OWNER) == rows[first:end]


@asynchronous
async def test_an_empty_collection_has_no_rows() -> None:
    stored = Stored()
    await stored.keep([])
    assert stored.document == {"total": 0, "rows": []}
    assert await stored.between(0, 0) == []
