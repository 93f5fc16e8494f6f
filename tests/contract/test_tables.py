"""The tables port over files and memory: every tier, and what happens when one of them is gone or wrong."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from noetl.adapters.arrow.opening import durable
from noetl.adapters.arrow.segments.shared import payload_key
from noetl.adapters.arrow.tables import ArrowTables
from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.core.errors import PayloadCorrupt, PayloadMissing, ToolFailed
from noetl.core.reference import Payload, Reference, reference_from_json
from noetl.ports.data.payloads import LargePayloadStore
from noetl.ports.data.tables import LandedTable, MappedFile
from tests.support.aio import asynchronous
from tests.support.arrow import OWNER, land, numbers, segments_in, stream_of, tables_in

ROWS = 20_000
TABLE = numbers(ROWS)


class Watched:
    """A store that counts what is asked of it and can lose or spoil its bytes."""

    def __init__(self) -> None:
        self.contents: dict[tuple[str, str, str], bytes] = {}
        self.asked: list[str] = []
        self.fetched = 0
        self._inner = MemoryPayloads(self.contents)

    async def put(self, payload: Payload) -> None:
        await self._inner.put(payload)

    async def put_stream(self, chunks: AsyncIterator[bytes], **facts: str) -> Reference:
        return await self._inner.put_stream(chunks, **facts)

    async def get(self, reference: Reference, **owner: str) -> bytes:
        self.asked.append("get")
        return await self._inner.get(reference, **owner)

    async def get_range(self, reference: Reference, *, offset: int, length: int, **owner: str) -> bytes:
        self.asked.append("range")
        self.fetched += length
        return await self._inner.get_range(reference, offset=offset, length=length, **owner)

    async def get_stream(self, reference: Reference, **owner: str) -> AsyncIterator[bytes]:
        self.asked.append("stream")
        content = await self._inner.get(reference, **owner)
        for first in range(0, len(content), 50_000):
            yield content[first : first + 50_000]

    async def exists(self, reference: Reference, **owner: str) -> bool:
        return await self._inner.exists(reference, **owner)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of these tests count as large."""
    monkeypatch.setattr(durable, "TABLE_WHOLE_BYTES_MAX", 10_000)
    monkeypatch.setattr("noetl.adapters.arrow.tables.TABLE_WHOLE_BYTES_MAX", 10_000)


def all_rows(table: Any) -> list[dict[str, object]]:
    return [row for batch in table.batches() for row in batch.to_pylist()]


def cut(table: Any) -> Any:
    return stream_of(*table.to_batches(max_chunksize=3_000))


# --- tiers -----------------------------------------------------------------------------------------------


@asynchronous
async def test_the_nearest_copy_is_taken_and_each_may_vanish(tmp_path: Path) -> None:
    store = Watched()
    segments = segments_in(tmp_path / "segments")
    producer = ArrowTables(store, segments=segments, spill=tmp_path / "spill")
    reference = await producer.keep(TABLE, **OWNER)
    assert reference.ipc is not None
    assert set(reference.ipc[reference.sha256]) == {"node", "name", "until"}

    consumer = ArrowTables(store, segments=segments_in(tmp_path / "segments"), spill=tmp_path / "spill")
    table = await consumer.open(reference, **OWNER)
    assert table.tier == "ipc"
    assert all_rows(table) == TABLE.to_pylist()
    table.close()
    assert (await consumer.open(reference, **OWNER)).tier == "memory"
    assert store.asked == []

    for path in (tmp_path / "segments").iterdir():
        path.unlink()
    assert (await consumer.open(reference, **OWNER)).tier == "memory"
    other = ArrowTables(store, segments=segments_in(tmp_path / "segments"), spill=tmp_path / "spill")
    table = await other.open(reference, **OWNER)
    assert table.tier == "durable"
    assert all_rows(table) == TABLE.to_pylist()
    assert other.counters.durable_fallback_reads == 1
    assert other.counters.read_misses == {"missing": 1}
    assert set(other.counters.resolve_ms) == {"durable"}


