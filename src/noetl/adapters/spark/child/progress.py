"""How far the jobs of a driver have come, asked of Spark's own books about twice a second while any runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from noetl.core import limits
from noetl.ports.data.compute import JobProgress

_OVER = ("SUCCEEDED", "FAILED")
_ACTIVE = "ACTIVE"


class Tally:
    """Counts of one job.  What has ended does not change any more and is asked for once."""

    def __init__(self) -> None:
        self.ended: dict[int, tuple[int, int, int, int, int]] = {}


class Books:
    """Spark's own account of its jobs, found by a tag: user code may set a group of its own, and tags stay."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._tracker = context._jsc.sc().statusTracker()
        self._store = context._jsc.sc().statusStore()

    def job_ids(self, tag: str) -> list[int]:
        return sorted(self._tracker.getJobIdsForTag(tag))

    def is_active(self, tag: str) -> bool:
        active = set(self._tracker.getActiveJobIds())
        return bool(active and active.intersection(self.job_ids(tag)))

    def progress(self, tag: str, known: Tally) -> JobProgress:
        ids = self.job_ids(tag)
        totals = [0, 0, 0, 0, 0]
        stage: str | None = None
        for job_id in ids:
            counts = known.ended.get(job_id)
            if counts is None:
                counts, running = self._counts(job_id, known)
                stage = running or stage
            totals = [one + other for one, other in zip(totals, counts, strict=True)]
        return JobProgress(
            jobs=tuple(ids[-limits.SPARK_JOBS_TOLD_MAX :]),
            stages=totals[0],
            stages_done=totals[1],
            tasks=totals[2],
            tasks_done=totals[3],
            tasks_failed=totals[4],
            stage=stage,
        )

    def _counts(self, job_id: int, known: Tally) -> tuple[tuple[int, int, int, int, int], str | None]:
        job = self._store.job(job_id)
        stage_ids = [int(text) for text in job.stageIds().mkString(",").split(",") if text]
        counts = (
            len(stage_ids),
            job.numCompletedStages() + job.numSkippedStages(),
            job.numTasks(),
            job.numCompletedTasks() + job.numSkippedTasks(),
            job.numFailedTasks(),
        )
        if job.status().toString() in _OVER:
            known.ended[job_id] = counts
            return counts, None
        return counts, self._running(stage_ids)

    def _running(self, stage_ids: list[int]) -> str | None:
        for stage_id in stage_ids[-limits.SPARK_STAGES_LOOKED_AT_MAX :]:
            try:
                stage = self._store.lastStageAttempt(stage_id)
            except Py4JError:
                continue  # not in the books yet
            if stage.status().toString() == _ACTIVE:
                return _name(stage)
        return None


def _name(stage: Any) -> str:
    """Where in the program it was asked for; a stage that Spark began by itself only has what the job is called."""
    name, description = str(stage.name()), stage.description()
    return str(description.get()) if name.startswith("$anonfun") and description.isDefined() else name


class Watcher(threading.Thread):
    """Looks while there is anything to look at, and says what has changed."""

    def __init__(
        self, books: Books, *, running: Callable[[], Iterable[str]], tell: Callable[[str, JobProgress], None]
    ) -> None:
        super().__init__(name="progress", daemon=True)
        self._books = books
        self._running = running
        self._tell = tell
        self._wanted = threading.Event()
        self._tallies: dict[str, Tally] = {}
        self._told: dict[str, JobProgress] = {}

    def wake(self) -> None:
        self._wanted.set()

    def run(self) -> None:
        pause = threading.Event()
        while True:
            self._wanted.wait()
            self._wanted.clear()
            while jobs := set(self._running()):
                self._look(jobs)
                pause.wait(limits.SPARK_PROGRESS_SECONDS)

    def _look(self, jobs: set[str]) -> None:
        for gone in self._tallies.keys() - jobs:
            del self._tallies[gone]
            self._told.pop(gone, None)
        for job_id in jobs:
            try:
                progress = self._books.progress(job_id, self._tallies.setdefault(job_id, Tally()))
            except (Py4JError, OSError):
                continue  # the JVM is gone, which others notice, or has forgotten a job
            if progress.jobs and progress != self._told.get(job_id):
                self._told[job_id] = progress
                self._tell(job_id, progress)
