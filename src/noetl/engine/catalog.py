"""The catalog: registering playbooks and finding them by path and version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from noetl.core.errors import PlaybookInvalid, PlaybookUnknown, Problem, RequestInvalid
from noetl.core.limits import CATALOG_PATH_CHARS_MAX, CATALOG_ROWS_MAX, CATALOG_WARNINGS_MAX
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.playbook.difference import Difference, Edition, difference
from noetl.core.playbook.scripts import version_digest
from noetl.core.reference import MEDIA_PLAYBOOK, reference_from_json
from noetl.engine.payloads import Payloads
from noetl.engine.pinning.pinner import Pinner
from noetl.engine.pinning.pins import Pins, Source, recorded
from noetl.engine.playbooks import Playbooks
from noetl.ports.background import Background
from noetl.ports.catalog import CATALOG_ID_MAX, CatalogEntry, CatalogStore, NewVersion, is_path, is_version
from noetl.ports.clock import IdSource
from noetl.ports.owner import Owner

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What registering would say.  `sha256` is that of the text, `digest` that of the text and its scripts."""

    path: str
    sha256: str
    digest: str
    warnings: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered(Checked):
    """`version` is the version of this content; `newest` differs when older content was registered again."""

    catalog_id: int
    version: int
    newest: int
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    entry: CatalogEntry
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    old: CatalogEntry
    new: CatalogEntry
    difference: Difference


