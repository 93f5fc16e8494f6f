"""Datasets for processes that mostly have none: the library behind them is loaded with the first one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from noetl.core.dataset import Manifest
from noetl.core.reference import Reference
from noetl.ports.data.datasets import Datasets, Finds, LandedDataset, LocalDataset


class DeferredDatasets:
    """Stands for the datasets that `make` makes; that is called in a thread, because loading takes a while."""

    def __init__(self, make: Callable[[], Datasets]) -> None:
        self._make = make
        self._made: Datasets | None = None
        self._making = asyncio.Lock()

    async def keep(
        self, landed: LandedDataset, *, tenant_id: str, organization_id: str, finds: Finds | None = None
    ) -> Reference:
        datasets = await self._datasets()
        return await datasets.keep(landed, tenant_id=tenant_id, organization_id=organization_id, finds=finds)

    async def manifest(self, reference: Reference, *, tenant_id: str, organization_id: str) -> Manifest:
        datasets = await self._datasets()
        return await datasets.manifest(reference, tenant_id=tenant_id, organization_id=organization_id)

    async def sole_part(self, reference: Reference, *, tenant_id: str, organization_id: str) -> Reference | None:
        datasets = await self._datasets()
        return await datasets.sole_part(reference, tenant_id=tenant_id, organization_id=organization_id)

    async def laid_out(
        self, reference: Reference, folder: Path, *, tenant_id: str, organization_id: str
    ) -> LocalDataset:
        datasets = await self._datasets()
        return await datasets.laid_out(reference, folder, tenant_id=tenant_id, organization_id=organization_id)

    async def _datasets(self) -> Datasets:
        async with self._making:
            if self._made is None:
                self._made = await asyncio.to_thread(self._make)
        return self._made
