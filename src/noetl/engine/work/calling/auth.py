"""The forms of `auth` (dsl §10.1), resolved in the worker just before a task runs.

1. a text: the name of a credential
2. one object: where the credential is (`source`), what it is taken for (`type`), fields laid over it (`fields`)
3. any other mapping: alias → 1 or 2"""

from __future__ import annotations

from collections.abc import Mapping

from noetl.core.errors import Failure, ToolFailed
from noetl.core.secret import Secret
from noetl.ports.secrets import Credential, CredentialSource

# A mapping with any of these keys is form 2.
SINGLE_KEYS = frozenset(
    ("source", "key", "credential", "name", "service", "type", "secret_name", "scope", "fields", "inject")
)
ALIASES_MAX = 100
UNSUPPORTED_SOURCES = {
    "env": "the environment of a worker is closed to playbooks",
    "secret": "no secret manager is configured",
    "adc": "default credentials of a cloud are not available",
}

Auth = Credential | Mapping[str, Credential] | None


async def resolve_auth(auth: object, source: CredentialSource, *, tenant_id: str, organization_id: str) -> Auth:
    """The credential behind a rendered `auth`, or one per alias.  Raises ToolFailed; no message holds a value."""
    resolver = _Resolver(source, tenant_id, organization_id)
    if auth is None:
        return None
    if isinstance(auth, Mapping) and not SINGLE_KEYS.intersection(auth):
        if not 0 < len(auth) <= ALIASES_MAX:
            raise _config(f"auth has {len(auth)} aliases, it takes 1 to {ALIASES_MAX}")
        return {str(alias): await resolver.one(form, f"auth.{alias}") for alias, form in auth.items()}
    return await resolver.one(auth, "auth")


class _Resolver:
    def __init__(self, source: CredentialSource, tenant_id: str, organization_id: str) -> None:
        self._source = source
        self._tenant_id = tenant_id
        self._organization_id = organization_id

    async def one(self, form: object, place: str) -> Credential:
        """Form 1 or 2."""
        if isinstance(form, str):
            return await self._named(form, place)
        if not isinstance(form, Mapping):
            raise _config(f"{place} must be the name of a credential or a mapping, not {type(form).__name__}")
        source = form.get("source") or "credential"
        if source == "inline":
            found = Credential(name="inline", type="generic", data=Secret({}))
            if not isinstance(form.get("fields"), Mapping):
                raise _config(f"{place} has source inline and needs `fields`, a mapping")
        elif source == "credential":
            found = await self._named(_first(form, "key", "credential", "name"), place)
        elif isinstance(source, str) and source in UNSUPPORTED_SOURCES:
            reason = UNSUPPORTED_SOURCES[source]
            message = f"{place} has source {source}, and {reason}: store it with `noetl credential set`"
            raise ToolFailed(Failure(kind="unsupported", code="AUTH_SOURCE", message=message))
        else:
            known = ", ".join(("credential", "inline", *UNSUPPORTED_SOURCES))
            raise _config(f"{place} has an unknown source: use one of {known}")
        return _overlaid(found, form, place)

    async def _named(self, name: object, place: str) -> Credential:
        if not isinstance(name, str) or not name.strip():
            raise _config(f"{place} names no credential: give its name")
        return await self._source.open(name.strip(), tenant_id=self._tenant_id, organization_id=self._organization_id)


def _overlaid(found: Credential, form: Mapping[str, object], place: str) -> Credential:
    """The credential with the type and the fields that the playbook gives it."""
    chosen = _first(form, "type", "service", "tool") or found.type
    fields = form.get("fields")
    if fields is not None and not isinstance(fields, Mapping):
        raise _config(f"{place}.fields must be a mapping")
    if not isinstance(chosen, str):
        raise _config(f"{place}.type must be text")
    if not fields and chosen == found.type:
        return found
    return Credential(name=found.name, type=chosen, data=Secret({**found.data.reveal(), **(fields or {})}))


def _first(form: Mapping[str, object], *names: str) -> object:
    return next((form[name] for name in names if form.get(name) is not None), None)


def _config(message: str) -> ToolFailed:
    return ToolFailed(Failure(kind="config", code="AUTH_INVALID", message=message))
