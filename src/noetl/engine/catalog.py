"""The catalog: registering playbooks and finding them by path and version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from noetl.core.errors import PlaybookInvalid, PlaybookUnknown, Problem, RequestInvalid
from noetl.core.limits import CATALOG_PATH_CHARS_MAX, CATALOG_ROWS_MAX
from noetl.core.reference import MEDIA_PLAYBOOK, reference_from_json
from noetl.engine.payloads import Payloads
from noetl.engine.playbooks import Playbooks
from noetl.ports.catalog import CatalogEntry, CatalogStore, NewVersion
from noetl.ports.owner import Owner

VERSION_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """`version` is the version of this content; `newest` differs when older content was registered again."""

    path: str
    version: int
    newest: int
    sha256: str
    warnings: tuple[Problem, ...]
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    entry: CatalogEntry
    text: str


class CatalogService:
    def __init__(self, store: CatalogStore, *, playbooks: Playbooks, payloads: Payloads) -> None:
        self._store = store
        self._playbooks = playbooks
        self._payloads = payloads

    async def register(self, text: str, *, file: str, owner: Owner) -> Registered:
        """The version of this text, a new one when its path never had it.  Raises PlaybookInvalid."""
        compiled = self._playbooks.compile(text, file=file)
        path = compiled.playbook.path
        if len(path) > CATALOG_PATH_CHARS_MAX:
            message = f"metadata.path has {len(path):,} characters, the catalog takes {CATALOG_PATH_CHARS_MAX}"
            raise PlaybookInvalid([Problem("metadata_path", message, file, field="path")])
        payload = await self._payloads.keep(
            text.encode("utf-8"),
            tenant_id=owner.tenant_id,
            organization_id=owner.organization_id,
            media_type=MEDIA_PLAYBOOK,
        )
        # Durable before the row that names it: a crash between the two leaves bytes that nobody reads.
        await self._payloads.store(payload)
        entry, is_new = await self._store.register(
            NewVersion(
                tenant_id=owner.tenant_id,
                organization_id=owner.organization_id,
                path=path,
                sha256=payload.reference.sha256,
                media_type=MEDIA_PLAYBOOK,
                name=compiled.playbook.name,
                payload=payload.reference.to_json(),
            )
        )
        newest = entry if is_new else await self._entry(path, None, owner)
        return Registered(
            path=path,
            version=entry.version,
            newest=newest.version,
            sha256=entry.sha256,
            warnings=compiled.warnings,
            created=is_new,
        )

    async def find(self, path: str, *, version: int | None = None, owner: Owner) -> Found:
        """A version with its text, by default the newest.  Raises PlaybookUnknown."""
        entry = await self._entry(path, version, owner)
        content = await self._payloads.read(
            reference_from_json(entry.payload), tenant_id=owner.tenant_id, organization_id=owner.organization_id
        )
        return Found(entry=entry, text=content.decode("utf-8"))

    async def versions(self, path: str, *, owner: Owner, limit: int = CATALOG_ROWS_MAX) -> Sequence[CatalogEntry]:
        """The versions of a path, the newest first.  Raises PlaybookUnknown when there is none."""
        found = []
        if _is_path(path):
            found = await self._store.versions(
                path, limit=_rows(limit), tenant_id=owner.tenant_id, organization_id=owner.organization_id
            )
        if not found:
            raise PlaybookUnknown(_unknown(path, None))
        return found

    async def list(self, *, owner: Owner, prefix: str = "", limit: int = CATALOG_ROWS_MAX) -> Sequence[CatalogEntry]:
        """The newest version of each path that begins with the prefix."""
        if prefix and not _is_path(prefix):
            return []
        return await self._store.paths(
            prefix=prefix, limit=_rows(limit), tenant_id=owner.tenant_id, organization_id=owner.organization_id
        )

    async def _entry(self, path: str, version: int | None, owner: Owner) -> CatalogEntry:
        entry = None
        if _is_path(path) and (version is None or 1 <= version <= VERSION_MAX):
            entry = await self._store.find(
                path, version=version, tenant_id=owner.tenant_id, organization_id=owner.organization_id
            )
        if entry is None:
            raise PlaybookUnknown(_unknown(path, version))
        return entry


def _is_path(path: str) -> bool:
    """Whether a path can be in the catalog at all; anything else is not there and is not asked for."""
    return 1 <= len(path) <= CATALOG_PATH_CHARS_MAX and path.isprintable()


def _unknown(path: str, version: int | None) -> str:
    which = "" if version is None else f" in version {version}"
    return f"the catalog has no playbook {path[:CATALOG_PATH_CHARS_MAX]!r}{which}: see `noetl catalog list`"


def _rows(limit: int) -> int:
    if not 1 <= limit <= CATALOG_ROWS_MAX:
        raise RequestInvalid(f"limit must be between 1 and {CATALOG_ROWS_MAX:,}")
    return limit
