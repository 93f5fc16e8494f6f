"""A program that keeps one dataset after the other in a folder until it is killed.

    python -m tests.support.dataset_writer FOLDER SEED

Every dataset that was kept is a line of JSON: its reference, written before the next one begins."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from itertools import count
from pathlib import Path

import pyarrow as pa

from noetl.adapters.objects.filesystem import FilePayloads
from tests.support.arrow import OWNER
from tests.support.datasets import landed, over

PARTS = 6
ROWS = 300


def table_of(seed: int) -> pa.Table:
    """The rows of a dataset; those of two seeds have nothing in common."""
    first = seed * ROWS
    return pa.table({"id": pa.array(range(first, first + ROWS), pa.int64())})


async def write(folder: Path, seed: int) -> None:
    store = FilePayloads(folder / "store")
    await store.prepare()
    datasets, _ = over(store, folder / "spill")
    for number in count(seed * 1_000_000):
        job = landed(folder / f"jobs-{os.getpid()}", table_of(number), rows_per_file=ROWS // PARTS)
        reference = await datasets.keep(job, finds=None, **OWNER)
        print(json.dumps({"seed": number, "reference": reference.to_json()}), flush=True)


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1]), int(sys.argv[2])))
