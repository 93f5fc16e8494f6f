"""Which task reads what.

A part of a dataset is a task.  When there are fewer parts than cores and the parts are files of this machine, each of
them is read in several slices, so that all cores work; a part that has to be fetched is fetched once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from noetl.adapters.spark.sources.payloads.finding import Found, FoundDataset, FoundRows, Owner
from noetl.core.dataset import DatasetPart
from noetl.core.reference import Reference
from noetl.core.storage import FILE

SLICE_BYTES_MIN = 8 * 1024**2
"""A task costs some milliseconds; what is smaller is not worth another one."""


@dataclass(frozen=True)
class PartSlice(InputPartition):
    """Some row groups of a Parquet part."""

    part: DatasetPart
    owner: Owner
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Of the columns that are not in the file."""
    number: int = 0
    count: int = 1


@dataclass(frozen=True)
class TableSlice(InputPartition):
    """Some batches of an Arrow stream."""

    reference: Reference
    owner: Owner
    number: int = 0
    count: int = 1


@dataclass(frozen=True)
class Rows(InputPartition):
    """An Arrow stream that travels with the plan."""

    content: bytes


@dataclass(frozen=True)
class Nothing(InputPartition):
    """Spark calls `read` once even when there is nothing to read."""

    rows: int = 0


Slice = PartSlice | TableSlice | Rows | Nothing


def slices(found: Found, parts: Sequence[DatasetPart], *, cores: int, has_files: bool) -> list[InputPartition]:
    """`parts` are those of a dataset that are needed."""
    if isinstance(found, FoundRows):
        return [Rows(found.content)]
    if isinstance(found, FoundDataset):
        return _part_slices(found, parts, cores, has_files) or [Nothing()]
    count = _count(found.reference, cores, has_files)
    if _has_dictionary(found.schema):
        count = 1  # a batch can only be read behind the dictionaries before it
    return [TableSlice(found.reference, found.owner, number, count) for number in range(count)]


def _part_slices(
    found: FoundDataset, parts: Sequence[DatasetPart], cores: int, has_files: bool
) -> list[InputPartition]:
    types = {name: found.schema.field(name).type for name in found.manifest.partition_by}
    share = ceil(cores / len(parts)) if parts else 1
    return [
        PartSlice(part, found.owner, types, number, count)
        for part in parts
        for count in (_count(part.reference, share, has_files),)
        for number in range(count)
    ]


def _count(reference: Reference, wanted: int, has_files: bool) -> int:
    if not has_files or reference.store != FILE:
        return 1
    return max(1, min(wanted, reference.bytes // SLICE_BYTES_MIN))


def _has_dictionary(schema: pa.Schema) -> bool:
    return any(_is_dictionary(field.type) for field in schema)


def _is_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        return True
    return any(_is_dictionary(kind.field(place).type) for place in range(kind.num_fields))


def of_slice(total: int, number: int, count: int) -> range:
    """Which of so many belong to a slice: neighbours, so that rows stay in their order."""
    return range(total * number // count, total * (number + 1) // count)
