"""A job that is SQL text."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from noetl.adapters.spark.job.failures import JobInvalid, describe
from noetl.adapters.spark.job.modes.statements import Statement, TooManyStatements, statements
from noetl.core.errors import ToolFailed

_NAME = re.compile(r"\s*(?:`(?:[^`]|``)+`|\w+)(?:\s*\.\s*(?:`(?:[^`]|``)+`|\w+))*\s*\Z")


def run_statements(spark: SparkSession, text: str) -> DataFrame | None:
    """Run all statements; what the last query gives, or the last command with an answer if there is no query.

    A query that is not the last one is only looked at and not carried out: nobody would see its rows."""
    try:
        found = statements(text, lambda piece: _parses(spark, piece))
    except TooManyStatements as error:
        raise JobInvalid(f"sql: {error}", "SPARK_TOO_MANY_STATEMENTS") from error
    query: DataFrame | None = None
    answer: DataFrame | None = None
    for number, statement in enumerate(found, 1):
        frame = _run(spark, statement, number, len(found))
        if not frame.columns:
            continue
        if _is_command(frame):
            answer = frame
        else:
            query = frame
    return query if query is not None else answer


def query_frame(spark: SparkSession, query: str) -> DataFrame:
    """The rows of a view, a table or a query."""
    return spark.table(query.strip()) if _NAME.match(query) else spark.sql(query)


def _run(spark: SparkSession, statement: Statement, number: int, count: int) -> DataFrame:
    try:
        return spark.sql(statement.text)
    except (PySparkException, Py4JJavaError) as error:
        where = f"statement {number} of {count} (line {statement.line})" if count > 1 else ""
        raise ToolFailed(describe(error, where=where)[0]) from error


def _is_command(frame: DataFrame) -> bool:
    name: str = frame._jdf.logicalPlan().getClass().getSimpleName()
    return name == "CommandResult"


def _parses(spark: SparkSession, text: str) -> bool:
    try:
        spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except ParseException:
        return False
    return True
