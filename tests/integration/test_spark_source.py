"""The data source `noetl` in a real session, on every payload back end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from noetl.adapters.spark.sources.access import Access
from noetl.adapters.spark.sources.payloads.finding import FoundDataset, find
from noetl.adapters.spark.sources.payloads.options import ReadOptions
from noetl.adapters.spark.sources.payloads.pointer import read_pointer
from noetl.adapters.spark.sources.payloads.saving import save
from noetl.adapters.spark.sources.registering import PUSHDOWN, register_sources
from noetl.adapters.spark.sources.waiting import waited
from noetl.bench.spark.source import measure_source
from noetl.core.dataset import Manifest
from noetl.core.reference import Reference
from noetl.wiring.sources import SettingsAccess
from tests.support.aio import asynchronous
from tests.support.object_servers import azurite, needs_node, seaweed
from tests.support.server import Place, running_server
from tests.support.sources import access_of, keep_dataset, orders
from tests.support.spark import shared_session

KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I="
SLOW = [pytest.param("azure", marks=[needs_node, pytest.mark.long])]


@pytest.fixture(scope="module")
def server() -> Iterator[Place]:
    with running_server(workers=1) as found:
        yield found


def session(access: SettingsAccess, **conf: str) -> SparkSession:
    spark = shared_session().newSession()
    for name, value in conf.items():
        spark.conf.set(name, value)
    register_sources(spark, Access(own=access))
    return spark


def kept(access: SettingsAccess, table: pa.Table, folder: Path, **how: Any) -> Reference:
    found: list[Reference] = []

    @asynchronous
    async def keep() -> None:
        found.append(await keep_dataset(access, table, folder, **how))

    keep()
    return found[0]


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def manifest_of(access: SettingsAccess, path: Path) -> Manifest:
    reference = read_pointer(path)
    assert reference is not None
    found = waited(access, lambda stores: find(stores, ReadOptions(path=reference.uri), access))
    assert isinstance(found, FoundDataset)
    return found.manifest


def payload_files(home: Path) -> set[str]:
    return {path.name for path in (home / "payloads").rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["file", "sealed file", "s3", "http", *SLOW])
def test_rows_are_read_and_written_on_every_back_end(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    home = tmp_path / "home"
    if kind == "http":
        place: Place = request.getfixturevalue("server")
        given = {"NOETL_SERVER_URL": place.url, "NOETL_TOKEN": place.tokens["token"]}
    else:
        prefix = {"NOETL_STORAGE_PREFIX": f"source/{tmp_path.name}"}
        given = {
            "file": lambda: {},
            "sealed file": lambda: {"NOETL_PAYLOAD_KEY": KEY},
            # The processes of Spark are older than these variables: what opens the bucket comes with the source.
            "s3": lambda: {**seaweed().environment, **prefix},
            "azure": lambda: {**azurite().environment, **prefix},
        }[kind]()
    access = access_of(home, given)
    spark = session(access)
    table = orders(2_000)
    locator = kept(access, table, tmp_path, rows_per_file=700).uri
    frame = spark.read.format("noetl").load(locator)
    assert rows_of(frame) == table.to_pylist()
    output = tmp_path / "out" / "orders.noetl"
    frame.write.format("noetl").mode("append").save(str(output))
    again = spark.read.format("noetl").load(str(output))
    assert again.schema == frame.schema
    assert rows_of(again) == table.to_pylist()
    assert manifest_of(access, output).row_count == 2_000


def test_appending_adds_parts_and_overwriting_replaces_them(tmp_path: Path) -> None:
    access = access_of(tmp_path / "home")
    spark = session(access)
    output = tmp_path / "numbers.noetl"

    def save(first: int, mode: str, **options: str) -> None:
        frame = spark.range(first, first + 100, numPartitions=2)
        frame.write.format("noetl").mode(mode).options(**options).save(str(output))

    save(0, "append")
    save(100, "append")
    manifest = manifest_of(access, output)
    assert (manifest.row_count, len(manifest.parts)) == (200, 4)
    assert len({part.reference.sha256 for part in manifest.parts}) == 4
    assert [row.id for row in spark.read.format("noetl").load(str(output)).collect()] == list(range(200))
    with pytest.raises(Exception, match="other columns or another partitioning"):
        spark.range(3).withColumnRenamed("id", "n").write.format("noetl").mode("append").save(str(output))
    assert manifest_of(access, output) == manifest
    save(500, "overwrite")
    assert [row.id for row in spark.read.format("noetl").load(str(output)).collect()] == list(range(500, 600))


def test_a_notebook_saves_rows_and_gets_their_locator(tmp_path: Path) -> None:
    access = access_of(tmp_path / "home")
    spark = session(access)
    rows = spark.range(20).selectExpr("id", "id % 2 AS half")
    locator = save(rows, partition_by="half")
    assert rows_of(spark.read.format("noetl").load(locator)) == [{"id": n, "half": n % 2} for n in range(20)]
    assert save(rows, partition_by=["half"]) == locator
    plain = kept(access, orders(500), tmp_path)
    named = waited(access, lambda stores: find(stores, ReadOptions(path=plain.uri), access))
    assert isinstance(named, FoundDataset)
    (file,) = (tmp_path / "home").rglob(named.manifest.parts[0].reference.sha256)
    figures = measure_source(spark, plain.uri, [str(file)], runs=1)
    assert figures.source_ratio > 0


def nulled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, one.type) for one in batch], batch.schema.names)


def test_columns_without_a_null_may_get_some_by_a_function_that_hands_on_their_schema(tmp_path: Path) -> None:
    access = access_of(tmp_path / "home")
    spark = session(access)
    plain = orders(10).select(["id", "amount", "day", "flag"])
    assert not any(column.null_count for column in plain.columns)
    frame = spark.read.format("noetl").load(kept(access, plain, tmp_path).uri)
    emptied = frame.mapInArrow(nulled, frame.schema)
    assert [row.asDict() for row in emptied.collect()] == [dict.fromkeys(plain.column_names)] * 10
    assert emptied.where("id IS NULL").count() == 10


def test_a_write_with_a_failing_task_publishes_nothing(tmp_path: Path) -> None:
    access = access_of(tmp_path / "home")
    spark = session(access)
    output = tmp_path / "numbers.noetl"
    spark.range(10).write.format("noetl").mode("append").save(str(output))
    before = output.read_bytes()
    frame = spark.range(0, 100, numPartitions=4).selectExpr("if(id = 99, raise_error('no'), id) AS id")
    with pytest.raises(Exception, match="no"):
        frame.write.format("noetl").mode("overwrite").save(str(output))
    assert output.read_bytes() == before
    named = {part.reference.sha256 for part in manifest_of(access, output).parts}
    # What other tasks have put is there, named by nothing, for the collector.
    assert payload_files(tmp_path / "home") > named
    assert not list((tmp_path / "home" / "payloads" / ".incoming").iterdir())


def test_wrong_bytes_fail_the_query_and_the_part_is_named(tmp_path: Path) -> None:
    access = access_of(tmp_path / "home")
    spark = session(access)
    reference = kept(access, orders(2_000), tmp_path, rows_per_file=1_000)
    found = waited(access, lambda stores: find(stores, ReadOptions(path=reference.uri), access))
    assert isinstance(found, FoundDataset)
    part = found.manifest.parts[1].reference
    (file,) = (tmp_path / "home").rglob(part.sha256)
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(Exception, match=part.sha256):
        spark.read.format("noetl").load(reference.uri).selectExpr("sum(id)").collect()


def test_filters_and_columns_leave_out_what_is_not_read(tmp_path: Path) -> None:
    access = access_of(tmp_path / "home")
    spark = session(access, **{PUSHDOWN: "true"})
    output = tmp_path / "by-day.noetl"
    source = kept(access, orders(300), tmp_path).uri
    frame = spark.read.format("noetl").load(source)
    frame.write.format("noetl").mode("append").option("partition_by", "day").save(str(output))
    manifest = manifest_of(access, output)
    assert manifest.partition_by == ("day",)
    assert sorted(part.partition["day"] or "" for part in manifest.parts) == ["2026-01-01", "2026-01-02", "2026-01-03"]
    read = spark.read.format("noetl").load(str(output))
    assert rows_of(read) == orders(300).to_pylist()
    one_day = read.where("day = date'2026-01-02' AND id > 100")
    assert one_day.rdd.getNumPartitions() == 1
    assert rows_of(one_day) == [row for row in orders(300).to_pylist() if row["id"] % 3 == 1 and row["id"] > 100]
    few = spark.read.format("noetl").option("columns", "id,day").load(str(output))
    assert few.columns == ["id", "day"]
    assert few.where("day IS NULL").count() == 0


def test_no_secret_is_in_a_plan_or_a_setting(tmp_path: Path, server: Place) -> None:
    token = server.tokens["token"]
    given = {"NOETL_SERVER_URL": server.url, "NOETL_TOKEN": token, "NOETL_PAYLOAD_KEY": KEY}
    access = access_of(tmp_path / "home", given)
    spark = session(access)
    frame = spark.read.format("noetl").load(kept(access, orders(10), tmp_path).uri)
    assert frame.count() == 10
    query: Any = frame._jdf.queryExecution()
    shown = [
        query.toString(),
        query.explainString(_mode(spark)),
        json.dumps(spark.sparkContext.getConf().getAll()),
        json.dumps([[row.key, row.value] for row in spark.sql("SET").collect()]),
        repr(access),
        repr(Access(own=access)),
    ]
    for text in shown:
        assert token not in text
        assert KEY not in text


def _mode(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")


def test_the_result_of_a_step_is_read_by_its_locator(tmp_path: Path, server: Place) -> None:
    playbook = """
    apiVersion: noetl.io/v2
    kind: Playbook
    metadata: {name: rows}
    workflow:
      - step: start
        tool:
          kind: python
          code: |
            def main():
                return {"status": "ok", "rows": [{"id": n, "name": f"n{n}"} for n in range(5)]}
    """
    execution_id = server.submit(playbook)
    assert server.finish(execution_id)["status"] == "COMPLETED"
    locator = f"noetl://tenant/default/org/default/execution/{execution_id}/result/start"
    expected = [{"id": n, "name": f"n{n}"} for n in range(5)]
    by_server = access_of(tmp_path, {"NOETL_SERVER_URL": server.url, "NOETL_TOKEN": server.tokens["token"]})
    assert rows_of(session(by_server).read.format("noetl").load(locator)) == expected
    dsn = {"NOETL_POSTGRES_DSN": server.environment["NOETL_POSTGRES_DSN"]}
    assert rows_of(session(access_of(server.home, dsn)).read.format("noetl").load(locator)) == expected
