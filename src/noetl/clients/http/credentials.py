"""A resolved credential as request headers (dsl §10.1).  The only place of the client that reveals a secret."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from noetl.core.errors import Failure, ToolFailed
from noetl.ports.secrets import Credential

API_KEY_HEADER = "X-API-Key"


def auth_headers(auth: Credential | Mapping[str, Credential] | None, named: object) -> dict[str, str]:
    """The headers that the resolved `auth` adds, by name.  `named` is what stood there."""
    if auth is None:
        if named in (None, ""):
            return {}
        raise _refused("the credential that `auth` names was not resolved")
    credentials = [auth] if isinstance(auth, Credential) else list(auth.values())
    headers: dict[str, str] = {}
    for credential in credentials:
        headers.update(_headers_of(credential))
    return headers


def _headers_of(credential: Credential) -> dict[str, str]:
    make = _TYPES.get(credential.type.lower())
    if make is None:
        raise _refused(
            f"credential {credential.name!r} has type {credential.type!r}; http knows {', '.join(sorted(_TYPES))}"
        )
    try:
        headers = make(credential.data.reveal())
    except KeyError as error:
        # The key of the error is the name of a field, never its value.
        raise _refused(f"credential {credential.name!r} ({credential.type}) has no field {error.args[0]}") from None
    if any(character in value for value in headers.values() for character in "\r\n\0"):
        raise _refused(f"credential {credential.name!r} has a line break where a header must have none")
    return headers


def _bearer(data: Mapping[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {_first(data, 'token', 'value', 'access_token', 'secret')}"}


def _basic(data: Mapping[str, Any]) -> dict[str, str]:
    return {"Authorization": basic_authorization(_first(data, "username", "user"), _first(data, "password"))}


def _api_key(data: Mapping[str, Any]) -> dict[str, str]:
    return {str(data.get("header_name") or API_KEY_HEADER): _first(data, "api_key", "value", "key")}


def _header(data: Mapping[str, Any]) -> dict[str, str]:
    """`{name, value}`, or several below `headers`."""
    several = data.get("headers")
    if isinstance(several, Mapping):
        return {str(name): str(value) for name, value in several.items()}
    return {_first(data, "header_name", "header", "name"): _first(data, "value", "token")}


_TYPES: Mapping[str, Callable[[Mapping[str, Any]], dict[str, str]]] = {
    "bearer": _bearer,
    "secret": _bearer,
    "oauth2": _bearer,
    "basic": _basic,
    "api_key": _api_key,
    "header": _header,
}


def basic_authorization(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def _first(data: Mapping[str, Any], *names: str) -> str:
    for name in names:
        value = data.get(name)
        if value is not None and value != "":
            return str(value)
    raise KeyError(" or ".join(names))


def _refused(message: str) -> ToolFailed:
    return ToolFailed(Failure(kind="auth", code="AUTH_UNRESOLVED", message=f"http: {message}"))
