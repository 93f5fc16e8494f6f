"""Datasets as a job would leave them: Parquet files in a folder, and the account of what was written."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from noetl.adapters.arrow.datasets.datasets import ArrowDatasets
from noetl.adapters.arrow.tables import ArrowTables
from noetl.ports.data.datasets import LandedDataset, LandedPart
from noetl.ports.data.payloads import LargePayloadStore

_names = itertools.count()


def landed(
    folder: Path,
    table: Any,
    *,
    rows_per_file: int | None = None,
    rows_per_group: int = 1_000,
    partition_by: Sequence[str] = (),
    **options: Any,
) -> LandedDataset:
    """A table in files: so many rows in each, and one or more for each value of the columns that it is partitioned by.
    The values of these are texts or null."""
    folder = folder / f"job-{next(_names)}"
    folder.mkdir(parents=True)
    parts: list[LandedPart] = []
    for values, rows in _partitions(table, partition_by):
        data = rows.drop_columns(list(partition_by))
        step = rows_per_file or max(data.num_rows, 1)
        for first in range(0, max(data.num_rows, 1), step):
            path = folder / f"part-{len(parts):05d}-{next(_names)}.snappy.parquet"
            piece = data.slice(first, step)
            pq.write_table(piece, path, row_group_size=rows_per_group, write_page_checksum=True, **options)
            parts.append(LandedPart(path=path, row_count=piece.num_rows, partition=values))
    schema = table.schema.serialize().to_pybytes()
    return LandedDataset(parts=parts, arrow_schema=schema, partition_by=tuple(partition_by))


def _partitions(table: Any, names: Sequence[str]) -> list[tuple[dict[str, str | None], Any]]:
    if not names:
        return [({}, table)]
    places: dict[tuple[str | None, ...], list[int]] = {}
    texts = [table.column(name).cast(pa.string()).to_pylist() for name in names]
    for place, values in enumerate(zip(*texts, strict=True)):
        places.setdefault(values, []).append(place)
    return [(dict(zip(names, values, strict=True)), table.take(found)) for values, found in places.items()]


def over(store: LargePayloadStore, spill: Path) -> tuple[ArrowDatasets, ArrowTables]:
    """Datasets in a store, and the tables through which they are read."""
    return ArrowDatasets(store), ArrowTables(store, spill=spill)


async def rows_of(tables: ArrowTables, reference: Any, **owner: str) -> list[dict[str, object]]:
    """All rows, read batch by batch."""
    found = await tables.open(reference, **owner)
    try:
        return await found.looked(lambda: [row for batch in found.batches() for row in batch.to_pylist()])
    finally:
        found.close()
