"""Binding a playbook to its surroundings: its scripts, the playbooks that it starts, the credentials that it names.

Scripts and playbooks are pinned, so that a run is always the run of one content; what is missing is told with its
place."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

from noetl.core.errors import Problem
from noetl.core.playbook.checks.credentials import missing_credentials
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.engine.pinning.pins import Pins, Source
from noetl.engine.pinning.scripts import ScriptPinner
from noetl.ports.catalog import CatalogEntry, is_path, is_version
from noetl.ports.owner import Owner
from noetl.ports.secrets import SealedCredential


class Versions(Protocol):
    """The part of the catalog that pinning needs."""

    async def find(
        self, path: str, *, version: int | None, tenant_id: str, organization_id: str
    ) -> CatalogEntry | None: ...


class CredentialNames(Protocol):
    async def names(self, *, tenant_id: str, organization_id: str) -> list[SealedCredential]: ...


class Pinner:
    def __init__(
        self,
        scripts: ScriptPinner,
        *,
        catalog: Versions,
        credentials: CredentialNames | None = None,
        built_in: Collection[str] = (),
    ) -> None:
        self._scripts = scripts
        self._catalog = catalog
        self._credentials = credentials
        self._built_in = frozenset(built_in)

    async def pin(self, playbook: CompiledPlaybook, source: Source, owner: Owner, *, looks: bool = True) -> Pins:
        """What a playbook is bound to from now on, and all that is to be said about it.  `looks` False says nothing
        about what is missing around it.  Raises PlaybookInvalid when a script cannot be had."""
        entry = source.entry
        if entry is None:
            pins = await self._scripts.pin(playbook, source, owner)
        else:
            catalog = {"id": str(entry.catalog_id), "version": entry.version}
            pins = Pins(scripts=entry.scripts, catalog=catalog)
        pins = replace(pins, playbooks=await self._playbooks(playbook, entry, owner))
        missing = await self._missing(playbook, {*pins.playbooks, *source.beside}, owner) if looks else []
        told = (*pins.warnings, *(replace(problem, file=source.file) for problem in missing))
        return replace(pins, warnings=(*playbook.warnings, *told))

    async def _missing(self, playbook: CompiledPlaybook, known: set[str], owner: Owner) -> list[Problem]:
        """What is named and not there, as warnings: it may still come before it is needed."""
        playbooks = await self._missing_playbooks(playbook, known | {playbook.playbook.path}, owner)
        return [*playbooks, *await self._missing_credentials(playbook, owner)]

    async def _playbooks(
        self, playbook: CompiledPlaybook, own: CatalogEntry | None, owner: Owner
    ) -> dict[str, dict[str, object]]:
        """The newest versions of the playbooks that it starts, and its own version where it starts itself."""
        pins: dict[str, dict[str, object]] = {}
        for use in playbook.playbooks:
            if use.version is not None or use.name in pins:
                continue
            entry = own
            if own is None or use.name != own.path:
                entry = await self._entry(use.name, None, owner)
            if entry is not None:
                pins[use.name] = {"id": str(entry.catalog_id), "version": entry.version, "sha256": entry.sha256}
        return pins

    async def _missing_playbooks(self, playbook: CompiledPlaybook, known: set[str], owner: Owner) -> list[Problem]:
        problems = []
        for use in playbook.playbooks:
            if use.version is None and use.name in known:
                continue
            if use.version is None or await self._entry(use.name, use.version, owner) is None:
                which = "" if use.version is None else f" in version {use.version}"
                message = f"the catalog has no playbook {use.name!r}{which}: register it before this task runs"
                problems.append(use.problem("missing_playbook", message, file="", field="path"))
        return problems

    async def _missing_credentials(self, playbook: CompiledPlaybook, owner: Owner) -> list[Problem]:
        if not playbook.credentials or self._credentials is None:
            return []
        stored = await self._credentials.names(tenant_id=owner.tenant_id, organization_id=owner.organization_id)
        return missing_credentials(playbook, self._built_in | {one.name for one in stored})

    async def _entry(self, path: str, version: int | None, owner: Owner) -> CatalogEntry | None:
        if not is_path(path) or not is_version(version):
            return None
        return await self._catalog.find(
            path, version=version, tenant_id=owner.tenant_id, organization_id=owner.organization_id
        )
