"""One job in a session: inputs, programs, outputs, values, facts and failures."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.adapters.spark.job import parquet
from noetl.adapters.spark.job.modes.statements import statements
from noetl.adapters.spark.types import plan_of, schema_from_text, schema_text
from noetl.ports.data.compute import JobInput, JobOutput
from tests.support.spark_jobs import arrow_file, dataset, job_of, performed, rows_of, succeeded

# --- inputs ----------------------------------------------------------------------------------------------


def test_an_arrow_table_becomes_a_view_and_its_rows_come_back_with_their_types(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([1, 2, 3], pa.uint16()), "day": [datetime.date(2026, 1, n) for n in (1, 2, 3)]})
    path, offset, length = arrow_file(tmp_path / "in.arrow", table, before=13, chunk=2)
    given = JobInput(name="orders", kind="arrow", path=path, offset=offset, length=length)
    outcome = succeeded(job_of(tmp_path, "SELECT * FROM orders WHERE id > 1 ORDER BY id", inputs=(given,)))
    found = dataset(outcome)
    assert schema_from_text(found.arrow_schema).equals(table.schema)
    assert [row["id"] for row in rows_of(found)] == [2, 3]
    assert found.row_count == 2
    assert found.columns == ("id", "day")


def test_a_large_table_is_laid_out_in_several_files_with_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_FILE_BYTES_MIN", parquet._FILE_BYTES_MIN // 64)
    numbers = pa.table({"id": pa.array(range(40_000), pa.int64())})
    path, offset, length = arrow_file(tmp_path / "in.arrow", numbers, chunk=1_001)
    given = JobInput(name="t", kind="arrow", path=path, offset=offset, length=length)
    job = job_of(tmp_path, "SELECT count(*) AS n, count(DISTINCT id) AS d, sum(id) AS s FROM t", inputs=(given,))
    outcome = succeeded(job)
    assert rows_of(dataset(outcome)) == [{"n": 40_000, "d": 40_000, "s": 39_999 * 20_000}]
    files = sorted((job.folder / "inputs").rglob("*.parquet"))
    assert len(files) == 2
    assert sum(pq.read_metadata(file).num_rows for file in files) == 40_000


def test_a_table_without_rows_is_a_view_too(tmp_path: Path) -> None:
    path, offset, length = arrow_file(tmp_path / "in.arrow", pa.table({"a": pa.array([], pa.int32())}))
    given = JobInput(name="t", kind="arrow", path=path, offset=offset, length=length)
    found = dataset(succeeded(job_of(tmp_path, "SELECT a FROM t", inputs=(given,))))
    assert (found.row_count, found.columns) == (0, ("a",))
    assert str(schema_from_text(found.arrow_schema).field("a").type) == "int32"


def test_a_dataset_is_read_with_its_own_schema_and_its_partition_columns_stay_where_they_were(tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.string()), ("n", pa.int32()), ("zone", pa.string())])
    stored = plan_of(pa.schema([("n", pa.int32()), ("zone", pa.string())])).stored
    for day, numbers in (("01", [1, 2]), ("02", [3])):
        folder = tmp_path / "data [set]" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"n": numbers, "zone": ["x"] * len(numbers)}, stored), folder / "0.parquet")
    given = JobInput(
        name="d",
        kind="dataset",
        path=str(tmp_path / "data [set]"),
        arrow_schema=schema_text(schema),
        partition_by=("day",),
    )
    found = dataset(succeeded(job_of(tmp_path, "SELECT * FROM d ORDER BY n", inputs=(given,))))
    assert [tuple(row.values()) for row in rows_of(found)] == [("01", 1, "x"), ("01", 2, "x"), ("02", 3, "x")]
    assert schema_from_text(found.arrow_schema).equals(schema)


def test_a_dataset_without_parts_has_its_columns(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    schema = schema_text(pa.schema([("a", pa.int8())]))
    given = JobInput(name="d", kind="dataset", path=str(tmp_path / "empty"), arrow_schema=schema)
    found = dataset(succeeded(job_of(tmp_path, "SELECT a + 1 AS b FROM d", inputs=(given,))))
    assert (found.row_count, found.columns) == (0, ("b",))


def test_files_of_other_formats_and_rows_of_plain_data_are_inputs(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,name\n1,ann\n2,bob\n")
    files = JobInput(name="c", kind="source", path=str(tmp_path / "in.csv"), format="csv", options={"header": "true"})
    rows = JobInput(name="r", kind="value", value=[{"id": 1, "x": 2.5}, {"id": 2, "y": None, "x": 3}])
    sql = "SELECT c.name, r.x, r.y FROM c JOIN r ON c.id = r.id ORDER BY c.id"
    outcome = succeeded(job_of(tmp_path, sql, inputs=(files, rows)))
    assert rows_of(dataset(outcome)) == [{"name": "ann", "x": 2.5, "y": None}, {"name": "bob", "x": 3.0, "y": None}]


def test_a_broken_input_is_named(tmp_path: Path) -> None:
    mixed = JobInput(name="r", kind="value", value=[{"a": 1}, {"a": "x"}])
    failure = performed(job_of(tmp_path, "SELECT * FROM r", inputs=(mixed,))).failure
    assert failure is not None
    assert "input r" in failure.message
    assert "'a'" in failure.message
    lost = JobInput(name="f", kind="source", path=str(tmp_path / "no.parquet"), format="parquet")
    failure = performed(job_of(tmp_path, "SELECT * FROM f", inputs=(lost,))).failure
    assert failure is not None
    assert (failure.kind, failure.code) == ("config", "SPARK_PATH_NOT_FOUND")
    assert failure.message.startswith("input f: ")


# --- SQL -------------------------------------------------------------------------------------------------


def test_the_last_query_is_the_result_and_statements_may_hold_semicolons(tmp_path: Path) -> None:
    sql = """
    -- first; a view
    CREATE TEMP VIEW v AS SELECT ';' AS `a;b`, "x;'" AS c;
    /* nothing; /* here */ ; */
    SELECT r'\\' AS r, `a;b`, c, 'it''s; \\'so' AS d FROM v;
    SET spark.sql.ansi.enabled = true;
    """
    assert rows_of(dataset(succeeded(job_of(tmp_path, sql)))) == [{"r": "\\", "a;b": ";", "c": "x;'", "d": "it's; 'so"}]


def test_a_block_is_one_statement_and_commands_alone_may_be_the_result(tmp_path: Path) -> None:
    sql = """
    DECLARE VARIABLE total INT DEFAULT 0;
    BEGIN
      DECLARE n INT DEFAULT 3;
      WHILE n > 0 DO SET total = total + n; SET n = n - 1; END WHILE;
      inner_block: BEGIN IF total > 5 THEN SET total = total * 10; END IF; END inner_block;
    END;
    SELECT total, CASE WHEN total > 1 THEN 'many' END AS words
    """
    assert rows_of(dataset(succeeded(job_of(tmp_path, sql)))) == [{"total": 60, "words": "many"}]
    shown = succeeded(
        job_of(tmp_path, "CREATE TEMP VIEW one AS SELECT 1 AS a; SHOW VIEWS; CREATE TEMP VIEW b AS TABLE one")
    )
    assert "viewName" in dataset(shown).columns
    nothing = succeeded(job_of(tmp_path, "CREATE TEMP VIEW one AS SELECT 1 AS a"))
    assert (nothing.datasets, nothing.values) == ((), {})


def test_the_wrong_statement_is_told_without_a_java_stack(tmp_path: Path) -> None:
    outcome = performed(job_of(tmp_path, "SELECT 1 AS a;\n\n-- next\nSELECT nope FROM VALUES (1) AS t(b)"))
    failure = outcome.failure
    assert failure is not None
    assert (failure.kind, failure.code) == ("config", "SPARK_UNRESOLVED_COLUMN")
    assert failure.message.startswith("statement 2 of 2 (line 4): ")
    assert "nope" in failure.message
    assert "org.apache" not in failure.message
    assert "+-" not in failure.message
    assert outcome.datasets == ()
    syntax = performed(job_of(tmp_path, "SELEC 1")).failure
    assert syntax is not None
    assert (syntax.kind, syntax.code) == ("config", "SPARK_PARSE_SYNTAX_ERROR")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("SELECT 1", 1),
        ("SELECT 1;;  ;\n", 1),
        ("", 0),
        ("-- only; this", 0),
        ("/* a ; b", 0),
        ("SELECT 'open; SELECT 2", 1),
        ("SELECT `open; SELECT 2", 1),
        ("SELECT 'a\\\\'; SELECT 2", 2),
        ("SELECT bar'x'; SELECT 2", 2),
        ("SELECT begin; SELECT 2", 2),
        ("BEGIN SELECT 1; SELECT 2; END; SELECT 3", 2),
        ("BEGIN SELECT 1; SELECT 2", 1),
    ],
)
def test_where_statements_end(text: str, count: int) -> None:
    found = statements(text, lambda piece: piece.count("BEGIN") == piece.count("END"))
    assert len(found) == count


def test_named_outputs_are_views_queries_and_partitioned_files(tmp_path: Path) -> None:
    outputs = (
        JobOutput(name="v"),
        JobOutput(name="odd", query="SELECT id FROM v WHERE id % 2 = 1", files=1),
        JobOutput(name="by_day", query="v", partition_by=("DAY",)),
    )
    sql = "CREATE TEMP VIEW v AS SELECT id, concat('d', id % 3) AS day FROM range(10)"
    outcome = succeeded(job_of(tmp_path, sql, outputs=outputs))
    assert [one.name for one in outcome.datasets] == ["v", "odd", "by_day"]
    assert len(dataset(outcome, "odd").parts) == 1
    assert sorted(row["id"] for row in rows_of(dataset(outcome, "odd"))) == [1, 3, 5, 7, 9]
    parted = dataset(outcome, "by_day")
    assert parted.partition_by == ("day",)
    assert {part.partition["day"] for part in parted.parts} == {"d0", "d1", "d2"}
    assert sorted((row["id"], row["day"]) for row in rows_of(parted)) == [(n, f"d{n % 3}") for n in range(10)]


def test_an_output_that_no_view_gives_is_named(tmp_path: Path) -> None:
    failure = performed(job_of(tmp_path, "SELECT 1 AS a", outputs=(JobOutput(name="gone"),))).failure
    assert failure is not None
    assert failure.code == "SPARK_TABLE_OR_VIEW_NOT_FOUND"
    assert failure.message.startswith("output gone: ")


# --- outputs ---------------------------------------------------------------------------------------------


def test_partition_values_come_back_as_they_were_written(tmp_path: Path) -> None:
    sql = "SELECT * FROM VALUES (1, 'a=b/c d%e:ü'), (2, NULL), (3, '2026-01-01') AS t(n, p)"
    found = dataset(succeeded(job_of(tmp_path, sql, outputs=(JobOutput(name="", partition_by=("p",)),))))
    assert {row["n"]: row["p"] for row in rows_of(found)} == {1: "a=b/c d%e:ü", 2: None, 3: "2026-01-01"}


def test_an_output_without_rows_keeps_its_schema(tmp_path: Path) -> None:
    sql = "SELECT id, cast(id AS string) AS p FROM range(5) WHERE id < 0"
    plain = dataset(succeeded(job_of(tmp_path, sql)))
    assert (plain.row_count, plain.columns) == (0, ("id", "p"))
    parted = dataset(succeeded(job_of(tmp_path, sql, outputs=(JobOutput(name="", partition_by=("p",)),))))
    assert (parted.row_count, parted.parts) == (0, ())
    assert schema_from_text(parted.arrow_schema).names == ["id", "p"]


@pytest.mark.parametrize(
    ("sql", "by", "word"),
    [
        ("SELECT 1 AS a, 2 AS A", (), "the column A twice"),
        ("SELECT 1 AS ``", (), "without a name"),
        ("SELECT 1 AS a, make_interval(1) AS i", (), "i"),
        ("SELECT 1 AS a, 2 AS b", ("c",), "partition_by names c; the columns are a, b"),
        ("SELECT 1 AS a", ("a",), "takes all columns"),
    ],
)
def test_columns_that_cannot_be_written_are_named_before_anything_runs(
    tmp_path: Path, sql: str, by: tuple[str, ...], word: str
) -> None:
    outcome = performed(job_of(tmp_path, sql, outputs=(JobOutput(name="", partition_by=by),)))
    assert outcome.failure is not None
    assert word in outcome.failure.message
    assert outcome.facts.jobs == ()


def test_files_that_are_not_what_spark_wrote_are_not_published(tmp_path: Path) -> None:
    job = job_of(tmp_path, "SELECT 1 AS a")
    stray = job.folder / "outputs" / "of_"
    stray.mkdir(parents=True)
    pq.write_table(pa.table({"a": [7]}), stray / "part-9.parquet")
    outcome = performed(job)
    assert outcome.failure is not None
    assert outcome.failure.code == "SPARK_PATH_ALREADY_EXISTS"
    assert outcome.datasets == ()


def test_a_file_that_somebody_else_put_there_is_not_published(tmp_path: Path) -> None:
    text = """