class CatalogService:
    def __init__(
        self,
        store: CatalogStore,
        *,
        playbooks: Playbooks,
        payloads: Payloads,
        pinner: Pinner,
        ids: IdSource,
        background: Background | None = None,
    ) -> None:
        self._store = store
        self._playbooks = playbooks
        self._payloads = payloads
        self._pinner = pinner
        self._ids = ids
        self._background = background

    # --- registering ---------------------------------------------------------------------------------------

    async def check(
        self,
        text: str,
        *,
        file: str,
        owner: Owner,
        scripts: Mapping[str, str] | None = None,
        beside: Iterable[str] = (),
    ) -> Checked:
        """What registering would say, without registering; `beside` are paths that would be registered with it.  Raises
        PlaybookInvalid."""
        source = Source(text=text, file=file, scripts=scripts or {}, beside=frozenset(beside))
        compiled, pins = await self._examined(source, owner)
        return Checked(
            path=compiled.playbook.path,
            sha256=compiled.digest,
            digest=version_digest(compiled.digest, pins.scripts_sha256),
            warnings=pins.warnings,
        )

    async def register(
        self, text: str, *, file: str, owner: Owner, scripts: Mapping[str, str] | None = None
    ) -> Registered:
        """The version of this content, a new one when its path never had it.  `scripts` came along with the text, by
        path.  Raises PlaybookInvalid."""
        compiled, pins = await self._examined(Source(text=text, file=file, scripts=scripts or {}), owner)
        path = compiled.playbook.path
        payload = await self._payloads.keep(
            text.encode("utf-8"),
            tenant_id=owner.tenant_id,
            organization_id=owner.organization_id,
            media_type=MEDIA_PLAYBOOK,
        )
        # Durable before the row that names them: a crash between the two leaves bytes that nobody reads.
        for one in (payload, *pins.payloads):
            await self._payloads.store(one)
        entry, is_new = await self._store.register(
            NewVersion(
                catalog_id=self._ids.next_id(),
                tenant_id=owner.tenant_id,
                organization_id=owner.organization_id,
                path=path,
                sha256=payload.reference.sha256,
                media_type=MEDIA_PLAYBOOK,
                name=compiled.playbook.name,
                payload=payload.reference.to_json(),
                scripts=pins.scripts,
                scripts_sha256=pins.scripts_sha256,
                warnings=recorded(pins.warnings, CATALOG_WARNINGS_MAX),
            )
        )
        newest = entry if is_new else await self._entry(path, None, owner)
        return Registered(
            path=path,
            sha256=entry.sha256,
            digest=entry.digest,
            warnings=pins.warnings,
            catalog_id=entry.catalog_id,
            version=entry.version,
            newest=newest.version,
            created=is_new,
        )

    async def _examined(self, source: Source, owner: Owner) -> tuple[CompiledPlaybook, Pins]:
        compiled = await self._playbooks.compile(source.text, file=source.file)
        path = compiled.playbook.path
        if len(path) > CATALOG_PATH_CHARS_MAX:
            message = f"metadata.path has {len(path):,} characters, the catalog takes {CATALOG_PATH_CHARS_MAX}"
            raise PlaybookInvalid([Problem("metadata_path", message, source.file, field="path")])
        return compiled, await self._pinner.pin(compiled, source, owner)

    # --- finding -------------------------------------------------------------------------------------------

    async def find(self, path: str, *, version: int | None = None, owner: Owner) -> Found:
        """A version with its text, by default the newest.  Raises PlaybookUnknown."""
        return await self._found(await self._entry(path, version, owner), owner)

    async def find_id(self, catalog_id: int, *, owner: Owner) -> Found:
        """The version of this number.  Raises PlaybookUnknown."""
        entry = None
        if 1 <= catalog_id <= CATALOG_ID_MAX:
            entry = await self._store.find_id(
                catalog_id, tenant_id=owner.tenant_id, organization_id=owner.organization_id
            )
        if entry is None:
            raise PlaybookUnknown(f"the catalog has no playbook with the id {catalog_id}: see `noetl catalog list`")
        return await self._found(entry, owner)

    async def versions(self, path: str, *, owner: Owner, limit: int = CATALOG_ROWS_MAX) -> Sequence[CatalogEntry]:
        """The versions of a path, the newest first.  Raises PlaybookUnknown when there is none."""
        found = []
        if is_path(path):
            found = await self._store.versions(
                path, limit=_rows(limit), tenant_id=owner.tenant_id, organization_id=owner.organization_id
            )
        if not found:
            raise PlaybookUnknown(_unknown(path, None))
        return found

    async def list(self, *, owner: Owner, prefix: str = "", limit: int = CATALOG_ROWS_MAX) -> Sequence[CatalogEntry]:
        """The newest version of each path that begins with the prefix."""
        if prefix and not is_path(prefix):
            return []
        return await self._store.paths(
            prefix=prefix, limit=_rows(limit), tenant_id=owner.tenant_id, organization_id=owner.organization_id
        )

    async def scripts(self, entry: CatalogEntry) -> dict[str, str]:
        """The texts of the scripts of a version, by path."""
        texts = {}
        for uri, script in entry.scripts.items():
            reference = script["ref"]
            assert isinstance(reference, dict)
            texts[uri] = await self._payloads.read_text(
                reference, tenant_id=entry.tenant_id, organization_id=entry.organization_id
            )
        return texts

    async def compare(self, path: str, *, old: int | None, new: int | None, owner: Owner) -> Compared:
        """Two versions; by default the newest one and the one before it.  Raises PlaybookUnknown, and RequestInvalid
        when there is nothing to compare with."""
        after = await self._entry(path, new, owner)
        if old is None and after.version == 1:
            raise RequestInvalid(f"{path!r} has no version before version 1: nothing to compare it with")
        before = await self._entry(path, after.version - 1 if old is None else old, owner)
        editions = [await self._edition(entry, owner) for entry in (before, after)]
        run = self._background.run if self._background is not None else _at_once
        return Compared(old=before, new=after, difference=await run(difference, *editions))

    async def _edition(self, entry: CatalogEntry, owner: Owner) -> Edition:
        found = await self._found(entry, owner)
        label = f"{entry.path} version {entry.version}"
        return Edition(label=label, text=found.text, scripts=await self.scripts(entry))

    async def _found(self, entry: CatalogEntry, owner: Owner) -> Found:
        content = await self._payloads.read(
            reference_from_json(entry.payload), tenant_id=owner.tenant_id, organization_id=owner.organization_id
        )
        return Found(entry=entry, text=content.decode("utf-8"))

    async def _entry(self, path: str, version: int | None, owner: Owner) -> CatalogEntry:
        entry = None
        if is_path(path) and is_version(version):
            entry = await self._store.find(
                path, version=version, tenant_id=owner.tenant_id, organization_id=owner.organization_id
            )
        if entry is None:
            raise PlaybookUnknown(_unknown(path, version))
        return entry


async def _at_once(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return function(*args, **kwargs)


def _unknown(path: str, version: int | None) -> str:
    which = "" if version is None else f" in version {version}"
    return f"the catalog has no playbook {path[:CATALOG_PATH_CHARS_MAX]!r}{which}: see `noetl catalog list`"


def _rows(limit: int) -> int:
    if not 1 <= limit <= CATALOG_ROWS_MAX:
        raise RequestInvalid(f"limit must be between 1 and {CATALOG_ROWS_MAX:,}")
    return limit