@asynchronous
async def test_without_segments_everything_works(tmp_path: Path) -> None:
    tables = tables_in(tmp_path)
    reference = await tables.keep(TABLE, **OWNER)
    assert reference.ipc is None
    table = await tables.open(reference, **OWNER)
    assert table.tier == "durable"
    assert table.rows(ROWS - 1, 5) == [{"id": ROWS - 1, "name": f"name {ROWS - 1}"}]


@asynchronous
async def test_a_hint_of_another_node_is_a_miss(tmp_path: Path) -> None:
    reference = await tables_in(tmp_path, segments_in(tmp_path / "segments")).keep(TABLE, **OWNER)
    foreign = segments_in(tmp_path / "elsewhere", node_id="node-2")
    table = await tables_in(tmp_path, foreign).open(reference, **OWNER)
    assert table.tier == "durable"
    assert foreign.counters.read_misses == {"foreign": 1}


@asynchronous
async def test_a_damaged_segment_is_passed_over_and_a_damaged_durable_copy_is_an_error(tmp_path: Path) -> None:
    store = Watched()
    segments = segments_in(tmp_path / "segments")
    reference = await ArrowTables(store, segments=segments).keep(TABLE, **OWNER)
    assert reference.ipc is not None
    path = tmp_path / "segments" / str(reference.ipc[reference.sha256]["name"])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    table = await ArrowTables(store, segments=segments, spill=tmp_path).open(reference, **OWNER)
    assert table.tier == "durable"
    assert all_rows(table) == TABLE.to_pylist()
    assert segments.counters.read_misses == {"digest": 1}

    (key,) = (key for key in store.contents if key[2] == reference.sha256)
    store.contents[key] = store.contents[key][:-9] + b"x" * 9
    with pytest.raises(PayloadCorrupt):
        await ArrowTables(store, segments=segments, spill=tmp_path).open(reference, **OWNER)
    del store.contents[key]
    with pytest.raises(PayloadMissing):
        await ArrowTables(store, segments=segments, spill=tmp_path).open(reference, **OWNER)


@asynchronous
async def test_equal_content_of_two_tenants_is_kept_twice_and_found_by_its_own_only(tmp_path: Path) -> None:
    segments = segments_in(tmp_path / "segments")
    tables = tables_in(tmp_path, segments)
    mine = await tables.keep(TABLE, **OWNER)
    theirs = await tables.keep(TABLE, tenant_id="other", organization_id="sales")
    assert mine.sha256 == theirs.sha256
    assert mine.ipc != theirs.ipc
    stranger = ArrowTables(Watched(), segments=segments_in(tmp_path / "segments"), spill=tmp_path / "spill")
    with pytest.raises(PayloadMissing):
        await stranger.open(mine, tenant_id="third", organization_id="sales")


@asynchronous
async def test_an_exhausted_budget_is_counted_and_the_table_is_durable(tmp_path: Path) -> None:
    segments = segments_in(tmp_path / "segments", budget_bytes=100_000)
    tables = tables_in(tmp_path, segments)
    reference = await tables.keep(TABLE, **OWNER)
    assert reference.ipc is None
    assert segments.counters.budget_exhaustion == 1
    assert (segments.counters.admission_attempts, segments.counters.admission_success) == (1, 0)
    assert segments.folder.bytes_in_use() == 0
    assert all_rows(await tables.open(reference, **OWNER)) == TABLE.to_pylist()


@asynchronous
async def test_small_tables_get_no_segment_and_are_not_counted(tmp_path: Path) -> None:
    segments = segments_in(tmp_path / "segments", bytes_min=1024**2)
    assert (await tables_in(tmp_path, segments).keep(numbers(10), **OWNER)).ipc is None
    assert segments.counters.admission_attempts == 0
    assert segments.folder.bytes_in_use() == 0


