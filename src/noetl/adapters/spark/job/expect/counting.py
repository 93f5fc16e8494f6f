"""How many rows break rules, in as few passes as possible: one for all rules about rows, one for each about keys."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from noetl.adapters.spark.job.expect.keys import Others, complete, keys, matching, pairs
from noetl.adapters.spark.job.expect.rules import KEY_KINDS, ROW_KINDS, broken
from noetl.core.errors import Failure, ToolFailed
from noetl.ports.data.compute import Expectation


def count_broken(
    frame: DataFrame, rules: Sequence[Expectation], others: Others, *, rows: int, label: str
) -> dict[str, int]:
    """By the name of the rule.  A row count is not for here: footers know it.

    `rows` is how many there are by the footers; a verdict about fewer or more would be one about other rows, so that
    is a failure (OUTPUT_TORN)."""
    about_rows = [rule for rule in rules if rule.kind in ROW_KINDS]
    about_keys = [rule for rule in rules if rule.kind in KEY_KINDS]
    if not about_rows and not about_keys:
        return {}
    found = _row_counts(frame, about_rows, rows=rows, label=label)
    return found | {rule.name: key_count(frame, rule, others) for rule in about_keys}


def key_count(frame: DataFrame, rule: Expectation, others: Others) -> int:
    """How many rows break a rule about keys."""
    return _copies(frame, rule) if rule.kind == "unique" else _orphans(frame, rule, others)


def torn(label: str, *, seen: int, rows: int) -> ToolFailed:
    message = (
        f"{label}: {rows:,} rows were written, and {seen:,} are read from the files: nothing was published. Run the "
        f"step again; if it stays so, look at the values of partition_by and at who else writes"
    )
    return ToolFailed(Failure(kind="server_error", code="OUTPUT_TORN", message=message, retryable=True))


def _row_counts(frame: DataFrame, rules: Sequence[Expectation], *, rows: int, label: str) -> dict[str, int]:
    # Conditions first, so that they may have queries inside, which an aggregate may not.
    answers = frame.select(*[broken(rule, frame).alias(f"rule_{number}") for number, rule in enumerate(rules)])
    counts = [F.count_if(F.col(name)) for name in answers.columns]
    row = answers.agg(F.count(F.lit(1)), *counts).collect()[0]
    if row[0] != rows:
        raise torn(label, seen=row[0], rows=rows)
    return {rule.name: row[number] for number, rule in enumerate(rules, 1)}


def _copies(frame: DataFrame, rule: Expectation) -> int:
    """Rows whose key another row has too: the first one is no better than the others."""
    own = keys(frame, rule.columns, "_own")
    counted = own.groupBy(*own.columns).agg(F.count(F.lit(1)).alias("rows")).where(F.col("rows") > 1)
    return _total(counted)


def _orphans(frame: DataFrame, rule: Expectation, others: Others) -> int:
    found = matching(rule, frame, others, "_to")
    own = frame.where(complete(rule.columns, frame)).select(
        *[value.alias(f"_own_{number}") for number, value in enumerate(found.own)]
    )
    counted = own.groupBy(*own.columns).agg(F.count(F.lit(1)).alias("rows"))
    return _total(counted.join(found.known, pairs([F.col(name) for name in own.columns], "_to"), "left_anti"))


def _total(counted: DataFrame) -> int:
    total = counted.agg(F.sum("rows")).collect()[0][0]
    return int(total or 0)
