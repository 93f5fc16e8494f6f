"""`/api/catalog`: register playbooks and read them by path and version."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from noetl.core.limits import CATALOG_PATH_CHARS_MAX, CATALOG_ROWS_MAX, REQUEST_BYTES_MAX
from noetl.engine.catalog import VERSION_MAX, CatalogService
from noetl.ports.catalog import CatalogEntry
from noetl.processes.server.owners import owner_of
from noetl.processes.server.routes.documents import described, read_document

CREATED = 201
FILE_CHARS_MAX = 1_000
UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"description": "The catalog has no such path or version."}}
REGISTERED: dict[int | str, dict[str, Any]] = {
    201: {"description": "This is a new version."},
    422: {"description": "The playbook is not valid; `problems` says what and where."},
}


class PlaybookBody(BaseModel):
    model_config = ConfigDict(extra="forbid", title="PlaybookBody")

    playbook: str = Field(description="The text of the playbook.")
    file: str = Field(default="<playbook>", max_length=FILE_CHARS_MAX, description="Its name in error messages.")


class WarningAnswer(BaseModel):
    code: str
    message: str


class RegisteredAnswer(BaseModel):
    path: str
    version: int = Field(description="The version of this content.")
    newest: int = Field(description="The newest version of the path; another one if older content came again.")
    sha256: str
    created: bool = Field(description="False when the path had this content already.")
    warnings: list[WarningAnswer]


class VersionAnswer(BaseModel):
    path: str
    version: int
    sha256: str
    name: str
    media_type: str
    created_at: str


class CatalogList(BaseModel):
    playbooks: list[VersionAnswer]


class PlaybookAnswer(VersionAnswer):
    playbook: str = Field(description="The text of this version.")
    versions: list[VersionAnswer] = Field(description="All versions, the newest first.")


def router(service: CatalogService) -> APIRouter:
    routes = APIRouter(prefix="/api/catalog", tags=["catalog"])

    @routes.post("", responses=REGISTERED, openapi_extra=described(PlaybookBody))
    async def register_playbook(request: Request, response: Response) -> RegisteredAnswer:
        """Register a playbook under its path.  The same content again is the same version."""
        body = await read_document(request, PlaybookBody, limit=REQUEST_BYTES_MAX)
        registered = await service.register(body.playbook, file=body.file, owner=owner_of(request))
        response.status_code = CREATED if registered.created else response.status_code
        return RegisteredAnswer(
            path=registered.path,
            version=registered.version,
            newest=registered.newest,
            sha256=registered.sha256,
            created=registered.created,
            warnings=[WarningAnswer(code=one.code, message=str(one)) for one in registered.warnings],
        )

    @routes.get("")
    async def list_playbooks(
        request: Request,
        prefix: Annotated[str, Query(max_length=CATALOG_PATH_CHARS_MAX)] = "",
        limit: Annotated[int, Query(ge=1, le=CATALOG_ROWS_MAX)] = CATALOG_ROWS_MAX,
    ) -> CatalogList:
        """The newest version of every path, by path."""
        entries = await service.list(owner=owner_of(request), prefix=prefix, limit=limit)
        return CatalogList(playbooks=[_version(entry) for entry in entries])

    # A path may begin with a slash, and that slash counts: /api/catalog//examples/hello
    @routes.get("/{path:path}", responses=UNKNOWN)
    async def get_playbook(
        request: Request, path: str, version: Annotated[int | None, Query(ge=1, le=VERSION_MAX)] = None
    ) -> PlaybookAnswer:
        """One version with its text, by default the newest, and the list of all versions."""
        owner = owner_of(request)
        found = await service.find(path, version=version, owner=owner)
        versions = await service.versions(path, owner=owner)
        return PlaybookAnswer(
            **_version(found.entry).model_dump(),
            playbook=found.text,
            versions=[_version(entry) for entry in versions],
        )

    return routes


def _version(entry: CatalogEntry) -> VersionAnswer:
    return VersionAnswer(
        path=entry.path,
        version=entry.version,
        sha256=entry.sha256,
        name=entry.name,
        media_type=entry.media_type,
        created_at=entry.created_at,
    )
