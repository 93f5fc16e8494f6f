"""What data sources reach, and datasets for them to find."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from noetl.adapters.arrow.datasets.datasets import ArrowDatasets
from noetl.adapters.arrow.tables import ArrowTables
from noetl.core.reference import Reference
from noetl.settings import read_settings
from noetl.wiring.sources import SettingsAccess, source_access
from tests.support.datasets import landed

OWNER: dict[str, Any] = {"tenant_id": "default", "organization_id": "default"}
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_numbers = itertools.count()


def access_of(home: Path, environment: Mapping[str, str] | None = None) -> SettingsAccess:
    """As a process with these variables has it."""
    given = {"NOETL_HOME": str(home), **(environment or {})}
    return source_access(read_settings(given), environment=given)


def orders(rows: int, first: int = 0) -> pa.Table:
    """Rows with columns of several types, told apart by `id`."""
    numbers = range(first, first + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": [None if n % 7 == 0 else f"größe-{n % 100}" for n in numbers],
            "amount": pa.array([n / 3 for n in numbers], pa.float64()),
            "at": pa.array([START + datetime.timedelta(seconds=n) for n in numbers], pa.timestamp("us", "UTC")),
            "day": pa.array([START.date() + datetime.timedelta(days=n % 3) for n in numbers], pa.date32()),
            "tags": pa.array([[f"t{n % 4}", None] for n in numbers], pa.list_(pa.field("element", pa.string()))),
            "flag": [n % 2 == 0 for n in numbers],
        }
    )


async def keep_dataset(access: SettingsAccess, table: Any, folder: Path, **how: Any) -> Reference:
    async with access.opened() as stores:
        kept = landed(folder / f"landed-{next(_numbers)}", table, **how)
        return await ArrowDatasets(stores.large).keep(kept, **OWNER)


async def keep_table(access: SettingsAccess, table: Any, folder: Path) -> Reference:
    async with access.opened() as stores:
        return await ArrowTables(stores.large, spill=folder / "spill").keep(table, **OWNER)