import pathlib, shutil, pyarrow, pyarrow.parquet

FOLDER = pathlib.Path(__file__).parent / "outputs" / "of_"

def strange(batches):
    pyarrow.parquet.write_table(pyarrow.table({"id": [7, 8]}), FOLDER / "part-x.parquet")
    yield from batches

def main(spark):
    return spark.range(0, 10, 1, 1).mapInArrow(strange, "id long")
"""
    outcome = performed(job_of(tmp_path, text, "code"))
    assert outcome.failure is not None
    assert outcome.failure.code == "OUTPUT_TORN"
    assert "Spark wrote 10 rows in 1 files, and there are 12 rows in 2 files" in outcome.failure.message
    assert outcome.datasets == ()


def test_rows_keep_their_order_over_the_parts(tmp_path: Path) -> None:
    sql = "SELECT id FROM range(0, 20000, 1, 8) ORDER BY id DESC"
    conf = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    found = dataset(succeeded(job_of(tmp_path, sql, conf=conf)))
    assert len(found.parts) > 1
    assert [row["id"] for row in rows_of(found)] == list(range(19999, -1, -1))


def test_facts_are_those_of_the_job_and_of_no_other(tmp_path: Path) -> None:
    succeeded(job_of(tmp_path, "SELECT * FROM range(100)"))
    sql = "SELECT id % 7 AS k, count(*) AS n FROM range(0, 1000, 1, 4) GROUP BY 1"
    facts = succeeded(job_of(tmp_path, sql)).facts
    assert facts.rows_written == 7
    assert facts.bytes_written > 0
    assert facts.rows_read == 1000
    assert facts.shuffle_write_bytes > 0
    assert facts.tasks >= 5
    assert facts.tasks_failed == 0
    assert len(facts.jobs) >= 1
    assert facts.wall_ms > 0
