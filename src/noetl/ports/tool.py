"""Tools: plugins that perform a task of one kind.  Found through the entry point group `noetl.tools`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from noetl.core.errors import Failure
from noetl.core.limits import DUCKDB_MEMORY_BYTES_MAX, DUCKDB_THREADS_MAX
from noetl.core.results.index import Node
from noetl.ports.data.compute import NO_SOURCES, JobIntent, JobProgress, JobSources, SparkCompute
from noetl.ports.data.datasets import LandedDataset, LocalDataset
from noetl.ports.data.tables import LandingPlace, OpenTable
from noetl.ports.secrets import Credential

Place = tuple[str | int, ...]
"""The keys and indexes that lead to a part of a value."""


class BodySink(Protocol):
    """Where a tool puts a body that is too large to hold."""

    async def keep(self, chunks: AsyncIterator[bytes], *, media_type: str) -> Mapping[str, object]:
        """Store the bytes; returns the reference as it is recorded."""
        ...

    async def keep_json(self, chunks: AsyncIterator[bytes], *, index: Callable[[], Node]) -> Mapping[str, object]:
        """Store the bytes of a JSON value with the index of its parts; `index` is asked for it behind the last chunk.
        Returns the reference as it is recorded: a part of the result."""
        ...


class TableSink(Protocol):
    """Where a tool puts rows."""

    async def keep(self, source: object) -> Mapping[str, object]:
        """Make rows durable, without secrets; returns the reference as it is recorded.  `source` is a LandedTable, an
        async iterator of record batches, or anything with `__arrow_c_stream__`; memory stays bounded."""
        ...

    async def landing_place(self) -> LandingPlace | None:
        """Where a child process of the tool may write tables that need not be copied any more; None for anywhere."""
        ...


class DatasetSink(Protocol):
    """Datasets of whoever calls."""

    async def keep(self, landed: LandedDataset) -> Mapping[str, object]:
        """Make a dataset durable; returns the reference of its manifest as it is recorded.  Refuses one that holds a
        secret which the call has seen."""
        ...

    async def laid_out(self, reference: Mapping[str, object], folder: Path) -> LocalDataset:
        """The files of a dataset in a new folder, which the caller removes; its use is recorded."""
        ...


class JobReporter(Protocol):
    """Says on the run where and how far a job is, while its task runs."""

    async def intended(self, intent: JobIntent) -> None:
        """Returns when it is in the ledger."""
        ...

    async def progressed(self, progress: JobProgress) -> None:
        """May be called often: few of them are recorded."""
        ...


class TableInput(Protocol):
    """A value of a call's input that is a table.  Only tools that say `opens_tables` are given it; all others are
    given its rows as plain data."""

    @property
    def reference(self) -> Mapping[str, object]: ...

    async def open(self) -> OpenTable:
        """The nearest copy, to be closed by who opened it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What a reference names: the value of a result, or the bytes of anything else (`content`)."""

    uri: str
    size_bytes: int
    content_type: str | None
    """None when nothing but the content tells."""
    value: object = None
    parts: Mapping[Place, Mapping[str, object]] = field(default_factory=dict)
    """What of the value is stored on its own, as in `ToolResult`."""
    content: bytes | None = None
    compression: str | None = None


class ArtifactStore(Protocol):
    """Stored results and bytes of whoever asks."""

    async def read(self, reference: Mapping[str, object] | str) -> Artifact:
        """What a recorded reference or a `noetl://` address names.  Raises ToolFailed."""
        ...

    def table(self, reference: Mapping[str, object]) -> TableInput:
        """A table that `read` has named among the parts, to be opened."""
        ...

    async def keep(self, content: bytes, *, media_type: str, compression: str | None) -> Mapping[str, object]:
        """Store bytes, compressed if asked; returns the reference as it is recorded.  Raises ToolFailed."""
        ...


class TaskLog(Protocol):
    """Where a tool says what happens while it runs.  Bounded, without secrets, and never in the way: a call returns at
    once."""

    def __call__(self, text: str, *, stream: str = "log", at: float | None = None) -> None:
        """Text, of which every line is one entry: of the `log`, or of the `stdout` or `stderr` of user code.  `at` is a
        moment of the monotonic clock, now if it is not given."""
        ...

    def left_out(self, size: int) -> None:
        """So many bytes did not get here."""
        ...


@dataclass(frozen=True, slots=True)
class Script:
    """The text that a task runs instead of one in its own fields, ready to be run, and where it came from."""

    name: str
    text: str


# These two are made for every row.  Nobody changes one; frozen, they take three times as long to make.
@dataclass(slots=True, kw_only=True)
class ToolCall:
    """One call: rendered fields and input, and who asks."""

    fields: Mapping[str, object]
    input: Mapping[str, object]
    names: Mapping[str, object]
    context: Mapping[str, object] | None
    timeout_seconds: float
    tenant_id: str
    organization_id: str
    execution_id: int
    step: str
    label: str
    auth: Credential | Mapping[str, Credential] | None = None
    """The resolved `auth`: one credential, or by alias."""
    sink: BodySink | None = None
    tables: TableSink | None = None
    given_tables: Mapping[Place, TableInput] = field(default_factory=dict)
    """Tables in `input`, by their places there: in `input` itself null stands for them."""
    artifacts: ArtifactStore | None = None
    attempt: int = 1
    """Ordinal of the claim behind the call."""
    datasets: DatasetSink | None = None
    jobs: JobReporter | None = None
    script: Script | None = None
    """Wins over every field that could hold the text."""
    log: TaskLog | None = None
    is_row: bool = False
    """One of many equal calls of a frame: a tool may send them on together."""


@dataclass(slots=True, kw_only=True)
class ToolResult:
    """What a tool returned.  With a failure, `value` is what it could still give."""

    value: object = None
    parts: Mapping[Place, Mapping[str, object]] = field(default_factory=dict)
    """What is stored already: references by their places in `value`, where null stands for them.  The place `()` is
    the whole value."""
    failure: Failure | None = None
    traceback: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    job: Mapping[str, object] | None = None
    """What a job cost and which expectations it met: small, and recorded with the end of the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """What a tool may need to know when it is made."""

    python_children: int
    python_memory_bytes: int
    http_allow: tuple[str, ...] = ()
    """Addresses beyond the public internet that the http tool may reach: `loopback`, networks, names."""
    postgres_private_hosts: tuple[str, ...] = ()
    """Socket folders of the control plane's own server: the postgres tool enters only as the roles made for tools."""
    landing: Path | None = None
    """A folder for files that children of tools leave for the worker; None is one of the system's."""
    artifact_roots: tuple[str, ...] = ()
    """Folders below which the artifact tool may read and write files."""
    duckdb_folder: str | None = None
    """Where the duckdb tool keeps databases of executions; without it there are none."""
    duckdb_memory_bytes: int = DUCKDB_MEMORY_BYTES_MAX
    duckdb_threads: int = DUCKDB_THREADS_MAX
    spark: SparkCompute | None = None
    """Where Spark jobs run; None is nowhere."""
    spark_folder: Path | None = None
    """Where jobs of Spark have their folders."""
    spark_sources: JobSources = NO_SOURCES
    """How data sources of Spark jobs reach payloads and the ledger."""


class Tool(Protocol):
    @property
    def kind(self) -> str: ...

    async def start(self) -> None: ...

    async def run(self, call: ToolCall) -> ToolResult:
        """Perform one call.  The tool keeps `timeout_seconds` itself and fails with kind `timeout`."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class OpensTables(Protocol):
    """A tool that takes tables of its input as tables."""

    @property
    def opens_tables(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class KeptRun:
    """An execution for which a tool keeps files on this machine."""

    tenant_id: str
    organization_id: str
    execution_id: int


@runtime_checkable
class KeepsFiles(Protocol):
    """A tool that keeps files for executions.  Both block: they are for threads."""

    def kept_runs(self) -> list[KeptRun]: ...

    def forget_runs(self, runs: Collection[KeptRun]) -> int:
        """Remove the files of executions that have ended; how many went.  What is still in use stays."""
        ...


@runtime_checkable
class Renderer(Protocol):
    """Renders templates with loops under a time limit, outside the worker's process."""

    async def render(
        self,
        source: object,
        names: Mapping[str, object],
        *,
        now: str | None,
        timeout_seconds: float,
        tenant: str,
        organization: str,
        strict: bool = False,
    ) -> object: ...
