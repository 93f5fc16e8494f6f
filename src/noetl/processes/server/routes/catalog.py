"""`/api/catalog`: register playbooks, read them by path and version, compare their versions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from noetl.core.errors import PlaybookUnknown
from noetl.core.limits import CATALOG_PATH_CHARS_MAX, CATALOG_ROWS_MAX, REQUEST_BYTES_MAX
from noetl.engine.catalog import CatalogService, Checked, Registered
from noetl.ports.catalog import VERSION_MAX, CatalogEntry
from noetl.processes.server.bodies import scripts_of
from noetl.processes.server.models import Warned
from noetl.processes.server.owners import Owner, owner_of
from noetl.processes.server.problems import finding
from noetl.processes.server.routes.documents import described, read_document

CREATED = 201
FILE_CHARS_MAX = 1_000
UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"description": "The catalog has no such path or version."}}
REGISTERED: dict[int | str, dict[str, Any]] = {
    201: {"description": "This is a new version."},
    422: {"description": "The playbook is not valid; `problems` says what and where."},
}
Version = Annotated[int | None, Query(ge=1, le=VERSION_MAX)]


class PlaybookBody(BaseModel):
    model_config = ConfigDict(extra="forbid", title="PlaybookBody")

    playbook: str = Field(description="The text of the playbook.")
    file: str = Field(default="<playbook>", max_length=FILE_CHARS_MAX, description="Its name in error messages.")
    scripts: dict[str, str] | None = Field(
        default=None, description="Texts of scripts that the playbook names, by path; others are read by the server."
    )
    check: bool = Field(default=False, description="Only say what registering would say.")
    beside: list[str] = Field(
        default_factory=list, max_length=CATALOG_ROWS_MAX, description="Paths that would be registered with it."
    )


class RegisteredAnswer(BaseModel):
    path: str
    version: int | None = Field(description="The version of this content; null when it was only checked.")
    newest: int | None = Field(description="The newest version of the path; another one if older content came again.")
    catalog_id: str | None = Field(description="The number of this version, for `catalog_id`.")
    sha256: str = Field(description="Of the text.")
    digest: str = Field(description="Of the text and its scripts.")
    created: bool = Field(description="False when the path had this content already.")
    warnings: list[Warned]


class VersionAnswer(BaseModel):
    path: str
    version: int
    catalog_id: str
    sha256: str = Field(description="Of the text.")
    digest: str = Field(description="Of the text and its scripts.")
    name: str
    media_type: str
    created_at: str


class CatalogList(BaseModel):
    playbooks: list[VersionAnswer]


class ScriptAnswer(BaseModel):
    sha256: str
    bytes: int
    text: str | None = Field(default=None, description="Only when it is asked for.")


class PlaybookAnswer(VersionAnswer):
    playbook: str = Field(description="The text of this version.")
    scripts: dict[str, ScriptAnswer] = Field(description="The scripts that belong to it, by path.")
    warnings: list[Warned] = Field(description="What was said when it was last registered.")
    versions: list[VersionAnswer] = Field(description="All versions, the newest first.")


class ChangeAnswer(BaseModel):
    change: str = Field(description="added, removed or changed")
    what: str = Field(description="step, tool, arc, workload, script or document")
    name: str
    detail: str


class DifferenceAnswer(BaseModel):
    path: str
    old: VersionAnswer = Field(serialization_alias="from")
    new: VersionAnswer = Field(serialization_alias="to")
    changes: list[ChangeAnswer] = Field(description="In the words of the language.")
    text: str = Field(description="Line by line, as a unified difference.")


def router(service: CatalogService) -> APIRouter:
    routes = APIRouter(prefix="/api/catalog", tags=["catalog"])

    @routes.post("", responses=REGISTERED, openapi_extra=described(PlaybookBody))
    async def register_playbook(request: Request, response: Response) -> RegisteredAnswer:
        """Register a playbook under its path.  The same content again is the same version."""
        body = await read_document(request, PlaybookBody, limit=REQUEST_BYTES_MAX)
        owner, scripts = owner_of(request), scripts_of(body.scripts)
        told: Checked
        if body.check:
            told = await service.check(body.playbook, file=body.file, owner=owner, scripts=scripts, beside=body.beside)
        else:
            told = await service.register(body.playbook, file=body.file, owner=owner, scripts=scripts)
        answer = _registered(told)
        response.status_code = CREATED if answer.created else response.status_code
        return answer

    @routes.get("")
    async def list_playbooks(
        request: Request,
        prefix: Annotated[str, Query(max_length=CATALOG_PATH_CHARS_MAX)] = "",
        limit: Annotated[int, Query(ge=1, le=CATALOG_ROWS_MAX)] = CATALOG_ROWS_MAX,
    ) -> CatalogList:
        """The newest version of every path, by path."""
        entries = await service.list(owner=owner_of(request), prefix=prefix, limit=limit)
        return CatalogList(playbooks=[_version(entry) for entry in entries])

    @routes.get("/{path:path}/diff", responses=UNKNOWN)
    async def compare_versions(
        request: Request,
        path: str,
        old: Annotated[int | None, Query(alias="from", ge=1, le=VERSION_MAX)] = None,
        new: Annotated[int | None, Query(alias="to", ge=1, le=VERSION_MAX)] = None,
        version: Version = None,
    ) -> DifferenceAnswer | PlaybookAnswer:
        """What changed between two versions, by default the newest one and the one before it.  A playbook whose own
        path ends like this is that playbook, as everywhere."""
        owner = owner_of(request)
        try:
            return await _playbook(service, f"{path}/diff", version, owner)
        except PlaybookUnknown:
            compared = await service.compare(path, old=old, new=new, owner=owner)
        return DifferenceAnswer(
            path=path,
            old=_version(compared.old),
            new=_version(compared.new),
            changes=[
                ChangeAnswer(change=one.change, what=one.what, name=one.name, detail=one.detail)
                for one in compared.difference.changes
            ],
            text=compared.difference.text,
        )

    # A path may begin with a slash, and that slash counts: /api/catalog//examples/hello
    @routes.get("/{path:path}", responses=UNKNOWN)
    async def get_playbook(
        request: Request, path: str, version: Version = None, with_scripts: bool = False
    ) -> PlaybookAnswer:
        """One version with its text, by default the newest, and the list of all versions."""
        return await _playbook(service, path, version, owner_of(request), with_scripts=with_scripts)

    return routes


def _registered(told: Checked) -> RegisteredAnswer:
    registered = told if isinstance(told, Registered) else None
    return RegisteredAnswer(
        path=told.path,
        version=registered.version if registered else None,
        newest=registered.newest if registered else None,
        catalog_id=str(registered.catalog_id) if registered else None,
        sha256=told.sha256,
        digest=told.digest,
        created=registered is not None and registered.created,
        warnings=[Warned.model_validate(finding(one)) for one in told.warnings],
    )


async def _playbook(
    service: CatalogService, path: str, version: int | None, owner: Owner, *, with_scripts: bool = False
) -> PlaybookAnswer:
    found = await service.find(path, version=version, owner=owner)
    texts = await service.scripts(found.entry) if with_scripts else {}
    versions = await service.versions(path, owner=owner)
    return PlaybookAnswer(
        **_version(found.entry).model_dump(),
        playbook=found.text,
        scripts={uri: _script(script["ref"], texts.get(uri)) for uri, script in found.entry.scripts.items()},
        warnings=[Warned.model_validate(dict(warning)) for warning in found.entry.warnings],
        versions=[_version(entry) for entry in versions],
    )


def _script(reference: Any, text: str | None) -> ScriptAnswer:
    return ScriptAnswer(sha256=reference["sha256"], bytes=reference["bytes"], text=text)


def _version(entry: CatalogEntry) -> VersionAnswer:
    return VersionAnswer(
        path=entry.path,
        version=entry.version,
        catalog_id=str(entry.catalog_id),
        sha256=entry.sha256,
        digest=entry.digest,
        name=entry.name,
        media_type=entry.media_type,
        created_at=entry.created_at,
    )
