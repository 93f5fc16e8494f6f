"""The durable bytes of tables: exact, bounded, and never made of something damaged."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import ipc

from noetl.adapters.arrow.codec import Regrouping, schema_digest
from noetl.adapters.arrow.tables import ArrowTables
from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.core.errors import PayloadCorrupt, ToolFailed
from noetl.core.limits import TABLE_BATCH_BYTES_MAX, TABLE_BATCH_ROWS_MAX
from noetl.core.reference import MEDIA_ARROW, Reference
from noetl.ports.data.tables import LandedTable
from tests.support.aio import asynchronous
from tests.support.arrow import OWNER, batches, land, numbers, stream_of


def in_memory() -> ArrowTables:
    return ArrowTables(MemoryPayloads({}))


async def kept(source: object, tables: ArrowTables | None = None) -> tuple[Reference, list[Any], Any]:
    """Reference, batches and schema of a table that was kept and opened again."""
    tables = tables or in_memory()
    reference = await tables.keep(source, **OWNER)
    table = await tables.open(reference, **OWNER)
    try:
        return reference, list(table.batches()), table.schema
    finally:
        table.close()


@settings(max_examples=60, deadline=None)
@given(batches())
def test_every_type_comes_back_as_it_was(batch: Any) -> None:
    reference, found, schema = asyncio.run(kept(stream_of(batch, batch)))
    assert schema.equals(batch.schema, check_metadata=True)
    assert reference.row_count == 2 * batch.num_rows == sum(map(len, found))
    assert reference.schema_digest == schema_digest(batch.schema) == schema_digest(schema)
    back = [row for one in found for row in _exact(one)]
    assert back == [*_exact(batch), *_exact(batch)]


def _exact(batch: Any) -> list[str]:
    """Each row as text, in which also NaN equals itself."""
    return [str([column[place] for column in batch.columns]) for place in range(batch.num_rows)]


@asynchronous
async def test_the_reference_says_what_the_table_is() -> None:
    reference, _, schema = await kept(numbers(1000))
    assert (reference.media_type, reference.compression, reference.row_count) == (MEDIA_ARROW, "zstd", 1000)
    assert reference.store == "memory"
    assert reference.schema_digest == schema_digest(schema)
    assert reference.ipc is None


@asynchronous
async def test_equal_batches_give_equal_bytes() -> None:
    table = numbers(50_000)
    one, *_ = await kept(stream_of(*table.to_batches(max_chunksize=700)))
    other, *_ = await kept(stream_of(*table.to_batches(max_chunksize=700)))
    assert one == other


@asynchronous
async def test_the_digest_of_a_schema_is_not_that_of_the_rows() -> None:
    one, *_ = await kept(numbers(10))
    other, *_ = await kept(numbers(10, first=5))
    assert one.schema_digest == other.schema_digest
    assert one.sha256 != other.sha256


@pytest.mark.parametrize("empty", ["no batch", "no rows", "no columns"])
@asynchronous
async def test_a_table_may_have_nothing_in_it(empty: str) -> None:
    schema = pa.schema([("a", pa.int64())])
    source = {
        "no batch": stream_of(),
        "no rows": pa.table({"a": pa.array([], pa.int64())}),
        "no columns": stream_of(pa.RecordBatch.from_struct_array(pa.array([{}] * 3, type=pa.struct([])))),
    }[empty]
    tables = in_memory()
    table = await tables.open(await tables.keep(source, **OWNER), **OWNER)
    assert table.row_count == (3 if empty == "no columns" else 0)
    assert table.rows(0, 10) == [{}] * table.row_count
    assert table.schema.equals(schema if empty == "no rows" else pa.schema([]))


@asynchronous
async def test_duplicate_names_and_remarks_are_kept() -> None:
    schema = pa.schema(
        [pa.field("a", pa.int64(), nullable=False, metadata={"unit": "m"}), pa.field("a", pa.string())],
        metadata={"made": "by hand"},
    )
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array(["x"])], schema=schema)
    _, (found,), back = await kept(stream_of(batch))
    assert back.equals(schema, check_metadata=True)
    assert [column.to_pylist() for column in found.columns] == [[1], ["x"]]


@asynchronous
async def test_json_and_unions_and_changing_dictionaries_are_kept() -> None:
    union = pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["u"])]
    )
    jsons = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', None]))
    given = [
        pa.record_batch({"u": union, "j": jsons, "d": pa.array(words).dictionary_encode()})
        for words in (["a", "b"], ["c", "a"])
    ]
    _, found, schema = await kept(stream_of(*given))
    assert schema.equals(given[0].schema)
    assert [row["d"] for batch in found for row in batch.to_pylist()] == ["a", "b", "c", "a"]
    assert [row["u"] for batch in found for row in batch.to_pylist()] == [1, "u", 1, "u"]


# --- sizes -----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 200_000), max_size=12))
@settings(deadline=None, max_examples=50)
def test_batches_become_neither_too_large_nor_too_small(sizes: list[int]) -> None:
    column = pa.array(range(sum(sizes)), pa.int64())
    groups, found, first = Regrouping(), [], 0
    for size in sizes:
        found += groups.add(pa.record_batch({"a": column.slice(first, size)}))
        first += size
    found += groups.rest()
    assert sum(map(len, found)) == sum(sizes)
    assert [value.as_py() for batch in found if len(batch) for value in (batch["a"][0], batch["a"][-1])] == [
        place for start, batch in zip(_starts(found), found, strict=True) for place in (start, start + len(batch) - 1)
    ]
    assert all(0 < len(batch) <= TABLE_BATCH_ROWS_MAX for batch in found)
    assert len(found) <= sum(sizes) // 1_000 + 2 * len(sizes) + 1


def _starts(found: list[Any]) -> list[int]:
    return [sum(map(len, found[:place])) for place in range(len(found))]


def test_many_tiny_batches_become_few() -> None:
    groups = Regrouping()
    found = [one for batch in numbers(20_000).to_batches(max_chunksize=10) for one in groups.add(batch)]
    found += groups.rest()
    assert len(found) == 2


def test_wide_rows_are_cut_by_their_bytes() -> None:
    groups = Regrouping()
    batch = pa.record_batch({"a": ["x" * 100_000] * 300})
    found = [*groups.add(batch), *groups.rest()]
    assert len(found) > 3
    assert max(one.nbytes for one in found) <= TABLE_BATCH_BYTES_MAX


# --- what is no table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source", [[1, 2], None, "text", b"bytes", 7, stream_of({"a": 1})], ids=["list", "none", "text", "bytes", "n", "d"]
)
@asynchronous
async def test_what_is_no_table_is_refused(source: object) -> None:
    with pytest.raises(ToolFailed) as caught:
        await in_memory().keep(source, **OWNER)
    assert caught.value.failure.code == "TABLE_INVALID"


@asynchronous
async def test_batches_of_two_schemas_are_no_table() -> None:
    with pytest.raises(ToolFailed, match="one schema"):
        await in_memory().keep(stream_of(pa.record_batch({"a": [1]}), pa.record_batch({"b": [1]})), **OWNER)


@asynchronous
async def test_offsets_that_lead_out_of_their_buffer_are_found() -> None:
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 2**30, 3)))
    array = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"abc")])
    with pytest.raises(ToolFailed, match="damaged"):
        await in_memory().keep(stream_of(pa.record_batch({"a": array})), **OWNER)


def _nested_empty(offsets: bytes) -> Any:
    """A column with one empty list, below which stands a column of lists without any."""
    inner = pa.array([], pa.list_(pa.list_(pa.int64())))
    hollow = pa.Array.from_buffers(inner.type, 0, [None, pa.py_buffer(offsets)], children=[inner.values])
    outer = pa.array([[]], pa.list_(inner.type))
    return pa.record_batch(
        {"a": pa.Array.from_buffers(outer.type, 1, outer.buffers()[:2], children=[hollow]), "b": pa.array([1])}
    )


@asynchronous
async def test_lists_of_which_there_are_none_may_begin_nowhere() -> None:
    """Other writers leave such offsets out; Arrow's own way to a size would follow whatever stands there."""
    _, found, _ = await kept(stream_of(_nested_empty(b""), _nested_empty(b"")))
    assert [row["a"] for batch in found for row in batch.to_pylist()] == [[], []]
    with pytest.raises(ToolFailed, match="begins outside"):
        await kept(stream_of(_nested_empty((2**18).to_bytes(4, "little"))))