@asynchronous
async def test_what_is_over_is_swept_also_when_this_process_still_knows_it(tmp_path: Path) -> None:
    segments = segments_in(tmp_path / "segments", lease_seconds=2.0)
    tables = tables_in(tmp_path, segments)
    reference = await tables.keep(TABLE, **OWNER)
    table = await tables.open(reference, **OWNER)
    assert table.tier == "ipc"
    await asyncio.sleep(2.1)
    assert tables.sweep() == 0, "it is open"
    assert all_rows(table) == TABLE.to_pylist()
    table.close()
    assert tables.sweep() == 1


@asynchronous
async def test_a_segment_goes_when_its_time_is_over_although_nothing_happens(tmp_path: Path) -> None:
    segments = segments_in(tmp_path / "segments", lease_seconds=-0.9)
    tables = tables_in(tmp_path, segments)
    reference = await tables.keep(TABLE, **OWNER)
    assert reference.ipc is not None
    async with asyncio.timeout(60):
        while segments.folder.find(payload_key(**OWNER, sha256=reference.sha256)):
            await asyncio.sleep(0.02)


@asynchronous
async def test_who_opens_the_same_table_at_once_reads_it_once(tmp_path: Path) -> None:
    store = Watched()
    reference = await ArrowTables(store).keep(TABLE, **OWNER)
    tables = ArrowTables(store, spill=tmp_path)
    opened = await asyncio.gather(*(tables.open(reference, **OWNER) for _ in range(20)))
    assert store.asked == ["get"]
    assert sorted(table.tier for table in opened) == ["durable", *["memory"] * 19]


# --- large ones ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_limits")
@asynchronous
async def test_a_few_rows_of_a_large_table_fetch_only_their_batch(tmp_path: Path) -> None:
    store = Watched()
    reference = await ArrowTables(store).keep(cut(numbers(200_000)), **OWNER)
    assert reference.index is not None
    table = await ArrowTables(store, spill=tmp_path).open(reference, **OWNER)
    assert store.asked == ["get"], "the index"
    assert table.row_count == 200_000
    assert table.columns == ("id", "name")
    found = await asyncio.to_thread(table.rows, 150_000, 2)
    assert found == [{"id": 150_000, "name": "name 150000"}, {"id": 150_001, "name": "name 150001"}]
    assert store.fetched < reference.bytes // 5
    assert await asyncio.to_thread(all_rows, table) == numbers(200_000).to_pylist()
    with pytest.raises(RuntimeError, match="thread"):
        table.rows(0, 1)


@pytest.mark.usefixtures("small_limits")
@asynchronous
async def test_a_large_table_may_be_looked_at_from_many_threads(tmp_path: Path) -> None:
    store = Watched()
    reference = await ArrowTables(store).keep(cut(numbers(200_000)), **OWNER)
    table = await ArrowTables(store, spill=tmp_path).open(reference, **OWNER)
    places = [(place * 7_919) % 199_999 for place in range(100)]
    found = await asyncio.gather(*(asyncio.to_thread(table.rows, place, 1) for place in places))
    assert [rows[0]["id"] for rows in found] == places


@pytest.mark.usefixtures("small_limits")
@asynchronous
async def test_a_batch_that_was_damaged_is_not_believed(tmp_path: Path) -> None:
    store = Watched()
    reference = await ArrowTables(store).keep(cut(TABLE), **OWNER)
    (key,) = (key for key in store.contents if key[2] == reference.sha256)
    content = bytearray(store.contents[key])
    content[len(content) - 100] ^= 1
    store.contents[key] = bytes(content)
    table = await ArrowTables(store, spill=tmp_path).open(reference, **OWNER)
    assert len(await asyncio.to_thread(table.rows, 0, 1)) == 1
    with pytest.raises(PayloadCorrupt):
        await asyncio.to_thread(table.rows, ROWS - 1, 1)


