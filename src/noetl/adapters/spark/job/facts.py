"""What a job cost, from Spark's status store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from noetl.adapters.spark.job.account import sequence, settle
from noetl.ports.data.compute import JobFacts

# A driver keeps about as many Spark stages; older ones are forgotten.
_STAGES_MAX = 1_000


def facts_of(spark: SparkSession, group: str, *, wall_ms: int) -> JobFacts:
    """The sum over all jobs of Spark's in a job group, as far as Spark still knows them."""
    settle(spark)
    context = spark.sparkContext
    tracker = context._jsc.sc().statusTracker()
    # A program may set a group of its own; the tag stays.
    jobs = tuple(sorted({*tracker.getJobIdsForGroup(group), *tracker.getJobIdsForTag(group)}))
    stages = list(_stages(context._jsc.sc().statusStore(), _writer(spark), jobs))

    def total(*names: str) -> int:
        return sum(stage[name] for stage in stages for name in names)

    return JobFacts(
        jobs=jobs,
        stages=len(stages),
        tasks=total("numCompleteTasks"),
        tasks_failed=total("numFailedTasks"),
        rows_read=total("inputRecords"),
        bytes_read=total("inputBytes"),
        rows_written=total("outputRecords"),
        bytes_written=total("outputBytes"),
        shuffle_read_bytes=total("shuffleReadBytes"),
        shuffle_write_bytes=total("shuffleWriteBytes"),
        spilled_bytes=total("diskBytesSpilled"),
        executor_ms=total("executorRunTime"),
        gc_ms=total("jvmGcTime"),
        wall_ms=wall_ms,
    )


def _writer(spark: SparkSession) -> Any:
    """What Spark's own REST API writes JSON with: one call for a Spark stage instead of one for each figure."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a session has a virtual machine"
    return jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()


def _stages(store: Any, writer: Any, jobs: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    seen: set[int] = set()
    for job in reversed(jobs):
        try:
            numbers = [int(number) for number in sequence(store.job(job).stageIds())]
        except Py4JJavaError:
            continue  # forgotten
        for number in numbers:
            if number in seen or len(seen) >= _STAGES_MAX:
                continue
            seen.add(number)
            try:
                stage = json.loads(writer.writeValueAsString(store.lastStageAttempt(number)))
            except Py4JJavaError:
                continue
            if stage["status"] != "SKIPPED":
                yield stage
