"""`/api/credentials`: set, list, describe, delete.  No answer holds a value of a credential."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from noetl.core.limits import (
    CREDENTIAL_BYTES_MAX,
    CREDENTIAL_DESCRIPTION_CHARS_MAX,
    CREDENTIAL_TAG_CHARS_MAX,
    CREDENTIAL_TAGS_MAX,
)
from noetl.engine.credentials import CREDENTIAL_TYPES, CredentialService, CredentialView
from noetl.processes.server.owners import owner_of
from noetl.processes.server.routes.documents import described, read_document

# Data may arrive with every character escaped; the service counts the bytes that are stored.
BODY_BYTES_MAX = 6 * CREDENTIAL_BYTES_MAX + 65_536
UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"description": "There is no credential of this name."}}


class CredentialBody(BaseModel):
    model_config = ConfigDict(extra="forbid", title="CredentialBody")

    type: str = Field(description="What the credential is for.", json_schema_extra={"enum": list(CREDENTIAL_TYPES)})
    data: dict[str, Any] = Field(
        description=f"The fields of its type, at most {CREDENTIAL_BYTES_MAX:,} bytes of JSON.  Stored encrypted."
    )
    description: str | None = Field(default=None, max_length=CREDENTIAL_DESCRIPTION_CHARS_MAX)
    tags: list[str] = Field(
        default=[],
        max_length=CREDENTIAL_TAGS_MAX,
        json_schema_extra={"items": {"type": "string", "minLength": 1, "maxLength": CREDENTIAL_TAG_CHARS_MAX}},
    )


class CredentialAnswer(BaseModel):
    """Everything about a credential but its values."""

    name: str
    type: str
    description: str | None
    tags: list[str]
    updated_at: str


class CredentialList(BaseModel):
    credentials: list[CredentialAnswer]


class CredentialDeleted(BaseModel):
    name: str
    deleted: bool


def router(service: CredentialService) -> APIRouter:
    routes = APIRouter(prefix="/api/credentials", tags=["credentials"])

    # A name may hold a slash, so it is the rest of the path.
    @routes.put("/{name:path}", openapi_extra=described(CredentialBody))
    async def set_credential(name: str, request: Request) -> CredentialAnswer:
        """Set a credential, or replace the one of this name."""
        body = await read_document(request, CredentialBody, limit=BODY_BYTES_MAX)
        view = await service.put(
            name,
            type=body.type,
            data=body.data,
            description=body.description,
            tags=body.tags,
            owner=owner_of(request),
        )
        return _answer(view)

    @routes.get("")
    async def list_credentials(request: Request) -> CredentialList:
        """All credentials, by name, without their values."""
        return CredentialList(credentials=[_answer(view) for view in await service.list(owner=owner_of(request))])

    @routes.get("/{name:path}", responses=UNKNOWN)
    async def describe_credential(name: str, request: Request) -> CredentialAnswer:
        """One credential without its values."""
        return _answer(await service.describe(name, owner=owner_of(request)))

    @routes.delete("/{name:path}", responses=UNKNOWN)
    async def delete_credential(name: str, request: Request) -> CredentialDeleted:
        """Delete a credential.  Workers that have it open forget it within seconds."""
        await service.delete(name, owner=owner_of(request))
        return CredentialDeleted(name=name, deleted=True)

    return routes


def _answer(view: CredentialView) -> CredentialAnswer:
    return CredentialAnswer(**asdict(view))
