"""The environment of user code: what `env` says, and under it what a credential is called by the libraries that look
for it there (`auth`, dsl §9.1)."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.errors import Failure, ToolFailed
from noetl.core.expression import to_text
from noetl.ports.secrets import Credential
from noetl.ports.tool import ToolCall

# Variable → the spellings of the field it comes from.
_POSTGRES = {
    "PGHOST": ("db_host", "host", "hostname", "pg_host"),
    "PGPORT": ("db_port", "port"),
    "PGUSER": ("db_user", "user", "username"),
    "PGPASSWORD": ("db_password", "password"),
    "PGDATABASE": ("db_name", "database", "dbname"),
    "PGSSLMODE": ("sslmode",),
}
_AWS = {
    "AWS_ACCESS_KEY_ID": ("access_key_id", "aws_access_key_id"),
    "AWS_SECRET_ACCESS_KEY": ("secret_access_key", "aws_secret_access_key"),
    "AWS_SESSION_TOKEN": ("session_token", "aws_session_token"),
    "AWS_DEFAULT_REGION": ("region",),
    "AWS_REGION": ("region",),
    "AWS_ENDPOINT_URL": ("endpoint",),
}
VARIABLES: Mapping[str, Mapping[str, tuple[str, ...]]] = {"postgres": _POSTGRES, "aws": _AWS, "s3": _AWS}


def environment_of(call: ToolCall) -> dict[str, str]:
    """Raises ToolFailed for an `env` that is no mapping and for a credential that has no variables."""
    given = call.fields.get("env")
    if given is not None and not isinstance(given, Mapping):
        raise ToolFailed(Failure(kind="config", code="ENV_INVALID", message="python: env must be a mapping"))
    auth = call.auth
    credentials = [] if auth is None else [auth] if isinstance(auth, Credential) else list(auth.values())
    found: dict[str, str] = {}
    for credential in credentials:
        found.update(_variables(credential))
    own = {str(name): to_text(value) for name, value in (given or {}).items() if value is not None}
    return {**found, **own}


def _variables(credential: Credential) -> dict[str, str]:
    known = VARIABLES.get(credential.type.lower())
    if known is None:
        message = (
            f"python: credential {credential.name!r} has type {credential.type!r}, which has no variables: auth knows "
            f"{', '.join(sorted(VARIABLES))}; give the code what it needs by `input` or `env`, as in "
            "{{ keychain.<entry>.<field> }}"
        )
        raise ToolFailed(Failure(kind="unsupported", code="AUTH_TYPE", message=message))
    data = credential.data.reveal()
    found = {}
    for variable, spellings in known.items():
        value = next((data[name] for name in spellings if data.get(name) not in (None, "")), None)
        if value is not None:
            found[variable] = to_text(value)
    return found
