"""Outputs in folders: which values and columns have one, what it is called, and that every row is found again."""

from __future__ import annotations

import asyncio
import base64
import datetime
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.adapters.arrow.datasets.datasets import ArrowDatasets
from noetl.adapters.objects.filesystem import FilePayloads
from noetl.adapters.spark.job.failures import JobInvalid
from noetl.adapters.spark.job.inputs import folder_name
from noetl.adapters.spark.job.outputs import adopt
from noetl.adapters.spark.job.parts import parts_of
from noetl.adapters.spark.types import schema_from_text
from noetl.ports.data.compute import Expectation, JobDataset, JobInput, JobOutput
from noetl.ports.data.datasets import LandedDataset, LandedPart
from tests.support.spark import shared_session
from tests.support.spark_jobs import dataset, job_of, performed, rows_of, succeeded

OWNER = {"tenant_id": "t", "organization_id": "o"}
ZONE = "spark.sql.session.timeZone"
VIENNA = {ZONE: "Europe/Vienna"}
# The two hours of a night in which clocks are put back.
NIGHT = """
SELECT 1 AS n, timestamp'2026-10-25 00:30:00 UTC' AS moment, 'x' AS _kind
UNION ALL SELECT 2, timestamp'2026-10-25 01:30:00.5 UTC', 'y'
"""
_numbers = count()


def only(*columns: str) -> tuple[JobOutput, ...]:
    return (JobOutput(name="", partition_by=columns),)


def as_input(tmp_path: Path, found: JobDataset) -> JobInput:
    """What the next step is given of a dataset."""
    datasets = ArrowDatasets(FilePayloads(tmp_path / "store"))
    landed = LandedDataset(
        parts=[LandedPart(path=Path(p.path), row_count=p.row_count, partition=p.partition) for p in found.parts],
        arrow_schema=base64.b64decode(found.arrow_schema),
        partition_by=found.partition_by,
    )

    async def laid_out() -> Path:
        reference = await datasets.keep(landed, **OWNER)
        return (await datasets.laid_out(reference, tmp_path / f"laid-{next(_numbers)}", **OWNER)).root

    root = asyncio.run(laid_out())
    return JobInput(
        name="t", kind="dataset", path=str(root), arrow_schema=found.arrow_schema, partition_by=found.partition_by
    )


def test_moments_of_a_partitioning_are_those_of_utc_whatever_zone_the_session_has(tmp_path: Path) -> None:
    rule = Expectation(
        name="night", kind="range", columns=("moment",), low="2026-10-25T00:30:00Z", high="2026-10-25T01:30:01Z"
    )
    code = f"def main(spark):\n    spark.conf.set({ZONE!r}, 'Europe/Vienna')\n    return spark.sql({NIGHT!r})"
    outputs = only("moment", "_kind")
    found = dataset(succeeded(job_of(tmp_path, code, "code", outputs=outputs, expectations=(rule,))))
    texts = {row["n"]: (row["moment"], row["_kind"]) for row in rows_of(found)}
    assert texts == {1: ("2026-10-25 00:30:00", "x"), 2: ("2026-10-25 01:30:00.5", "y")}
    given = as_input(tmp_path, found)
    again = dataset(succeeded(job_of(tmp_path, "SELECT n, moment, _kind FROM t", inputs=(given,), conf=VIENNA)))
    first = datetime.datetime(2026, 10, 25, 0, 30, tzinfo=datetime.UTC)
    moments = {row["n"]: row["moment"] for row in rows_of(again)}
    assert moments == {1: first, 2: first + datetime.timedelta(hours=1, milliseconds=500)}


@pytest.mark.parametrize(
    ("column", "word"),
    [
        ("x'ff' AS p", "partition_by names p, which is binary"),
        ("interval '1' day AS p", "partition_by names p, which is interval day"),
        ("1 AS `.p`", "begins with a dot"),
    ],
)
def test_columns_that_no_folder_can_be_called_after_are_named_before_anything_runs(
    tmp_path: Path, column: str, word: str
) -> None:
    by = ".p" if "`" in column else "p"
    outcome = performed(job_of(tmp_path, f"SELECT 1 AS a, {column}", outputs=only(by)))
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable) == ("SPARK_PARTITION_COLUMN", False)
    assert word in outcome.failure.message
    assert outcome.facts.jobs == ()


@pytest.mark.parametrize(
    ("text", "word"), [("concat('x', '._COPYING_')", "ends with '._COPYING_'"), ("concat('x', char(0))", "NUL")]
)
def test_values_that_spark_would_not_find_again_are_refused(tmp_path: Path, text: str, word: str) -> None:
    outcome = performed(job_of(tmp_path, f"SELECT 1 AS a, {text} AS p", outputs=only("p")))
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable) == ("SPARK_PARTITION_VALUE", False)
    assert word in outcome.failure.message
    assert "p" in outcome.failure.message
    assert outcome.datasets == ()


