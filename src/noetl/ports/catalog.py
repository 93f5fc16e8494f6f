"""The catalog: playbooks by path and version, where a version is its content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """Content on its way into the catalog.  Its payload is durable already."""

    tenant_id: str
    organization_id: str
    path: str
    sha256: str
    media_type: str
    name: str
    payload: Mapping[str, object]
    """The reference to the text, as it is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry(NewVersion):
    """One version as it is stored."""

    version: int
    created_at: str


class CatalogStore(Protocol):
    """Versions 1, 2, 3 … of each path, scoped by tenant and organization."""

    async def register(self, content: NewVersion) -> tuple[CatalogEntry, bool]:
        """The version of this content, and whether it is new.  The same content of a path is one version."""
        ...

    async def find(
        self, path: str, *, version: int | None, tenant_id: str, organization_id: str
    ) -> CatalogEntry | None:
        """That version, or the newest one."""
        ...

    async def paths(self, *, prefix: str, limit: int, tenant_id: str, organization_id: str) -> list[CatalogEntry]:
        """The newest version of each path that begins with the prefix, by path."""
        ...

    async def versions(self, path: str, *, limit: int, tenant_id: str, organization_id: str) -> list[CatalogEntry]:
        """All versions of a path, the newest first."""
        ...
