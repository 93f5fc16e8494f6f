"""Spark's own account of a write: how many files and rows the tasks committed whose output counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

_FILES = "number of written files"
_ROWS = "number of output rows"
_DESCRIPTION = "spark.job.description"
# Executions of all jobs of the driver are in one list, the newest last.
_LOOKED_AT = 64


@dataclass(frozen=True, slots=True)
class Account:
    files: int
    rows: int


@contextmanager
def described(spark: SparkSession, description: str) -> Iterator[None]:
    """Have everything that this thread starts be known by a description, also in Spark's UI."""
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, description)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]


def account_of(spark: SparkSession, description: str) -> Account | None:
    """What was written by the one write with this description; None if Spark has forgotten it.

    The figures are those of the write's commit, so tasks that were tried twice count once."""
    settle(spark)
    store = spark._jsparkSession.sharedState().statusStore()
    count = store.executionsCount()
    for first in (max(0, count - _LOOKED_AT), 0):
        for execution in reversed(list(sequence(store.executionsList(first, count - first)))):
            if execution.description() == description:
                found = _written(store, execution.executionId())
                if found is not None:
                    return found
        if first == 0:
            break
    return None


def settle(spark: SparkSession) -> None:
    """Wait until everything that has happened is in the status stores, which hear of it a little later."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()


def sequence(values: Any) -> Iterator[Any]:
    """The members of a sequence of Scala's."""
    for number in range(values.size()):
        yield values.apply(number)


def _written(store: Any, execution_id: int) -> Account | None:
    for node in sequence(store.planGraph(execution_id).allNodes()):
        metrics = {metric.name(): metric.accumulatorId() for metric in sequence(node.metrics())}
        if _FILES in metrics and _ROWS in metrics:
            values = store.executionMetrics(execution_id)
            return Account(_number(values, metrics[_FILES]), _number(values, metrics[_ROWS]))
    return None


def _number(values: Any, accumulator: int) -> int:
    found = values.get(accumulator)
    return int(found.get().replace(",", "")) if found.isDefined() else 0
