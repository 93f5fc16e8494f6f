"""Credentials: what a user sets, what anybody may see of it, and what a worker opens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from noetl.core.codec import canonical_bytes
from noetl.core.errors import (
    CredentialUnknown,
    CredentialUnreadable,
    EnvelopeInvalid,
    Failure,
    RequestInvalid,
    SettingsInvalid,
    ToolFailed,
    Transient,
)
from noetl.core.limits import (
    CREDENTIAL_BYTES_MAX,
    CREDENTIAL_CACHE_MAX,
    CREDENTIAL_CACHE_SECONDS,
    CREDENTIAL_DESCRIPTION_CHARS_MAX,
    CREDENTIAL_NAME_CHARS_MAX,
    CREDENTIAL_TAG_CHARS_MAX,
    CREDENTIAL_TAGS_MAX,
    CREDENTIAL_VALUES_MAX,
)
from noetl.core.secret import Secret
from noetl.ports.clock import Clock
from noetl.ports.owner import Owner
from noetl.ports.secrets import Credential, CredentialCipher, CredentialStore, SealedCredential, SealedCredentials

CREDENTIAL_TYPES = (
    *("api_key", "auth0", "aws", "basic", "bearer", "duckdb", "gcs_hmac", "generic", "google_oauth"),
    *("google_service_account", "header", "hmac", "kafka", "nats", "postgres", "pubsub", "s3", "secret"),
    *("service_account", "snowflake"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialView:
    """What anybody of the owner may see: never a value."""

    name: str
    type: str
    description: str | None
    tags: tuple[str, ...]
    updated_at: str


class CredentialService:
    """Sets, shows and deletes.  It can seal and never opens."""

    def __init__(self, store: CredentialStore, cipher: CredentialCipher, *, reserved: Collection[str] = ()) -> None:
        self._store = store
        self._cipher = cipher
        self._reserved = frozenset(reserved)

    async def put(
        self,
        name: str,
        *,
        type: str,
        data: Mapping[str, object],
        description: str | None = None,
        tags: Sequence[str] = (),
        owner: Owner,
    ) -> CredentialView:
        """Set a credential, or replace the one of its name."""
        _check(name, type)
        _check_remarks(description or "", tags)
        _check_data(data)
        if name in self._reserved:
            raise RequestInvalid(f"the credential {name!r} is built in: choose another name")
        sealed = await self._cipher.seal(Credential(name=name, type=type, data=Secret(data)), **_of(owner))
        await self._store.put(replace(sealed, description=description, tags=tuple(tags)))
        return await self.describe(name, owner=owner)

    async def describe(self, name: str, *, owner: Owner) -> CredentialView:
        sealed = await self._store.find(name, **_of(owner)) if _is_name(name) else None
        if sealed is None:
            raise CredentialUnknown(f"there is no credential {name!r}")
        return _view(sealed)

    async def delete(self, name: str, *, owner: Owner) -> None:
        if not _is_name(name) or not await self._store.delete(name, **_of(owner)):
            raise CredentialUnknown(f"there is no credential {name!r}")

    async def list(self, *, owner: Owner) -> Sequence[CredentialView]:
        return [_view(sealed) for sealed in await self._store.names(**_of(owner))]


class CredentialOpener:
    """The worker's source: finds a sealed credential, opens it, and remembers it for a moment.

    The moment is short on purpose: a credential that was replaced or deleted stops working by itself."""

    def __init__(
        self,
        store: SealedCredentials,
        cipher: CredentialCipher,
        *,
        clock: Clock,
        built_in: Mapping[str, Credential] | None = None,
    ) -> None:
        self._store = store
        self._cipher = cipher
        self._clock = clock
        self._built_in = dict(built_in or {})
        self._cache: OrderedDict[tuple[str, str, str], tuple[float, Credential]] = OrderedDict()

    async def open(self, name: str, *, tenant_id: str, organization_id: str) -> Credential:
        built_in = self._built_in.get(name)
        if built_in is not None:
            return built_in
        key = (tenant_id, organization_id, name)
        now = self._clock.monotonic()
        until, known = self._cache.get(key, (0.0, None))
        if known is not None and now < until:
            self._cache.move_to_end(key)
            return known
        self._cache.pop(key, None)
        credential = await self._open(name, tenant_id=tenant_id, organization_id=organization_id)
        self._cache[key] = (now + CREDENTIAL_CACHE_SECONDS, credential)
        self._cache.move_to_end(key)
        while len(self._cache) > CREDENTIAL_CACHE_MAX:
            self._cache.popitem(last=False)
        return credential

    async def _open(self, name: str, *, tenant_id: str, organization_id: str) -> Credential:
        sealed = None
        if _is_name(name):
            try:
                sealed = await self._store.find(name, tenant_id=tenant_id, organization_id=organization_id)
            except Transient as error:
                message = f"credential {name!r} could not be fetched: {error}"
                failure = Failure(kind="connection", code="CREDENTIAL_STORE", message=message, retryable=True)
                raise ToolFailed(failure) from error
        if sealed is None:
            raise _failed("CREDENTIAL_UNKNOWN", f"there is no credential {name!r}: set it with `noetl credential set`")
        if (sealed.tenant_id, sealed.organization_id, sealed.name) != (tenant_id, organization_id, name):
            # What was sealed for somebody else decrypts well under its own name; only the asker knows what was asked.
            raise _failed("CREDENTIAL_UNREADABLE", f"the store answered with another credential than {name!r}")
        try:
            return await self._cipher.open(sealed)
        except CredentialUnreadable as error:
            raise _failed("CREDENTIAL_UNREADABLE", str(error)) from error
        except SettingsInvalid as error:
            raise _failed("CREDENTIAL_KEY", f"credential {name!r} cannot be opened: {error}") from error


def _failed(code: str, message: str) -> ToolFailed:
    return ToolFailed(Failure(kind="auth", code=code, message=message))


def _of(owner: Owner) -> dict[str, str]:
    return {"tenant_id": owner.tenant_id, "organization_id": owner.organization_id}


def _view(sealed: SealedCredential) -> CredentialView:
    return CredentialView(
        name=sealed.name,
        type=sealed.type,
        description=sealed.description,
        tags=sealed.tags,
        updated_at=sealed.updated_at,
    )


# --- what may be set -------------------------------------------------------------------------------------


def _check(name: str, type_: str) -> None:
    if not _is_name(name):
        raise RequestInvalid(f"the name of a credential has 1 to {CREDENTIAL_NAME_CHARS_MAX} printable characters")
    if type_ not in CREDENTIAL_TYPES:
        raise RequestInvalid(f"unknown credential type {type_[:40]!r}: use one of {', '.join(CREDENTIAL_TYPES)}")


def _check_remarks(description: str, tags: Sequence[str]) -> None:
    if len(description) > CREDENTIAL_DESCRIPTION_CHARS_MAX or not _is_text(description):
        raise RequestInvalid(f"description must be text of at most {CREDENTIAL_DESCRIPTION_CHARS_MAX:,} characters")
    if len(tags) > CREDENTIAL_TAGS_MAX or not all(_is_tag(tag) for tag in tags):
        raise RequestInvalid(
            f"tags are at most {CREDENTIAL_TAGS_MAX} words of 1 to {CREDENTIAL_TAG_CHARS_MAX} printable characters"
        )


def _check_data(data: object) -> None:
    """No message quotes the data: whoever reads it may not be who sent it."""
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise RequestInvalid("data must be a JSON object")
    try:
        size = len(canonical_bytes(dict(data)))
    except EnvelopeInvalid:
        raise RequestInvalid("data must be a JSON object: it holds something that is not JSON") from None
    if size > CREDENTIAL_BYTES_MAX:
        raise RequestInvalid(f"data has {size:,} bytes, the limit is {CREDENTIAL_BYTES_MAX:,}")
    count = _values(data)
    if count > CREDENTIAL_VALUES_MAX:
        raise RequestInvalid(f"data has {count:,} values, the limit is {CREDENTIAL_VALUES_MAX}")


def _values(data: object) -> int:
    count, open_ = 0, [data]
    while open_:
        value = open_.pop()
        if isinstance(value, Mapping):
            open_.extend(value.values())
        elif isinstance(value, list | tuple):
            open_.extend(value)
        else:
            count += 1
    return count


def _is_name(name: str) -> bool:
    return 1 <= len(name) <= CREDENTIAL_NAME_CHARS_MAX and name.isprintable()


def _is_tag(tag: str) -> bool:
    return 1 <= len(tag) <= CREDENTIAL_TAG_CHARS_MAX and tag.isprintable()


def _is_text(text: str) -> bool:
    return all(character.isprintable() or character in "\n\t" for character in text)
