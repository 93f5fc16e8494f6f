"""Tables for processes that mostly have none: the library behind them is loaded when the first one is touched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from noetl.adapters.arrow.counters import TableCounters
from noetl.core.reference import Reference
from noetl.ports.data.counters import Counted, Sample
from noetl.ports.data.tables import EncodedTable, LandingPlace, OpenTable, Scrub, Tables


class DeferredTables:
    """Stands for the tables that `make` makes; that is called once, in a thread, because loading takes a while."""

    def __init__(self, make: Callable[[], Tables]) -> None:
        self._make = make
        self._made: Tables | None = None
        self._making = asyncio.Lock()

    async def keep(
        self, source: object, *, tenant_id: str, organization_id: str, scrub: Scrub | None = None
    ) -> Reference:
        tables = await self.made()
        return await tables.keep(source, tenant_id=tenant_id, organization_id=organization_id, scrub=scrub)

    async def landing_place(self) -> LandingPlace | None:
        return await (await self.made()).landing_place()

    async def keep_unless_small(
        self,
        source: object,
        *,
        tenant_id: str,
        organization_id: str,
        scrub: Scrub | None = None,
        bytes_max: int,
        is_shared: bool = True,
    ) -> Reference | EncodedTable:
        tables = await self.made()
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        return await tables.keep_unless_small(source, scrub=scrub, bytes_max=bytes_max, is_shared=is_shared, **owner)

    async def open(self, reference: Reference, *, tenant_id: str, organization_id: str) -> OpenTable:
        tables = await self.made()
        return await tables.open(reference, tenant_id=tenant_id, organization_id=organization_id)

    async def open_bytes(self, content: bytes, reference: Reference) -> OpenTable:
        tables = await self.made()
        return await tables.open_bytes(content, reference)

    def samples(self) -> Iterable[Sample]:
        """What was counted; nothing was, as long as there was no table."""
        return self._made.samples() if isinstance(self._made, Counted) else TableCounters().samples()

    async def made(self) -> Tables:
        if self._made is None:
            async with self._making:
                if self._made is None:
                    self._made = await asyncio.to_thread(self._make)
        return self._made
