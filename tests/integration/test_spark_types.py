"""Every Arrow type goes through Spark and comes back as what it was, or its column is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.adapters.arrow.stored.casting import from_stored, to_stored
from noetl.adapters.arrow.stored.text import schema_from_text, schema_text
from noetl.adapters.spark.types import TypeUnsupported, plan_of, storable, written_schema
from noetl.core.errors import EnvelopeInvalid
from tests.support.arrow_types import KEPT, REFUSED
from tests.support.spark import shared_session


def laid_out(table: pa.Table, folder: Path) -> Any:
    plan = plan_of(table.schema)
    folder.mkdir()
    batches = [plan.stored_batch(batch) for batch in table.to_batches()]
    pq.write_table(pa.Table.from_batches(batches, plan.stored), folder / "part.parquet")
    return shared_session().read.schema(plan.struct).parquet(str(folder))


def written(frame: Any, folder: Path) -> pa.Table:
    storable(frame).write.parquet(str(folder))
    files = [str(path) for path in folder.glob("*.parquet")]
    schema = written_schema(frame.schema, files)
    batches = [from_stored(batch, schema) for file in files for batch in pq.ParquetFile(file).iter_batches()]
    return pa.Table.from_batches(batches, schema)


def test_every_type_comes_back_as_it_was(tmp_path: Path) -> None:
    table = pa.table(dict(KEPT))
    back = written(laid_out(table, tmp_path / "in").coalesce(1), tmp_path / "out")
    for name in KEPT:
        assert back.schema.field(name).type.equals(table.schema.field(name).type), name
        assert back.column(name).to_pylist() == table.column(name).to_pylist(), name


def test_types_stay_with_columns_that_are_renamed_filtered_and_joined(tmp_path: Path) -> None:
    spark = shared_session()
    laid_out(
        pa.table({"k": pa.array([1, 2, 3], "uint8"), "u": pa.array([7, 8, 9], "uint64")}), tmp_path / "a"
    ).createOrReplaceTempView("types_a")
    laid_out(
        pa.table({"k": pa.array([2, 3], "uint8"), "t": pa.array([1, 2], pa.timestamp("s"))}), tmp_path / "b"
    ).createOrReplaceTempView("types_b")
    frame = spark.sql("SELECT a.k AS key, u, t, u + 1 AS more FROM types_a a JOIN types_b b ON a.k = b.k WHERE u > 7")
    back = written(frame.coalesce(1), tmp_path / "out")
    assert [str(field.type) for field in back.schema] == ["uint8", "uint64", "timestamp[s]", "decimal128(21, 0)"]
    assert sorted(back.column("u").to_pylist()) == [8, 9]


def test_a_narrow_type_is_given_up_when_a_value_does_not_fit_it_any_more(tmp_path: Path) -> None:
    spark = shared_session()
    laid_out(pa.table({"u": pa.array([1], "uint8")}), tmp_path / "a").createOrReplaceTempView("types_narrow")
    back = written(spark.sql("SELECT u FROM types_narrow UNION ALL SELECT 999S").coalesce(1), tmp_path / "out")
    assert back.schema.field("u").type == pa.int16()
    assert sorted(back.column("u").to_pylist()) == [1, 999]


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_is_refused_by_its_name(name: str) -> None:
    batch = pa.record_batch({"fine": pa.array([1, 2, 3]), name: REFUSED[name]})
    with pytest.raises(TypeUnsupported, match=f"column '{name}"):
        plan_of(batch.schema).stored_batch(batch)


@pytest.mark.parametrize("expression", ["INTERVAL '1' YEAR", "parse_json('1')", "array(null)"])
def test_a_type_of_sparks_that_arrow_lacks_is_refused_by_its_name(expression: str, tmp_path: Path) -> None:
    frame = shared_session().sql(f"SELECT 1 AS fine, {expression} AS odd")
    with pytest.raises(TypeUnsupported, match="column 'odd"):
        written(frame, tmp_path / "out")


@pytest.mark.parametrize("names", [["a", "A"], ["a", ""]])
def test_names_that_spark_cannot_tell_apart_are_refused(names: list[str]) -> None:
    with pytest.raises(TypeUnsupported, match="column"):
        plan_of(pa.schema([pa.field(name, pa.int8()) for name in names]))


def test_columns_that_every_engine_knows_are_not_copied() -> None:
    batch = pa.record_batch({"n": pa.array([1, 2]), "t": pa.array(["a", None])})
    assert to_stored(batch).column(0).buffers()[1].address == batch.column(0).buffers()[1].address


def test_schemas_are_read_back_from_text() -> None:
    schema = pa.table(dict(KEPT)).schema
    assert schema_from_text(schema_text(schema)).equals(schema)
    for wrong in ("", "%", "AAAA"):
        with pytest.raises(EnvelopeInvalid, match="not an Arrow schema"):
            schema_from_text(wrong)
