"""The catalog in `noetl.catalog`."""

from __future__ import annotations

from typing import Any

from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.rows import iso
from noetl.adapters.postgres.statements import query
from noetl.core.codec import canonical_json, parse_json
from noetl.core.errors import LedgerUnavailable, TransitionConflict
from noetl.core.limits import CATALOG_REGISTER_TRIES_MAX
from noetl.ports.catalog import CatalogEntry, NewVersion

FILE = "registry.sql"


class PostgresCatalog:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def register(self, content: NewVersion) -> tuple[CatalogEntry, bool]:
        for _ in range(CATALOG_REGISTER_TRIES_MAX):
            try:
                rows = await self._reader.fetch(
                    query(FILE, "register"),
                    tenant_id=content.tenant_id,
                    organization_id=content.organization_id,
                    path=content.path,
                    sha256=content.sha256,
                    media_type=content.media_type,
                    name=content.name,
                    payload=canonical_json(dict(content.payload)),
                    catalog_id=content.catalog_id,
                    scripts=canonical_json(dict(content.scripts)),
                    scripts_sha256=content.scripts_sha256,
                    warnings=canonical_json(list(content.warnings)),
                )
            except TransitionConflict:
                continue  # another one took this number or added this content; it has committed, so we see it now
            return _entry(rows[0]), rows[0]["is_new"]
        raise LedgerUnavailable(f"too many others register {content.path!r} at this moment: try again")

    async def find(
        self, path: str, *, version: int | None, tenant_id: str, organization_id: str
    ) -> CatalogEntry | None:
        rows = await self._reader.fetch(
            query(FILE, "catalog_entry"),
            path=path,
            version=version,
            tenant_id=tenant_id,
            organization_id=organization_id,
        )
        return _entry(rows[0]) if rows else None

    async def find_id(self, catalog_id: int, *, tenant_id: str, organization_id: str) -> CatalogEntry | None:
        rows = await self._reader.fetch(
            query(FILE, "catalog_entry_by_id"),
            catalog_id=catalog_id,
            tenant_id=tenant_id,
            organization_id=organization_id,
        )
        return _entry(rows[0]) if rows else None

    async def paths(self, *, prefix: str, limit: int, tenant_id: str, organization_id: str) -> list[CatalogEntry]:
        rows = await self._reader.fetch(
            query(FILE, "catalog_paths"),
            prefix=prefix,
            rows=limit,
            tenant_id=tenant_id,
            organization_id=organization_id,
        )
        return [_entry(row) for row in rows]

    async def versions(self, path: str, *, limit: int, tenant_id: str, organization_id: str) -> list[CatalogEntry]:
        rows = await self._reader.fetch(
            query(FILE, "catalog_versions"),
            path=path,
            rows=limit,
            tenant_id=tenant_id,
            organization_id=organization_id,
        )
        return [_entry(row) for row in rows]


def _entry(row: Any) -> CatalogEntry:
    payload: Any = parse_json(row["payload"])
    scripts: Any = parse_json(row["scripts"])
    warnings: Any = parse_json(row["warnings"])
    return CatalogEntry(
        tenant_id=row["tenant_id"],
        organization_id=row["organization_id"],
        path=row["path"],
        version=row["version"],
        sha256=row["sha256"],
        media_type=row["media_type"],
        name=row["name"],
        payload=payload,
        catalog_id=row["catalog_id"],
        scripts=scripts,
        scripts_sha256=row["scripts_sha256"],
        warnings=warnings,
        created_at=iso(row["created_at"]),
    )