@pytest.mark.parametrize("rows", [-1, 2**40])
@asynchronous
async def test_rows_that_take_no_bytes_are_not_believed(rows: int, stream: bytes, tmp_path: Path) -> None:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, pa.schema([])) as writer:
        writer.write_batch(pa.RecordBatch.from_struct_array(pa.array([{}] * 77, type=pa.struct([]))))
    path = tmp_path / "landed"
    # The number stands twice in the message only if something else is 77.
    content = bytes(sink.getvalue())
    assert content.count((77).to_bytes(8, "little")) == 1
    path.write_bytes(content.replace((77).to_bytes(8, "little"), rows.to_bytes(8, "little", signed=True)))
    with pytest.raises(ToolFailed, match="rows"):
        await kept(LandedTable(path=path))


@asynchronous
async def test_compression_is_refused_because_it_could_become_anything(tmp_path: Path) -> None:
    source = land(tmp_path / "rows", [pa.record_batch({"a": pa.array([0] * 1_000_000)})], compression="zstd")
    with pytest.raises(ToolFailed, match="compress"):
        await in_memory().keep(source, **OWNER)
    assert not source.path.exists()


@asynchronous
async def test_a_landed_file_is_taken_over(tmp_path: Path) -> None:
    table = numbers(5000)
    reference, *_ = await kept(land(tmp_path / "a", table.to_batches()))
    again, *_ = await kept(land(tmp_path / "b", table.to_batches(), offset=256))
    assert reference == again
    assert list(tmp_path.iterdir()) == []


