"""Rows that break a rule, set aside in a dataset of their own with the names of the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from noetl.adapters.spark.job.expect.counting import torn
from noetl.adapters.spark.job.expect.keys import Others, complete, keys, matching, pairs
from noetl.adapters.spark.job.expect.keys import column as key_column
from noetl.adapters.spark.job.expect.rules import ROW_KINDS, broken
from noetl.adapters.spark.job.failures import JobInvalid
from noetl.adapters.spark.job.inputs import quoted
from noetl.adapters.spark.job.outputs import Written, read_written, told, write
from noetl.ports.data.compute import BROKEN_RULES, Expectation, JobOutput

RULES = BROKEN_RULES
_ROWS_PER_FILE = 1_000_000


def check_columns(frame: DataFrame, name: str) -> None:
    if RULES in {column_name.lower() for column_name in frame.columns}:
        raise JobInvalid(
            f"{told(name)} has a column {RULES}, which a quarantine needs: rename it", "SPARK_COLUMN_TWICE"
        )


def mark(
    spark: SparkSession, rows: Written, rules: Sequence[Expectation], others: Others, *, folder: Path, about: str
) -> Written:
    """All rows, with the names of the rules that they break, in files of their own.

    They are written before they are parted: a rule that does not give the same answer twice would lose rows, or have
    them twice.  Rows that are marked already keep their marks and get no others."""
    marked = _marked(read_written(spark, rows), rules, others)
    found = write(spark, marked, folder, output=JobOutput(name=rows.name), description=about)
    if found.rows != rows.rows:
        raise torn(told(rows.name), seen=found.rows, rows=rows.rows)
    return found


def kept_rows(spark: SparkSession, marked: Written) -> DataFrame:
    """Those that break no rule, with the columns of the output."""
    frame = read_written(spark, marked)
    return frame.where(F.size(RULES) == 0).drop(RULES)


def count_marks(spark: SparkSession, marked: Written, rules: Sequence[Expectation]) -> tuple[int, dict[str, int]]:
    """How many rows are marked, and by which rules."""
    marks = read_written(spark, marked).select(RULES)
    wanted = [F.count_if(F.array_contains(RULES, rule.name)) for rule in rules]
    row = marks.agg(F.count_if(F.size(RULES) > 0), *wanted).collect()[0]
    return row[0], {rule.name: row[number] for number, rule in enumerate(rules, 1)}


def part(
    spark: SparkSession, staged: Written, marked: Written, *, bad_rows: int, about: str
) -> tuple[Written, Written]:
    """The rows that keep all rules and those that break one."""
    names = [F.col(quoted(name)) for name in staged.struct.names]
    is_parted = staged.partition_by != ()
    files = staged.files if is_parted else staged.files or len(staged.parts)
    good = write(
        spark,
        kept_rows(spark, marked).select(*names),
        beside(staged.folder, "kept"),
        output=JobOutput(name=staged.name, partition_by=staged.partition_by, files=files),
        description=f"{about}: rows that keep the rules",
    )
    # A few rows out of many tasks: fewer files than tasks.
    aside = read_written(spark, marked).where(F.size(RULES) > 0).repartition(1 + bad_rows // _ROWS_PER_FILE)
    bad = write(
        spark,
        aside,
        beside(staged.folder, "quarantine"),
        output=JobOutput(name=staged.name),
        description=f"{about}: rows that break rules",
    )
    if good.rows + bad.rows != staged.rows:
        raise torn(told(staged.name), seen=good.rows + bad.rows, rows=staged.rows)
    return replace(good, files=staged.files, struct=staged.struct), replace(bad, is_quarantine=True)


def beside(folder: Path, what: str) -> Path:
    return folder.with_name(f"{folder.name}.{what}")


def _marked(frame: DataFrame, rules: Sequence[Expectation], others: Others) -> DataFrame:
    names = [F.col(quoted(name)) for name in frame.columns if name != RULES]
    prefix = _free_prefix(frame)
    found = frame
    conditions: list[Column] = []
    for number, rule in enumerate(rules):
        if rule.kind in ROW_KINDS:
            is_broken = broken(rule, frame)
        else:
            filled = f"{prefix}{number}"
            found = _with_mark(found, frame, rule, filled, others)
            is_broken = F.col(filled).isNotNull()
            if rule.kind == "references":
                is_broken = complete(rule.columns, frame) & F.col(filled).isNull()
        conditions.append(F.when(is_broken, F.lit(rule.name)))
    marks = F.array_compact(F.array(*conditions))
    if RULES in frame.columns:
        marks = F.when(F.size(RULES) > 0, F.col(RULES)).otherwise(marks)
    return found.select(*names, marks.alias(RULES))


def _free_prefix(frame: DataFrame) -> str:
    """How columns can be called beside those of the rows."""
    prefix = "_rule_"
    while any(name.lower().startswith(prefix) for name in frame.columns):
        prefix = f"_{prefix}"
    return prefix


def _with_mark(found: DataFrame, frame: DataFrame, rule: Expectation, mark_name: str, others: Others) -> DataFrame:
    """With a column that is filled where the key has copies, or where it is known elsewhere."""
    prefix = f"{mark_name}_key"
    if rule.kind == "unique":
        own = [key_column(name, frame) for name in rule.columns]
        all_keys = keys(frame, rule.columns, prefix)
        counted = all_keys.groupBy(*all_keys.columns).agg(F.count(F.lit(1)).alias(mark_name))
        known = counted.where(F.col(mark_name) > 1)
    else:
        match = matching(rule, frame, others, prefix)
        own, known = list(match.own), match.known.withColumn(mark_name, F.lit(1))
    return found.join(known, pairs(own, prefix), "left").drop(*[f"{prefix}_{n}" for n in range(len(rule.columns))])