@pytest.mark.parametrize("lost", ["none", "lost", "damaged", "dictionary"])
@pytest.mark.usefixtures("small_limits")
@asynchronous
async def test_without_a_usable_index_a_large_table_is_read_by_way_of_a_file(lost: str, tmp_path: Path) -> None:
    store = Watched()
    table = TABLE
    if lost == "dictionary":
        table = TABLE.set_column(1, "name", TABLE["name"].combine_chunks().dictionary_encode())
    reference = await ArrowTables(store).keep(cut(table), **OWNER)
    assert (reference.index is None) == (lost == "dictionary")
    if lost == "none":
        reference = replace(reference, index=None)
    elif reference.index is not None:
        (key,) = (key for key in store.contents if key[2] == reference.index["sha256"])
        store.contents[key] = b"{}"
        if lost == "lost":
            del store.contents[key]
    opened = await ArrowTables(store, spill=tmp_path / "spill").open(reference, **OWNER)
    assert store.asked[-1] == "stream"
    assert all_rows(opened) == TABLE.to_pylist()
    assert not list((tmp_path / "spill").glob("new.*"))
    again = await ArrowTables(store, spill=tmp_path / "spill").open(reference, **OWNER)
    assert again.tier == "disk"


@pytest.mark.usefixtures("small_limits")
@asynchronous
async def test_what_decompression_makes_large_goes_into_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "TABLE_DECODED_BYTES_MAX", 1000)
    monkeypatch.setattr(durable, "TABLE_WHOLE_BYTES_MAX", 1024**2)
    store = Watched()
    reference = await ArrowTables(store).keep(TABLE, **OWNER)
    table = await ArrowTables(store, spill=tmp_path / "spill").open(reference, **OWNER)
    assert table.mapped().path.parent == tmp_path / "spill"
    assert all_rows(table) == TABLE.to_pylist()


# --- files for others ------------------------------------------------------------------------------------

READER = """
import mmap, sys
import pyarrow as pa
from pyarrow import ipc
path, offset, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
table = ipc.open_stream(pa.py_buffer(mapped).slice(offset, length)).read_all()
print(table.num_rows, sum(table["id"].to_pylist()))
"""


def read_by_another(file: MappedFile) -> str:
    arguments = [sys.executable, "-c", READER, str(file.path), str(file.offset), str(file.length)]
    return subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.mark.parametrize("tier", ["ipc", "durable", "bytes"])
@asynchronous
async def test_another_process_can_map_an_open_table(tier: str, tmp_path: Path) -> None:
    segments = segments_in(tmp_path / "segments") if tier == "ipc" else None
    tables = tables_in(tmp_path, segments)
    reference = await tables.keep(TABLE, **OWNER)
    if tier == "bytes":
        table = await tables.open_bytes((await tables.encode(TABLE)).content, reference)
    else:
        table = await tables.open(reference, **OWNER)
        assert table.tier == tier
    file = await asyncio.to_thread(table.mapped)
    assert read_by_another(file) == f"{ROWS} {sum(range(ROWS))}"
    assert table.mapped() == file
    assert all_rows(table) == TABLE.to_pylist()


@asynchronous
async def test_no_room_for_a_file_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_in(tmp_path)
    table = await tables.open(await tables.keep(TABLE, **OWNER), **OWNER)
    monkeypatch.setattr(tables._spilling, "_bytes_max", 1000)
    with pytest.raises(ToolFailed, match="no room") as caught:
        table.mapped()
    assert caught.value.failure.retryable


@asynchronous
async def test_the_oldest_unused_file_makes_room_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_in(tmp_path, memory_bytes=0)
    opened = []
    for number in range(4):
        table = await tables.open(await tables.keep(numbers(ROWS, first=number), **OWNER), **OWNER)
        if number == 0:
            first = table.mapped()
            monkeypatch.setattr(tables._spilling.folder(), "budget_bytes", 2 * first.length + 1000)
            opened.append(table)
            continue
        table.mapped()
        table.close()
    assert first.path.exists(), "it is open"
    assert len(list((tmp_path / "spill").glob("*.*"))) == 2


