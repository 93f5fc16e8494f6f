"""Credentials for workers: sealed, as they are stored.  The worker decrypts with its own key."""

from __future__ import annotations

import base64

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from noetl.core.errors import CredentialUnknown
from noetl.ports.secrets import SealedCredentials
from noetl.processes.server import models
from noetl.processes.server.bodies import answer
from noetl.processes.server.owners import owner_of


def router(credentials: SealedCredentials) -> APIRouter:
    found = APIRouter(tags=["workers"])

    # A name may hold a slash, so it is the rest of the path.
    @found.get("/api/worker/credentials/{name:path}", responses={200: {"model": models.SealedView}})
    async def sealed_credential(request: Request, name: str) -> Response:
        """A sealed credential of the named tenant and organization."""
        sealed = None
        if name.isprintable():
            sealed = await credentials.find(name, **owner_of(request))
        if sealed is None:
            raise CredentialUnknown(f"there is no credential {name[:200]!r}")
        return answer(
            {
                "name": sealed.name,
                "type": sealed.type,
                "tenant_id": sealed.tenant_id,
                "organization_id": sealed.organization_id,
                "key_id": sealed.key_id,
                "nonce": base64.b64encode(sealed.nonce).decode(),
                "ciphertext": base64.b64encode(sealed.ciphertext).decode(),
                "updated_at": sealed.updated_at,
            }
        )

    return found
