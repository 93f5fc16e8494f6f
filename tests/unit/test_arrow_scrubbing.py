"""No secret in a stored table, wherever in a column it hides."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from noetl.adapters.arrow.keeping.scrubbing import Scrubbing
from noetl.adapters.arrow.rows import rows_of
from noetl.adapters.arrow.tables import ArrowTables
from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.core.errors import ToolFailed
from noetl.core.secret import HIDDEN
from noetl.engine.work.calling.redact import Redactor
from tests.support.aio import asynchronous
from tests.support.arrow import OWNER, batches, stream_of

SECRET = "hunter2-correct-horse"


def redactor() -> Redactor:
    made = Redactor()
    made.learn_values([SECRET])
    return made


def scrubbed(batch: Any) -> Any:
    scrubbing = Scrubbing(redactor().scrub)
    scrubbing.schema(batch.schema)
    return scrubbing.batch(batch)


TEXT = f"the password is {SECRET}!"
CLEAN = f"the password is {HIDDEN}!"


@pytest.mark.parametrize(
    ("array", "plain"),
    [
        (pa.array(["a", TEXT, None]), ["a", CLEAN, None]),
        (pa.array([TEXT], pa.large_string()), [CLEAN]),
        (pa.array([TEXT, "short"], pa.string_view()), [CLEAN, "short"]),
        (pa.array([["a", TEXT], None, []]), [["a", CLEAN], None, []]),
        (pa.array([["a", TEXT], ["b", None]], pa.list_(pa.string(), 2)), [["a", CLEAN], ["b", None]]),
        (pa.array([{"x": 1, "y": {"z": TEXT}}, None]), [{"x": 1, "y": {"z": CLEAN}}, None]),
        (pa.array([[("k", TEXT)], None], pa.map_(pa.string(), pa.string())), [{"k": CLEAN}, None]),
        (pa.array(["a", TEXT, "a", None]).dictionary_encode(), ["a", CLEAN, "a", None]),
        (pa.ExtensionArray.from_storage(pa.json_(), pa.array([f'{{"a": "{TEXT}"}}'])), [{"a": CLEAN}]),
        (pa.array(["x", TEXT, "y", TEXT]).slice(2), ["y", CLEAN]),
    ],
    ids=["string", "large", "view", "list", "fixed", "struct", "map", "dictionary", "json", "slice"],
)
def test_a_secret_is_taken_out(array: Any, plain: list[Any]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(array))), array], names=["n", "a"])
    found = scrubbed(batch)
    assert found.schema.equals(batch.schema, check_metadata=True)
    found.validate(full=True)
    assert [row["a"] for row in rows_of(found)] == plain
    assert SECRET.encode() not in b"".join(bytes(part) for part in found.column(1).buffers() if part is not None)


def test_bytes_are_looked_at_as_well() -> None:
    array = pa.array([b"\xff" + TEXT.encode(), b"\xfe\x00"], pa.binary())
    (found,) = scrubbed(pa.record_batch({"a": array})).columns
    assert found.to_pylist() == [b"\xff" + CLEAN.encode(), b"\xfe\x00"]
    fixed = pa.array([SECRET.encode()], pa.binary(len(SECRET)))
    (found,) = scrubbed(pa.record_batch({"a": fixed})).columns
    assert SECRET.encode() not in found[0].as_py()
    assert len(found[0].as_py()) == len(SECRET)


def test_what_lies_below_a_null_is_taken_out() -> None:
    hidden = pa.Array.from_buffers(pa.string(), 1, [pa.py_buffer(b"\0"), *pa.array([TEXT]).buffers()[1:]], null_count=1)
    (found,) = scrubbed(pa.record_batch({"a": hidden})).columns
    assert found.to_pylist() == [None]
    assert SECRET.encode() not in b"".join(bytes(part) for part in found.buffers() if part is not None)


def test_a_table_without_secrets_is_not_copied() -> None:
    batch = pa.record_batch({"a": ["hunter", "2-correct-horse"], "b": [1, 2]})
    assert scrubbed(batch).equals(batch)
    scrubbing = Scrubbing(redactor().scrub)
    scrubbing.schema(batch.schema)
    clean = pa.record_batch({"a": ["one", "two"], "b": [1, 2]})
    assert scrubbing.batch(clean) is clean
    assert not scrubbing.has_changed


def test_names_and_remarks_are_scrubbed() -> None:
    schema = pa.schema([pa.field(SECRET, pa.int64(), metadata={"note": TEXT})], metadata={"a": TEXT, "b": "fine"})
    scrubbing = Scrubbing(redactor().scrub)
    found = scrubbing.schema(schema)
    assert found.names == [HIDDEN]
    assert found.metadata == {b"b": b"fine"}
    batch = scrubbing.batch(pa.RecordBatch.from_arrays([pa.array([1])], schema=schema))
    assert batch.schema.equals(found, check_metadata=True)


def test_a_name_inside_a_type_that_holds_a_secret_is_refused() -> None:
    with pytest.raises(ToolFailed, match="not stored") as caught:
        Scrubbing(redactor().scrub).schema(pa.schema([("a", pa.struct([(SECRET, pa.int64())]))]))
    assert SECRET not in str(caught.value)


def test_a_type_that_cannot_be_built_again_is_refused() -> None:
    union = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([TEXT])])
    with pytest.raises(ToolFailed, match="not stored"):
        scrubbed(pa.record_batch({"u": union}))


@settings(max_examples=100, deadline=None)
@given(batches())
def test_scrubbing_one_column_leaves_the_others_as_they_are(batch: Any) -> None:
    texts = pa.array([TEXT] * batch.num_rows)
    wide = pa.RecordBatch.from_arrays(
        [*batch.columns, texts], names=[f"c{number}" for number in range(batch.num_columns + 1)]
    )
    found = scrubbed(wide)
    assert found.column(batch.num_columns).to_pylist() == [CLEAN] * batch.num_rows
    for number in range(batch.num_columns):
        assert str(found.column(number)) == str(wide.column(number))


@asynchronous
async def test_nothing_of_a_secret_reaches_the_store() -> None:
    contents: dict[Any, bytes] = {}
    tables = ArrowTables(MemoryPayloads(contents))
    batch = pa.record_batch({"a": [TEXT] * 3, "b": [["x", SECRET]] * 3})
    reference = await tables.keep(stream_of(batch), **OWNER, scrub=redactor().scrub)
    table = await tables.open(reference, **OWNER)
    assert table.rows(0, 1) == [{"a": CLEAN, "b": ["x", HIDDEN]}]
    for content in contents.values():
        assert SECRET.encode() not in content
