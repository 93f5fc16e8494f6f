"""Spark jobs: what the tool asks for and what comes back.  All of it is plain data, for it travels between processes.

A *job* here is one task of kind `spark`, which may be many jobs of Spark's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from noetl.core.errors import Failure

Mode = Literal["sql", "code", "application"]
DRIVER_LOST = "SPARK_DRIVER_LOST"
"""The code of a failure: the process that ran the job is gone, and with it whatever the job had not handed over."""
InputKind = Literal["arrow", "dataset", "source", "table", "value"]
BROKEN_RULES = "_broken_rules"
"""The column of a quarantine that names the rules which the row breaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """One of a job's inputs, by kind:

    `arrow`: an Arrow stream without compression at `offset` of the file `path`, `length` bytes
    `dataset`: Parquet files below the folder `path`, with `arrow_schema` (base64, as in a manifest)
    `source`: `spark.read.format(format).options(**options).load(path)`, `path` may be None
    `table`: `spark.table(path)`
    `value`: plain data (`value`); a list of mappings is also rows"""

    name: str
    kind: InputKind
    path: str | None = None
    offset: int = 0
    length: int = 0
    arrow_schema: str | None = None
    partition_by: tuple[str, ...] = ()
    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    value: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A data-quality rule about an output (`of`, empty for the only one).

    `kind` is one of not_null, unique, range, row_count, references, sql.  `name` is how facts call it."""

    name: str
    kind: str
    of: str = ""
    columns: tuple[str, ...] = ()
    low: object = None
    high: object = None
    to: str | None = None
    """`references`: the input, output or view that must have the values."""
    to_columns: tuple[str, ...] = ()
    sql: str | None = None
    """`sql`: a condition that every row must fulfil."""
    is_quarantine: bool = False
    """Rows that break it go to a dataset of their own instead of failing the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutput:
    """A named output: a view or a SELECT (`query`) of a SQL job, a member of what `main` returned, or a folder that an
    application writes.  The name "" is the only output of a job that names none."""

    name: str
    query: str | None = None
    partition_by: tuple[str, ...] = ()
    files: int | None = None
    """How many files to write, at most; None leaves it to Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCredential:
    """What a data source needs to be let in.  It travels to the driver in the job's message and to executors by value,
    inside the classes that are registered for the job; it is never in options, settings, a plan, an event or a log."""

    type: str
    data: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSources:
    """How the data sources of a job reach NoETL's own payloads and ledger.  There is no secret in it: whoever runs code
    in a driver can read what the sources there have."""

    opened_by: str = ""
    """A function, as `package.module:name`, that makes a SourceAccess of `data` and the job's owner."""
    data: Mapping[str, Any] = field(default_factory=dict)
    refusal: str | None = None
    """Why they cannot, and what to do."""


NO_SOURCES = JobSources(refusal="this job was made without a home")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJob:
    job_id: str
    """Unique for every try, and fit for the name of a folder and of Spark's job group."""
    title: str
    """What people see in Spark's UI."""
    mode: Mode
    text: str
    """Statements, the text of a program with `main`, or the path of an application."""
    arguments: tuple[str, ...] = ()
    """Of an application."""
    inputs: tuple[JobInput, ...] = ()
    outputs: tuple[JobOutput, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path()
    """A new folder for all that the job writes.  The caller removes it."""
    credentials: Mapping[str, JobCredential] = field(default_factory=dict)
    """For data sources, by the name that their option `auth` gives."""
    http_allow: tuple[str, ...] = ()
    """Addresses beyond the public internet that data sources may reach."""
    private_hosts: tuple[str, ...] = ()
    """Socket folders of the control plane's own server, where a data source may only be a role made for tools."""
    tenant_id: str = ""
    organization_id: str = ""
    """Whose payloads and events the job may read and write."""
    sources: JobSources = NO_SOURCES


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIntent:
    """Where a job is about to run.  It is told before anything of it runs."""

    job_group: str
    application_id: str
    ui: str | None
    event_log: str | None
    conf: Mapping[str, str]
    """What differs from Spark's own defaults, without secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """How far a job has come."""

    jobs: tuple[int, ...] = ()
    stages: int = 0
    stages_done: int = 0
    tasks: int = 0
    tasks_done: int = 0
    tasks_failed: int = 0
    stage: str | None = None
    """What runs now, as Spark's UI calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPart:
    path: str
    row_count: int
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDataset:
    """A DataFrame that was written: exactly the files that Spark committed."""

    name: str
    parts: tuple[JobPart, ...]
    arrow_schema: str
    """An IPC schema message in base64: the columns as readers shall see them."""
    columns: tuple[str, ...]
    row_count: int
    partition_by: tuple[str, ...] = ()
    is_quarantine: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of an expectation."""

    name: str
    kind: str
    of: str
    is_met: bool
    rows: int
    """How many rows were looked at."""
    broken: int
    """How many rows broke it; of a row count 0 or 1."""
    message: str | None = None
    quarantine: str | None = None
    """The name of the output that has the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What it cost, as Spark counted."""

    jobs: tuple[int, ...] = ()
    stages: int = 0
    tasks: int = 0
    tasks_failed: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    rows_written: int = 0
    bytes_written: int = 0
    shuffle_read_bytes: int = 0
    shuffle_write_bytes: int = 0
    spilled_bytes: int = 0
    executor_ms: int = 0
    gc_ms: int = 0
    wall_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What a job left.  With a failure there may still be verdicts and facts."""

    datasets: tuple[JobDataset, ...] = ()
    values: Mapping[str, object] = field(default_factory=dict)
    """Plain data by the name of the output."""
    verdicts: tuple[Verdict, ...] = ()
    facts: JobFacts = field(default_factory=JobFacts)
    failure: Failure | None = None
    traceback: str | None = None


class JobListener(Protocol):
    async def intended(self, intent: JobIntent) -> None:
        """Nothing of the job runs before this returns."""
        ...

    async def progressed(self, progress: JobProgress) -> None: ...

    def said(self, text: str, *, stream: str) -> None:
        """Output of user code (`stdout`, `stderr`), or of Spark itself (`log`).  Returns at once."""
        ...


class SparkCompute(Protocol):
    """Runs jobs in drivers that are processes of their own, started when first needed and kept warm."""

    async def run(self, job: SparkJob, listener: JobListener) -> JobOutcome:
        """Run one job.  Cancelling the call cancels the job, and returns when Spark has confirmed it or its driver is
        dead.  A driver that dies is a failure of the job (`connection`, SPARK_DRIVER_LOST) and of nothing else."""
        ...

    async def close(self) -> None: ...
