"""Jobs performed in the session that tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from noetl.adapters.spark.job.perform import perform
from noetl.adapters.spark.types import schema_from_text
from noetl.ports.data.compute import JobDataset, JobOutcome, SparkJob
from tests.support.spark import shared_session

_numbers = count(1)


@dataclass(slots=True)
class Heard:
    """A report that remembers."""

    said_lines: list[tuple[str, str]] = field(default_factory=list)
    actions: list[Callable[[], None]] = field(default_factory=list)

    def said(self, text: str, *, stream: str) -> None:
        self.said_lines.append((stream, text))

    def on_cancel(self, action: Callable[[], None]) -> None:
        self.actions.append(action)

    def text(self, stream: str) -> str:
        return "".join(text for name, text in self.said_lines if name == stream)


def job_of(folder: Path, text: str, mode: str = "sql", **more: Any) -> SparkJob:
    """A job in a folder of its own."""
    job_id = f"job-{next(_numbers)}"
    home = folder / job_id
    home.mkdir(parents=True)
    return SparkJob(job_id=job_id, title="a test", mode=mode, text=text, folder=home, **more)  # type: ignore[arg-type]


def performed(job: SparkJob, report: Heard | None = None) -> JobOutcome:
    """What becomes of a job, as a driver would run it."""
    spark = shared_session().newSession()
    for name, value in job.conf.items():
        spark.conf.set(name, value)
    context = spark.sparkContext
    context.setJobGroup(job.job_id, job.title, interruptOnCancel=True)
    try:
        return perform(spark, job, report or Heard())
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def succeeded(job: SparkJob) -> JobOutcome:
    outcome = performed(job)
    assert outcome.failure is None, f"{outcome.failure}\n{outcome.traceback}"
    return outcome


def rows_of(dataset: JobDataset) -> list[dict[str, object]]:
    """All rows that the parts of a dataset have, in the order of the parts."""
    schema = schema_from_text(dataset.arrow_schema)
    rows: list[dict[str, object]] = []
    for part in dataset.parts:
        table = pq.ParquetFile(part.path).read()
        for row in table.to_pylist():
            both = {**row, **part.partition}
            rows.append({name: both[name] for name in schema.names})
    return rows


def arrow_file(path: Path, table: pa.Table, *, before: int = 0, chunk: int | None = None) -> tuple[str, int, int]:
    """A file with a stream somewhere inside of it: path, offset, length."""
    with path.open("wb") as file:
        file.write(b"x" * before)
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=chunk)
        length = file.tell() - before
        file.write(b"y" * 100)
    return str(path), before, length


def dataset(outcome: JobOutcome, name: str = "", *, is_quarantine: bool = False) -> JobDataset:
    found = [one for one in outcome.datasets if one.name == name and one.is_quarantine == is_quarantine]
    assert len(found) == 1, [(one.name, one.is_quarantine) for one in outcome.datasets]
    return found[0]


def with_rules(job: SparkJob, rules: Sequence[Any]) -> SparkJob:
    return replace(job, expectations=tuple(rules))