def test_an_input_of_which_spark_does_not_see_every_file_is_refused(tmp_path: Path) -> None:
    for value in ("x", "x._COPYING_"):
        (tmp_path / "d" / f"p={value}").mkdir(parents=True)
        pq.write_table(pa.table({"a": [1]}), tmp_path / "d" / f"p={value}" / "part-0.parquet")
    schema = base64.b64encode(pa.schema([("a", pa.int64()), ("p", pa.string())]).serialize().to_pybytes()).decode()
    given = JobInput(name="t", kind="dataset", path=str(tmp_path / "d"), arrow_schema=schema, partition_by=("p",))
    failure = performed(job_of(tmp_path, "SELECT * FROM t", inputs=(given,))).failure
    assert failure is not None
    assert failure.code == "SPARK_FILES_UNSEEN"
    assert "1 of 2 files" in failure.message


def test_dates_in_an_old_calendar_are_not_published(tmp_path: Path) -> None:
    setting = "spark.sql.parquet.datetimeRebaseModeInWrite"
    dates = job_of(tmp_path, "SELECT 1 AS a, date'1500-01-01' AS d", conf={setting: "LEGACY"})
    failure = performed(dates).failure
    assert failure is not None
    assert (failure.kind, failure.code) == ("schema", "SPARK_CALENDAR")
    assert "dates of d " in failure.message
    assert setting in failure.message
    succeeded(job_of(tmp_path, "SELECT 1 AS a", conf={setting: "LEGACY"}))


# --- names -----------------------------------------------------------------------------------------------


def test_outputs_with_names_that_look_alike_have_folders_of_their_own(tmp_path: Path) -> None:
    names = ["a b", "a-b", "a_b", "A_b", "", "x" * 300, "x" * 301, "ü", "ö"]
    assert len({folder_name(name).lower() for name in names}) == len(names)
    assert max(len(folder_name(name)) for name in names) < 128
    code = "def main(spark):\n    return {'a b': spark.range(1), 'a-b': spark.range(2)}"
    outcome = succeeded(job_of(tmp_path, code, "code"))
    assert {one.name: one.row_count for one in outcome.datasets} == {"a b": 1, "a-b": 2}


@pytest.mark.parametrize(
    ("returned", "outputs", "word"),
    [
        ("{'expect': spark.range(1)}", (), "called 'expect'"),
        ("{'t': spark.range(1), 'status': 1}", (), "called 'status'"),
        ("{'t': spark.range(1), '': 1}", (), "without a name"),
        ("spark.range(1)", ("rows", "t"), "without a name, beside which no output is called"),
        ("(n for n in [1])", (), "is or has a generator"),
        ("{'a': [iter([1])]}", (), "return a list or rows"),
    ],
)
def test_what_a_result_has_no_place_for_is_told(
    tmp_path: Path, returned: str, outputs: tuple[str, ...], word: str
) -> None:
    named = tuple(JobOutput(name=name, query="SELECT 1 AS a") for name in outputs)
    outcome = performed(job_of(tmp_path, f"def main(spark):\n    return {returned}", "code", outputs=named))
    assert outcome.failure is not None
    assert outcome.failure.kind == "config"
    assert word in outcome.failure.message
    assert outcome.facts.jobs == ()


# --- folders of other programs ---------------------------------------------------------------------------


def test_partitions_of_another_programs_folder_are_text(tmp_path: Path) -> None:
    for code in ("007", "08"):
        (tmp_path / "out" / f"code={code}").mkdir(parents=True)
        pq.write_table(pa.table({"a": [1]}), tmp_path / "out" / f"code={code}" / "part-0.parquet")
    (tmp_path / "out" / "_SUCCESS").touch()
    written = adopt(shared_session(), tmp_path / "out", JobOutput(name=""))
    schema = schema_from_text(written.dataset().arrow_schema)
    assert schema.equals(pa.schema([("a", pa.int64()), ("code", pa.string())]))
    assert [part.partition for part in written.parts] == [{"code": "007"}, {"code": "08"}]


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (pa.table({"a": [2], "b": ["lost"]}), "the column b is missing in one file and string in another"),
        (pa.table({"a": ["2"]}), "the column a is int64 in one file and string in another"),
    ],
)
def test_files_of_another_program_with_different_columns_are_refused(
    tmp_path: Path, other: pa.Table, word: str
) -> None:
    for number, table in enumerate((pa.table({"a": [1]}), other)):
        pq.write_table(table, tmp_path / f"part-{number}.parquet")
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(JobInvalid) as caught:
        adopt(shared_session(), tmp_path, JobOutput(name=""))
    assert word in caught.value.failure.message


def test_hidden_folders_are_passed_over_and_hidden_partitions_are_not(tmp_path: Path) -> None:
    for name in ("p=1", "_temporary/p=2", ".spark-staging-1/p=3"):
        (tmp_path / name).mkdir(parents=True)
        pq.write_table(pa.table({"a": [1]}), tmp_path / name / "part-0.parquet")
    assert [part.partition for part in parts_of(tmp_path)] == [{"p": "1"}]
    (tmp_path / ".q=1").mkdir()
    (tmp_path / ".q=1" / "part-0.parquet").touch()
    with pytest.raises(JobInvalid, match="begins with a dot"):
        parts_of(tmp_path)
