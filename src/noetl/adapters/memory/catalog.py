"""The catalog in memory."""

from __future__ import annotations

from dataclasses import fields, replace

from noetl.adapters.memory.faults import Faults
from noetl.ports.catalog import CatalogEntry, NewVersion
from noetl.ports.clock import Clock


class MemoryCatalog:
    def __init__(self, clock: Clock, faults: Faults | None = None) -> None:
        self._clock = clock
        self._faults = faults or Faults()
        self._rows: dict[tuple[str, str, str], list[CatalogEntry]] = {}
        """Versions of a path, the oldest first."""

    async def register(self, content: NewVersion) -> tuple[CatalogEntry, bool]:
        def write() -> tuple[CatalogEntry, bool]:
            entries = self._rows.setdefault((content.tenant_id, content.organization_id, content.path), [])
            for number, known in enumerate(entries):
                if known.digest == content.digest:
                    entries[number] = replace(known, warnings=content.warnings)
                    return entries[number], False
            facts = {one.name: getattr(content, one.name) for one in fields(content)}
            entry = CatalogEntry(**facts, version=len(entries) + 1, created_at=self._clock.now())
            entries.append(entry)
            return entry, True

        return await self._faults.around("register", write)

    async def find(
        self, path: str, *, version: int | None, tenant_id: str, organization_id: str
    ) -> CatalogEntry | None:
        def read() -> CatalogEntry | None:
            entries = self._rows.get((tenant_id, organization_id, path), [])
            wanted = [entry for entry in entries if version in (None, entry.version)]
            return wanted[-1] if wanted else None

        return await self._faults.around("catalog_entry", read)

    async def find_id(self, catalog_id: int, *, tenant_id: str, organization_id: str) -> CatalogEntry | None:
        def read() -> CatalogEntry | None:
            own = (entries for key, entries in self._rows.items() if key[:2] == (tenant_id, organization_id))
            return next((entry for entries in own for entry in entries if entry.catalog_id == catalog_id), None)

        return await self._faults.around("catalog_entry_by_id", read)

    async def paths(self, *, prefix: str, limit: int, tenant_id: str, organization_id: str) -> list[CatalogEntry]:
        def read() -> list[CatalogEntry]:
            own = [key for key in sorted(self._rows) if key[:2] == (tenant_id, organization_id)]
            return [self._rows[key][-1] for key in own if key[2].startswith(prefix)][:limit]

        return await self._faults.around("catalog_paths", read)

    async def versions(self, path: str, *, limit: int, tenant_id: str, organization_id: str) -> list[CatalogEntry]:
        def read() -> list[CatalogEntry]:
            return self._rows.get((tenant_id, organization_id, path), [])[::-1][:limit]

        return await self._faults.around("catalog_versions", read)
