"""Who asks: a bearer token, compared by digest in constant time, and the owner it acts for.

Every request passes here first.  Without a token only the open routes answer."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from noetl.core.codec import sha256_hex
from noetl.core.errors import RequestInvalid
from noetl.core.limits import FACTS_BYTES_MAX
from noetl.processes.server.owners import ORGANIZATION_HEADER, TENANT_HEADER, Owner, name_from_header
from noetl.processes.server.problems import FORBIDDEN, TOO_LARGE, UNAUTHORIZED, of_error, problem, too_large
from noetl.processes.server.routing import SCOPES
from noetl.processes.server.tokens import Grant

BEARER = b"bearer "
_DENIED = {"WWW-Authenticate": 'Bearer realm="noetl"'}
# No request but the upload of a payload may be longer; the route itself knows the exact limit.
PAYLOAD_PATHS = "/api/payloads/"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a request may do, and the names it is bound to."""

    scopes: frozenset[str]
    tenant_id: str | None = None
    organization_id: str | None = None


EVERYTHING = Identity(frozenset(SCOPES))
NOTHING = Identity(frozenset())


class Tokens:
    """The known tokens, by digest.  The tokens themselves are not kept."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._grants = tuple(grants)

    def identity(self, token: bytes) -> Identity | None:
        digest = sha256_hex(token)
        found = None
        for grant in self._grants:  # all of them: the time says nothing about which one matched
            if hmac.compare_digest(grant.sha256, digest):
                found = grant
        return None if found is None else Identity(found.scopes, found.tenant_id, found.organization_id)


class Doorkeeper:
    """The outermost layer of a listener.  `identify` says who a request is; None is a wrong token."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        identify: Callable[[bytes | None], Identity | None],
        owner: Owner,
        open_paths: frozenset[str],
    ) -> None:
        self._app = app
        self._identify = identify
        self._owner = owner
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        token = tenant = organization = length = None
        for name, value in scope["headers"]:
            if name == b"authorization" and value[: len(BEARER)].lower() == BEARER:
                token = value[len(BEARER) :].strip()
            elif name == TENANT_HEADER:
                tenant = value
            elif name == ORGANIZATION_HEADER:
                organization = value
            elif name == b"content-length":
                length = value
        identity = self._identify(token)
        if identity is None or (not identity.scopes and scope["path"] not in self._open_paths):
            detail = "this token is not known here" if token else "a bearer token is needed: see NOETL_TOKEN"
            await problem(UNAUTHORIZED, "unauthorized", detail, headers=_DENIED)(scope, receive, send)
            return
        if length is not None and _is_too_long(length) and not scope["path"].startswith(PAYLOAD_PATHS):
            refused = too_large(FACTS_BYTES_MAX)
            await problem(TOO_LARGE, refused.code, refused.detail)(scope, receive, send)
            return
        try:
            owner = self._owner_of(identity, tenant, organization)
        except RequestInvalid as error:
            await of_error(error)(scope, receive, send)
            return
        if owner is None:
            detail = "this token belongs to another tenant or organization"
            await problem(FORBIDDEN, "forbidden", detail)(scope, receive, send)
            return
        scope["state"] = {"owner": owner, "scopes": identity.scopes}
        await self._app(scope, receive, send)

    def _owner_of(self, identity: Identity, tenant: bytes | None, organization: bytes | None) -> Owner | None:
        """By header, else by the token's binding, else by the settings.  None when header and binding disagree."""
        default = self._owner
        if tenant is None and organization is None and identity.tenant_id is None:
            return default
        named_tenant = None if tenant is None else name_from_header(tenant, TENANT_HEADER)
        named_organization = None if organization is None else name_from_header(organization, ORGANIZATION_HEADER)
        if identity.tenant_id is not None and named_tenant not in (None, identity.tenant_id):
            return None
        if identity.organization_id is not None and named_organization not in (None, identity.organization_id):
            return None
        return Owner(
            named_tenant or identity.tenant_id or default.tenant_id,
            named_organization or identity.organization_id or default.organization_id,
        )


def _is_too_long(length: bytes) -> bool:
    return not length.isdigit() or len(length) > 18 or int(length) > FACTS_BYTES_MAX
