"""Which credentials give an access token (dsl §10.4): those that hold one, and those that say where to ask for one."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.errors import Failure, ToolFailed
from noetl.core.expression import to_text
from noetl.engine.work.calling.tokens import TokenRequest
from noetl.ports.secrets import Credential

# Their tokens come from a provider's own library.
PROVIDER_TYPES = frozenset(("google_oauth", "service_account", "google_service_account", "google_id_token"))
TOKEN_FIELDS = ("token", "access_token", "value", "secret")
ENDPOINT_FIELDS = ("endpoint", "token_url", "token_endpoint", "token_uri")
_HOLDERS = frozenset(("bearer", "secret", "oauth2"))
_FREE = frozenset(("generic", "auth0"))
_SENT = ("client_id", "client_secret", "scope", "audience", "resource", "username", "password", "refresh_token")


def stored_token(credential: Credential) -> str | None:
    """The token that a credential holds; None when it has to be asked for."""
    data, kind = credential.data.reveal(), credential.type.lower()
    names: tuple[str, ...] = TOKEN_FIELDS if kind in _HOLDERS else ()
    if kind in _FREE and _endpoint(data) is None:
        names = TOKEN_FIELDS[:2]
    return next((to_text(data[name]) for name in names if data.get(name) not in (None, "")), None)


def token_grant(credential: Credential, audience: str | None) -> TokenRequest:
    """The request of a credential that names an endpoint: client credentials, unless it says another grant."""
    data, kind = credential.data.reveal(), credential.type.lower()
    endpoint = _endpoint(data) if kind in _FREE else None
    if endpoint is None:
        reason = "has no provider in this installation" if kind in PROVIDER_TYPES else "gives no token"
        message = f"credential {credential.name!r}: type {credential.type!r} {reason}"
        raise ToolFailed(Failure(kind="auth", code="TOKEN_PROVIDER", message=message))
    given = next((data[name] for name in ("form", "data") if isinstance(data.get(name), Mapping)), None)
    form = dict(given) if given is not None else {name: data[name] for name in _SENT if data.get(name)}
    form.setdefault("grant_type", data.get("grant_type") or "client_credentials")
    if audience is not None:
        form["audience"] = audience
    headers = data.get("headers")
    return TokenRequest(
        owner=f"credential {credential.name!r}",
        url=endpoint,
        method=to_text(data.get("method") or "POST").upper(),
        headers=dict(headers) if isinstance(headers, Mapping) else {},
        body=("form", form),
        token_field=to_text(data["token_field"]) if data.get("token_field") else None,
        ttl_field=to_text(data["ttl_field"]) if data.get("ttl_field") else None,
    )


def _endpoint(data: Mapping[str, object]) -> str | None:
    return next((to_text(data[name]) for name in ENDPOINT_FIELDS if data.get(name) not in (None, "")), None)
