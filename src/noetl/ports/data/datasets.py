"""Datasets: Parquet files that become payloads, and payloads that become Parquet files again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from noetl.core.dataset import Manifest
from noetl.core.reference import Reference

Finds = Callable[[bytes], bool]
"""Whether a secret is in some bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedPart:
    """A Parquet file that a job of ours has written and closed.  Whoever keeps it takes the file over."""

    path: Path
    row_count: int
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedDataset:
    """Everything that one output of a job consists of, by the job's own account of what it committed."""

    parts: Sequence[LandedPart]
    arrow_schema: bytes
    """An IPC schema message: the columns as readers shall see them, those of the partitioning included."""
    partition_by: tuple[str, ...] = ()
    root: Path | None = None
    """The job's own folder: what does not lie below it is refused, for the account comes from where user code runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDataset:
    """A dataset as files of this machine, below `root` by its partitioning (`day=2026-01-01/…`)."""

    root: Path
    manifest: Manifest


class Datasets(Protocol):
    """Keeps and lays out datasets of owners."""

    async def keep(
        self, landed: LandedDataset, *, tenant_id: str, organization_id: str, finds: Finds | None = None
    ) -> Reference:
        """Make all parts durable, then the manifest.  The reference is the manifest's: media type MEDIA_DATASET, with
        row count, schema digest and, as far as it is known, how many bytes the rows have as JSON.  Raises ToolFailed
        for what is no dataset, and before anything is stored for one in which `finds` finds something.  What a store
        could not take for the moment can be handed over again as it was."""
        ...

    async def manifest(self, reference: Reference, *, tenant_id: str, organization_id: str) -> Manifest: ...

    async def sole_part(self, reference: Reference, *, tenant_id: str, organization_id: str) -> Reference | None:
        """The part that is all of the dataset as its readers see it: its bytes are a Parquet file of the same rows.
        None when there is no such one."""
        ...

    async def laid_out(
        self, reference: Reference, folder: Path, *, tenant_id: str, organization_id: str
    ) -> LocalDataset:
        """The parts as files in a new folder: links where the store has plain files on this machine, copies that were
        verified otherwise.  The caller removes the folder."""
        ...
