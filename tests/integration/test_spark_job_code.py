"""Jobs that are Python text: what `main` gets, what it may return, and how its errors are told."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from noetl.adapters.spark.types import schema_from_text
from noetl.core import limits
from noetl.ports.data.compute import JobInput, JobOutput
from tests.support.spark_jobs import dataset, job_of, performed, rows_of, succeeded

ROWS = JobInput(name="rows", kind="value", value=[{"id": 1}, {"id": 2}])
LIMIT = JobInput(name="limit", kind="value", value=1)


def code(text: str) -> str:
    return dedent(text)


def test_main_gets_the_inputs_that_it_takes_and_functions_go_to_executors(tmp_path: Path) -> None:
    text = code("""
        from __future__ import annotations
        from dataclasses import dataclass
        from pyspark.sql import functions as F

        @dataclass
        class Scale:
            factor: int

        SCALE = Scale(10)

        def scaled(batches):
            import pyarrow as pa
            for batch in batches:
                yield pa.record_batch({"id": [value * SCALE.factor for value in batch.column(0).to_pylist()]})

        def main(spark, rows, limit=0):
            twice = F.udf(lambda value: value * 2 * SCALE.factor, "long")
            assert spark.table("rows").count() == 2
            return rows.where(F.col("id") > limit).mapInArrow(scaled, "id long").select(twice("id").alias("x"))
    """)
    outcome = succeeded(job_of(tmp_path, text, "code", inputs=(ROWS, LIMIT)))
    assert rows_of(dataset(outcome)) == [{"x": 400}]


def test_functions_that_run_only_when_rows_are_written_still_find_their_program(tmp_path: Path) -> None:
    text = code("""
        FACTOR = 3
        def times(row):
            return (row.id * FACTOR,)
        def main(spark, **inputs):
            return inputs["rows"].rdd.map(times).toDF("x long")
    """)
    assert sorted(row["x"] for row in rows_of(dataset(succeeded(job_of(tmp_path, text, "code", inputs=(ROWS,)))))) == [
        3,
        6,
    ]  # type: ignore[type-var]


def test_members_are_outputs_and_values_by_name(tmp_path: Path) -> None:
    text = code("""
        import pandas, pyarrow
        def main(spark):
            return {"big": spark.range(5), "pandas": pandas.DataFrame({"a": [1, 2]}),
                    "arrow": pyarrow.table({"b": pyarrow.array([1], "uint8")}), "n": 5}
    """)
    outcome = succeeded(job_of(tmp_path, text, "code", outputs=(JobOutput(name="", files=1),)))
    assert [(one.name, one.row_count, len(one.parts)) for one in outcome.datasets] == [
        ("big", 5, 1),
        ("pandas", 2, 1),
        ("arrow", 1, 1),
    ]
    assert str(schema_from_text(dataset(outcome, "arrow").arrow_schema).field("b").type) == "uint8"
    assert outcome.values == {"n": 5}


@pytest.mark.parametrize(
    ("returned", "value"),
    [
        ("None", None),
        ("{'a': 1, 'b': [1.5, float('nan')]}", {"a": 1, "b": [1.5, None]}),
        ("spark.range(2).collect()", [{"id": 0}, {"id": 1}]),
        ("spark.range(3).count()", 3),
        ("__import__('numpy').arange(3)", [0, 1, 2]),
        ("__import__('datetime').date(2026, 1, 2)", "2026-01-02"),
    ],
)
def test_a_plain_value_is_plain_data(tmp_path: Path, returned: str, value: object) -> None:
    outcome = succeeded(job_of(tmp_path, f"def main(spark):\n    return {returned}", "code"))
    assert outcome.datasets == ()
    assert outcome.values == {"": value}


def test_one_named_output_may_be_returned_alone_and_a_missing_one_is_named(tmp_path: Path) -> None:
    text = "def main(spark):\n    return spark.range(3)"
    outcome = succeeded(job_of(tmp_path, text, "code", outputs=(JobOutput(name="only"),)))
    assert dataset(outcome, "only").row_count == 3
    two = (JobOutput(name="one"), JobOutput(name="two"))
    failure = performed(
        job_of(tmp_path, "def main(spark):\n    return {'one': spark.range(3)}", "code", outputs=two)
    ).failure
    assert failure is not None
    assert failure.code == "OUTPUT_MISSING"
    assert "main must return two" in failure.message


@pytest.mark.parametrize(
    ("text", "word", "fault"),
    [
        ("x = 1", "has no function main", "SPARK_MAIN_MISSING"),
        ("async def main(spark): ...", "ordinary function", "SPARK_MAIN_INVALID"),
        ("def main(): ...", "take the session first", "SPARK_MAIN_INVALID"),
        (
            "def main(spark, gone): ...",
            "main takes gone, which `inputs` does not have; inputs are: rows",
            "SPARK_INPUT_MISSING",
        ),
        ("def main(spark): return spark", "is a SparkSession", "SPARK_VALUE_INVALID"),
        ("def main(spark): return [spark.range(1)]", "a table inside", "SPARK_VALUE_INVALID"),
        ("def main(spark): return spark.range(1).select()", "has no columns", "SPARK_NO_COLUMNS"),
        ("def main(spark): return spark.readStream.format('rate').load()", "is a stream", "SPARK_STREAM"),
    ],
)
def test_a_program_that_cannot_work_is_told_what_to_write(tmp_path: Path, text: str, word: str, fault: str) -> None:
    failure = performed(job_of(tmp_path, text, "code", inputs=(ROWS,))).failure
    assert failure is not None
    assert (failure.kind, failure.code) == ("config", fault)
    assert word in failure.message


def test_a_value_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPARK_VALUE_BYTES_MAX", 100)
    failure = performed(job_of(tmp_path, "def main(spark):\n    return 'x' * 101", "code")).failure
    assert failure is not None
    assert failure.code == "SPARK_VALUE_TOO_LARGE"
    assert "return a DataFrame" in failure.message


def test_an_exception_in_main_has_its_lines(tmp_path: Path) -> None:
    text = "def inner():\n    raise KeyError('gone')\n\ndef main(spark):\n    inner()\n"
    outcome = performed(job_of(tmp_path, text, "code"))
    failure = outcome.failure
    assert failure is not None
    assert (failure.kind, failure.code, failure.exception_type) == ("python", "PY_KeyError", "KeyError")
    assert failure.details == {"line": 2}
    assert outcome.traceback is not None
    assert "raise KeyError('gone')" in outcome.traceback
    assert "line 5, in main" in outcome.traceback
    assert "perform.py" not in outcome.traceback


def test_an_exception_in_a_function_on_an_executor_is_the_users_too(tmp_path: Path) -> None:
    text = code("""
        from pyspark.sql import functions as F
        @F.udf("long")
        def bad(value):
            raise ValueError(f"no use for {value}")
        def main(spark):
            return spark.range(1).select(bad("id"))
    """)
    outcome = performed(job_of(tmp_path, text, "code"))
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.code) == ("python", "PY_ValueError")
    assert outcome.failure.message == "no use for 0"
    assert outcome.traceback is not None
    assert 'raise ValueError(f"no use for {value}")' in outcome.traceback
    assert outcome.facts.tasks_failed >= 1


def test_text_that_is_no_python_is_told_with_its_line(tmp_path: Path) -> None:
    outcome = performed(job_of(tmp_path, "def main(spark):\n    return (", "code"))
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.code) == ("python", "PY_SyntaxError")
    assert outcome.failure.details == {"line": 2}


def test_errors_of_sparks_own_are_told_by_their_class(tmp_path: Path) -> None:
    divided = performed(job_of(tmp_path, "SELECT 1 / (id - 1) AS a FROM range(3)")).failure
    assert divided is not None
    assert (divided.kind, divided.code) == ("transform", "SPARK_DIVIDE_BY_ZERO")
    text = "def main(spark):\n    return spark.range(1).select('nope')"
    outcome = performed(job_of(tmp_path, text, "code"))
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.code) == ("config", "SPARK_UNRESOLVED_COLUMN")
    assert outcome.traceback is not None
    assert "line 2, in main" in outcome.traceback
    died = performed(
        job_of(
            tmp_path,
            code("""
        from pyspark.sql import functions as F
        @F.udf("long")
        def gone(value):
            import os
            os._exit(3)
        def main(spark):
            return spark.range(1).select(gone("id"))
    """),
            "code",
        )
    ).failure
    assert died is not None
    assert (died.kind, died.code) == ("transform", "SPARK_TASK_FAILED")
    assert "Python worker exited unexpectedly" in died.message
    assert "\tat " not in died.message
