"""The catalog: playbooks by path and version, where a version is its content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from noetl.core.limits import CATALOG_PATH_CHARS_MAX
from noetl.core.playbook.scripts import version_digest

VERSION_MAX = 2**31 - 1
CATALOG_ID_MAX = 2**63 - 1


def is_path(path: str) -> bool:
    """Whether a path can be in a catalog at all; anything else is not there and is not asked for."""
    return 1 <= len(path) <= CATALOG_PATH_CHARS_MAX and path.isprintable()


def is_version(version: int | None) -> bool:
    return version is None or 1 <= version <= VERSION_MAX


def is_catalog_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 19 and 1 <= int(text) <= CATALOG_ID_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """Content on its way into the catalog.  Its payload and its scripts are durable already."""

    catalog_id: int
    """Names this one version; a known content keeps the number that it has."""
    tenant_id: str
    organization_id: str
    path: str
    sha256: str
    media_type: str
    name: str
    payload: Mapping[str, object]
    """The reference to the text, as it is recorded."""
    scripts: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """By path: `ref`, the reference to the text, and `names`, which it reads, null for any."""
    scripts_sha256: str = ""
    """The digest of all scripts; empty when there are none."""
    warnings: Sequence[Mapping[str, object]] = ()

    @property
    def digest(self) -> str:
        """Of all that belongs to the version.  `sha256` is that of its text alone."""
        return version_digest(self.sha256, self.scripts_sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry(NewVersion):
    """One version as it is stored."""

    version: int
    created_at: str


class CatalogStore(Protocol):
    """Versions 1, 2, 3 … of each path, scoped by tenant and organization."""

    async def register(self, content: NewVersion) -> tuple[CatalogEntry, bool]:
        """The version of this content, and whether it is new.  The same content of a path is one version; it gets the
        new warnings."""
        ...

    async def find(
        self, path: str, *, version: int | None, tenant_id: str, organization_id: str
    ) -> CatalogEntry | None:
        """That version, or the newest one."""
        ...

    async def find_id(self, catalog_id: int, *, tenant_id: str, organization_id: str) -> CatalogEntry | None:
        """The version of this number."""
        ...

    async def paths(self, *, prefix: str, limit: int, tenant_id: str, organization_id: str) -> list[CatalogEntry]:
        """The newest version of each path that begins with the prefix, by path."""
        ...

    async def versions(self, path: str, *, limit: int, tenant_id: str, organization_id: str) -> list[CatalogEntry]:
        """All versions of a path, the newest first."""
        ...