@asynchronous
async def test_a_file_that_a_child_wrote_becomes_the_segment_without_a_copy(tmp_path: Path) -> None:
    segments = segments_in(tmp_path / "segments")
    tables = tables_in(tmp_path, segments)
    place = await tables.landing_place()
    assert place is not None
    source = land(place.folder / f"{place.prefix}1", TABLE.to_batches(), offset=place.offset)
    inode = source.path.stat().st_ino
    reference = await tables.keep(source, **OWNER)
    assert reference.ipc is not None
    path = place.folder / str(reference.ipc[reference.sha256]["name"])
    assert path.stat().st_ino == inode
    table = await tables.open(reference, **OWNER)
    assert table.tier == "ipc"
    assert all_rows(table) == TABLE.to_pylist()


@pytest.mark.parametrize("why", ["still open", "scrubbed", "many messages", "trailing bytes", "elsewhere"])
@asynchronous
async def test_a_file_of_a_child_is_adopted_only_if_nothing_speaks_against_it(why: str, tmp_path: Path) -> None:
    segments = segments_in(tmp_path / "segments", bytes_min=1000)
    tables = tables_in(tmp_path, segments)
    place = await tables.landing_place()
    assert place is not None
    path = (tmp_path if why == "elsewhere" else place.folder) / f"{place.prefix}1"
    batches = TABLE.to_batches(max_chunksize=10 if why == "many messages" else ROWS)
    source = land(path, batches, offset=place.offset)
    held = path.open("r+b") if why == "still open" else None
    if why == "trailing bytes":
        path.write_bytes(path.read_bytes() + b"more")
    scrub = (lambda value: value.replace("name 7", "*")) if why == "scrubbed" else None
    reference = await tables.keep(source, **OWNER, scrub=scrub)
    assert (reference.ipc is not None) == (why in {"trailing bytes", "elsewhere"})
    table = await tables.open(reference, **OWNER)
    assert table.rows(7, 1) == [{"id": 7, "name": "*" if why == "scrubbed" else "name 7"}]
    assert not path.exists()
    if held is not None:
        held.close()


@asynchronous
async def test_with_a_full_budget_there_is_no_landing_place(tmp_path: Path) -> None:
    segments = segments_in(tmp_path / "segments", budget_bytes=3_000_000)
    tables = tables_in(tmp_path, segments)
    for number in range(4):
        await tables.keep(numbers(ROWS, first=number), **OWNER)
    assert await tables.landing_place() is None
    assert await tables_in(tmp_path).landing_place() is None


@asynchronous
async def test_a_landing_place_is_there_has_room_and_is_ours(tmp_path: Path) -> None:
    root = tmp_path / "segments"
    tables = tables_in(tmp_path, segments_in(root, budget_bytes=3_000_000))
    kept = await tables.keep(TABLE, **OWNER)
    assert kept.ipc is not None
    place = await tables.landing_place()
    assert place is not None
    assert place.bytes_max == 3_000_000 - sum(path.stat().st_size for path in root.iterdir())
    shutil.rmtree(root)
    place = await tables.landing_place()
    assert place is not None
    assert (place.folder.is_dir(), place.bytes_max) == (True, 3_000_000)
    os.utime(root, (0, 0))
    await tables.landing_place()
    assert root.stat().st_mtime > 0, "a folder in which somebody may write counts as used"
    root.chmod(0o755)
    assert await tables.landing_place() is None


# --- across processes ------------------------------------------------------------------------------------

PRODUCER = """
import asyncio, json, sys
from pathlib import Path
import pyarrow as pa
from noetl.adapters.arrow.counters import TableCounters
from noetl.adapters.arrow.segments.folder import SegmentFolder
from noetl.adapters.arrow.segments.shared import Segments
from noetl.adapters.arrow.tables import ArrowTables
from noetl.adapters.objects.filesystem import FilePayloads

home = Path(sys.argv[1])
folder = SegmentFolder(home / "segments", budget_bytes=1024**3, grace_seconds=0.0)
segments = Segments(node_id="node-1", folder=folder, counters=TableCounters(), lease_seconds=600.0, bytes_min=1)
tables = ArrowTables(FilePayloads(home / "payloads"), segments=segments, spill=home / "spill")
table = pa.table({"id": pa.array(range(int(sys.argv[2])), pa.int64())})
reference = asyncio.run(tables.keep(table, tenant_id="acme", organization_id="sales"))
print(json.dumps(reference.to_json()), flush=True)
sys.stdin.read()
"""


