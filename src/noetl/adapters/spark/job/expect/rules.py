"""Rules as conditions of Spark's.

What counts: a value that is null or NaN is no value for `not_null`; `range`, `unique` and `references` say nothing of a
null, as in a database; NaN is in no range, and equal to itself for `unique` and `references`; a condition (`sql`) that
is null is not fulfilled."""

from __future__ import annotations

from functools import reduce

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as kinds

from noetl.adapters.spark.job.expect.bounds import INEXACT, check_bounds, outside
from noetl.adapters.spark.job.expect.keys import Others, column, keys, matching, pairs
from noetl.adapters.spark.job.expect.telling import invalid
from noetl.adapters.spark.job.failures import describe
from noetl.core.errors import ToolFailed
from noetl.ports.data.compute import Expectation

ROW_KINDS = frozenset({"not_null", "range", "sql"})
KEY_KINDS = frozenset({"unique", "references"})


def check_rule(rule: Expectation, frame: DataFrame, others: Others) -> None:
    """Raises ToolFailed, naming the rule, for one that cannot be held against such rows."""
    try:
        if rule.kind in ROW_KINDS:
            _check_row_rule(rule, frame)
        elif rule.kind in KEY_KINDS:
            if not rule.columns:
                raise invalid(rule, "names no columns")
            keys(frame, rule.columns, "_own")
            if rule.kind == "references":
                found = matching(rule, frame, others, "_to")
                own = frame.select(*[value.alias(f"_own_{number}") for number, value in enumerate(found.own)])
                own.join(found.known, pairs([F.col(name) for name in own.columns], "_to"), "left_anti")
        elif rule.kind != "row_count":
            raise invalid(rule, f"is of the unknown kind {rule.kind}")
    except PySparkException as error:
        raise ToolFailed(describe(error, where=f"expect, rule {rule.name}")[0]) from error


def broken(rule: Expectation, frame: DataFrame) -> Column:
    """True for a row that breaks a rule about rows, and false for every other."""
    if rule.kind == "sql":
        return ~F.coalesce(F.expr(rule.sql or "").cast("boolean"), F.lit(False))
    found = [_column_broken(rule, frame, name) for name in rule.columns]
    return F.coalesce(reduce(lambda one, other: one | other, found), F.lit(False))


def _check_row_rule(rule: Expectation, frame: DataFrame) -> None:
    if rule.kind == "sql":
        _check_condition(rule, frame)
    elif not rule.columns:
        raise invalid(rule, "names no columns")
    elif rule.kind == "range":
        for name in rule.columns:
            check_bounds(rule, name, _kind(frame, name), frame.sparkSession)
    frame.select(broken(rule, frame))


def _kind(frame: DataFrame, name: str) -> kinds.DataType:
    return frame.select(column(name, frame)).schema[0].dataType


def _column_broken(rule: Expectation, frame: DataFrame, name: str) -> Column:
    value, kind = column(name, frame), _kind(frame, name)
    if rule.kind == "range":
        return outside(rule, value, kind)
    return value.isNull() | F.isnan(value) if isinstance(kind, INEXACT) else value.isNull()


def _check_condition(rule: Expectation, frame: DataFrame) -> None:
    if not rule.sql:
        raise invalid(rule, "has no condition")
    condition = F.expr(rule.sql)
    chosen = frame.select(condition)
    kind = chosen.schema[0].dataType
    if not isinstance(kind, kinds.BooleanType | kinds.NullType):
        raise invalid(rule, f"gives {kind.simpleString()}, and a condition must be true or false")
    if not _is_steady(chosen):
        raise invalid(rule, "gives another answer each time: use a condition without rand(), uuid() and the like")
    try:
        # Spark takes in a filter what looks at one row.  The names in between keep it from taking it for a HAVING.
        frame.select("*").where(condition.cast("boolean"))
    except AnalysisException as error:
        what = (
            "is no condition about one row: aggregates, windows and generators look at others. Compute it as a column "
            "of the output, or use unique, references or row_count"
        )
        raise invalid(rule, what) from error


def _is_steady(chosen: DataFrame) -> bool:
    """Whether a column that was chosen is the same whenever it is computed from the same rows."""
    columns = chosen._jdf.queryExecution().analyzed().expressions()
    return all(columns.apply(number).deterministic() for number in range(columns.size()))