def _mutants(content: bytes, count: int) -> list[bytes]:
    """Streams with a few bytes changed, cut out, put in or cut off."""
    chance = random.Random(20_240)
    found = []
    for number in range(count):
        mutant = bytearray(content)
        place = chance.randrange(len(mutant))
        match number % 4:
            case 0:
                mutant[place] ^= 1 << chance.randrange(8)
            case 1:
                del mutant[place:]
            case 2:
                mutant[place : place + 4] = chance.choice([b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff" * 4, b"\0" * 4])
            case _:
                mutant[place:place] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9)))
        found.append(bytes(mutant))
    return found


@pytest.fixture(scope="module")
def stream() -> bytes:
    batch = pa.record_batch(
        {
            "i": pa.array([1, None, 3]),
            "s": pa.array(["abc", "ü", None]),
            "l": pa.array([[1], None, [2, 3]]),
            "d": pa.array(["a", "b", "a"]).dictionary_encode(),
            "m": pa.array([{"x": b"1", "y": None}] * 3),
        }
    )
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    return bytes(sink.getvalue())


@asynchronous
async def test_a_damaged_stream_is_an_error_or_a_sound_table_and_never_a_crash(stream: bytes, tmp_path: Path) -> None:
    tables = in_memory()
    refused = 0
    for mutant in _mutants(stream, 1200):
        path = tmp_path / "landed"
        path.write_bytes(mutant)
        try:
            reference = await tables.keep(LandedTable(path=path), **OWNER)
        except ToolFailed as error:
            refused += error.failure.code == "TABLE_INVALID"
            continue
        table = await tables.open(reference, **OWNER)
        assert len(table.rows(0, 100)) == table.row_count
    assert refused > 200


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400))
def test_any_bytes_are_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "landed"
    path.write_bytes(content)
    with pytest.raises(ToolFailed):
        asyncio.run(in_memory().keep(LandedTable(path=path), **OWNER))


@asynchronous
async def test_damaged_durable_bytes_are_corrupt_and_never_a_crash() -> None:
    tables = in_memory()
    encoded = await tables.encode(numbers(300))
    reference = await tables.keep(numbers(300), **OWNER)
    assert reference.bytes == len(encoded.content)
    assert (await tables.open_bytes(encoded.content, reference)).rows(0, 1) == [{"id": 0, "name": "name 0"}]
    corrupt = 0
    for mutant in _mutants(encoded.content, 600):
        try:
            table = await tables.open_bytes(mutant, reference)
        except PayloadCorrupt:
            corrupt += 1
            continue
        assert len(table.rows(0, 1000)) == 300
    assert corrupt > 200


# --- small ones ------------------------------------------------------------------------------------------


@asynchronous
async def test_a_small_table_is_handed_back_and_a_large_one_is_stored() -> None:
    contents: dict[Any, bytes] = {}
    tables = ArrowTables(MemoryPayloads(contents))
    small = await tables.keep_unless_small(numbers(10), **OWNER)
    assert not isinstance(small, Reference)
    assert small.facts.row_count == 10
    assert contents == {}
    large = await tables.keep_unless_small(numbers(100_000), **OWNER)
    assert isinstance(large, Reference)
    assert large == await tables.keep(numbers(100_000), **OWNER)
    whole = await tables.encode(numbers(10))
    assert (whole.content, whole.facts) == (small.content, small.facts)


@asynchronous
async def test_a_source_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    async def failing() -> Any:
        for batch in numbers(200_000).to_batches(max_chunksize=20_000):
            yield batch
        raise RuntimeError("the server went away")

    contents: dict[Any, bytes] = {}
    with pytest.raises(RuntimeError, match="went away"):
        await ArrowTables(MemoryPayloads(contents)).keep(failing(), **OWNER)
    assert contents == {}