@asynchronous
async def test_a_table_of_a_process_that_was_killed_is_read_from_its_segment_and_then_from_the_store(
    tmp_path: Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PRODUCER, str(tmp_path), str(ROWS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        reference = reference_from_json(json.loads(await asyncio.to_thread(process.stdout.readline)))
    finally:
        process.kill()
        process.communicate()
    segments = segments_in(tmp_path / "segments")
    table = await tables_in(tmp_path, segments, memory_bytes=0).open(reference, **OWNER)
    assert table.tier == "ipc"
    assert segments.folder.sweep() == 0, "somebody reads it"
    assert len(all_rows(table)) == ROWS
    table.close()
    assert segments.folder.sweep() == 1
    table = await tables_in(tmp_path, segments).open(reference, **OWNER)
    assert table.tier == "durable"
    assert len(all_rows(table)) == ROWS


# --- what must not happen --------------------------------------------------------------------------------


@asynchronous
async def test_keeping_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    segments = segments_in(tmp_path / "segments")
    tables = tables_in(tmp_path, segments)
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[Any]:
        for number in range(1_000_000):
            yield numbers(20_000, first=number).to_batches()[0]
            if number == 3:
                begun.set()
                await asyncio.Event().wait()

    task = asyncio.ensure_future(tables.keep(endless(), **OWNER))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert segments.folder.bytes_in_use() == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"] == []


@asynchronous
async def test_memory_stays_bounded_whatever_a_batch_has(tmp_path: Path) -> None:
    """One batch of 64 MB: never more than a few pieces of it are in memory at once."""
    sizes: list[int] = []

    class Slow(MemoryPayloads):
        async def put_stream(self, chunks: AsyncIterator[bytes], **facts: str) -> Reference:
            async def watched() -> AsyncIterator[bytes]:
                async for chunk in chunks:
                    sizes.append(len(chunk))
                    yield chunk

            return await super().put_stream(watched(), **facts)

    store: LargePayloadStore = Slow({})
    column = pa.repeat(7, 8_000_000)
    reference = await ArrowTables(store, spill=tmp_path).keep(pa.table({"a": column}), **OWNER)
    assert reference.row_count == 8_000_000
    assert len(sizes) > 50
    assert max(sizes) < reference.bytes // 10


@asynchronous
async def test_columns_and_windows_of_an_open_table(tmp_path: Path) -> None:
    tables = tables_in(tmp_path)
    table = await tables.open(await tables.keep(cut(TABLE), **OWNER), **OWNER)
    assert next(table.batches(["name"])).schema.names == ["name"]
    assert table.rows(2_999, 3) == numbers(3, first=2_999).to_pylist()
    assert table.rows(-5, 1) == numbers(1).to_pylist()
    assert table.rows(ROWS, 5) == table.rows(0, 0) == table.rows(0, -1) == []
    table.close()
    with pytest.raises(ValueError, match="closed"):
        table.rows(0, 1)


def test_keys_of_tenants_differ() -> None:
    assert len({payload_key("a", "b", "c"), payload_key("ab", "", "c"), payload_key("a", "bc", "")}) == 3


@asynchronous
async def test_a_file_without_rows_can_be_handed_over(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with ipc.new_stream(str(path), TABLE.schema):
        pass
    tables = tables_in(tmp_path)
    reference = await tables.keep(LandedTable(path=path), **OWNER)
    assert reference.row_count == 0
    assert (await tables.open(reference, **OWNER)).schema.equals(TABLE.schema)
