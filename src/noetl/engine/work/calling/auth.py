"""The forms of `auth` (dsl §10.1), resolved in the worker just before a task runs.

1. a text: the name of a keychain entry, else of a credential
2. one object: where the credential is (`source`), what it is taken for (`type`), fields laid over it (`fields`)
3. any other mapping: alias → 1 or 2"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from noetl.core.errors import Failure, ToolFailed
from noetl.core.playbook.checks.credentials import AUTH_NAME_KEYS, SINGLE_AUTH_KEYS
from noetl.core.secret import Secret
from noetl.ports.secrets import Credential

ALIASES_MAX = 100
SOURCES = ("credential", "secret", "env", "inline", "adc")

Auth = Credential | Mapping[str, Credential] | None


class AuthSources(Protocol):
    """Where credentials come from.  Each raises ToolFailed with kind `auth` for a name that it does not know."""

    async def named(self, name: str) -> Credential:
        """An entry of the playbook's keychain, else a stored credential."""
        ...

    async def stored(self, name: str) -> Credential: ...

    def variable(self, name: str) -> Credential: ...


async def resolve_auth(auth: object, sources: AuthSources) -> Auth:
    """The credential behind a rendered `auth`, or one per alias.  Raises ToolFailed; no message holds a value."""
    resolver = _Resolver(sources)
    if auth is None:
        return None
    if isinstance(auth, Mapping) and not SINGLE_AUTH_KEYS.intersection(auth):
        if not 0 < len(auth) <= ALIASES_MAX:
            raise _config(f"auth has {len(auth)} aliases, it takes 1 to {ALIASES_MAX}")
        return {str(alias): await resolver.one(form, f"auth.{alias}") for alias, form in auth.items()}
    return await resolver.one(auth, "auth")


class _Resolver:
    def __init__(self, sources: AuthSources) -> None:
        self._sources = sources

    async def one(self, form: object, place: str) -> Credential:
        """Form 1 or 2."""
        if isinstance(form, str):
            return await self._sources.named(_name(form, place))
        if not isinstance(form, Mapping):
            raise _config(f"{place} must be the name of a credential or a mapping, not {type(form).__name__}")
        return _overlaid(await self._found(form, form.get("source") or "credential", place), form, place)

    async def _found(self, form: Mapping[str, object], source: object, place: str) -> Credential:
        if source == "inline":
            if not isinstance(form.get("fields"), Mapping):
                raise _config(f"{place} has source inline and needs `fields`, a mapping")
            return Credential(name="inline", type="generic", data=Secret({}))
        if source == "credential":
            return await self._sources.named(_name(_first(form, *AUTH_NAME_KEYS), place))
        if source == "secret":
            return await self._sources.stored(_name(_first(form, "name", "secret_name", "key", "credential"), place))
        if source == "env":
            return self._sources.variable(_name(_first(form, "name", "key"), place))
        if source == "adc":
            reason = "default credentials of a cloud are not available: store one with `noetl credential set`"
            raise ToolFailed(
                Failure(kind="unsupported", code="AUTH_SOURCE", message=f"{place} has source adc, and {reason}")
            )
        raise _config(f"{place} has an unknown source: use one of {', '.join(SOURCES)}")


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


def _name(name: object, place: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise _config(f"{place} names no credential: give its name")
    return name.strip()


def _first(form: Mapping[str, object], *names: str) -> object:
    return next((form[name] for name in names if form.get(name) is not None), None)


def _config(message: str) -> ToolFailed:
    return ToolFailed(Failure(kind="config", code="AUTH_INVALID", message=message))
