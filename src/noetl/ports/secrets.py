"""Credentials: named secrets that are decrypted only in the worker that needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from noetl.core.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A decrypted credential in a worker's hands.  `data` holds the fields of dsl §10.2."""

    name: str
    type: str
    data: Secret[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedCredential:
    """A credential as it is stored and as it travels: everything but the values can be read."""

    name: str
    type: str
    tenant_id: str
    organization_id: str
    key_id: str
    nonce: bytes
    ciphertext: bytes
    description: str | None = None
    tags: tuple[str, ...] = ()
    updated_at: str = ""


class SealedCredentials(Protocol):
    """Where a worker finds what it may decrypt; it needs no more than this."""

    async def find(self, name: str, *, tenant_id: str, organization_id: str) -> SealedCredential | None: ...


class CredentialStore(SealedCredentials, Protocol):
    """Sealed credentials by name, scoped by tenant and organization."""

    async def put(self, credential: SealedCredential) -> None:
        """Store it, or replace the one of its name.  The store sets the time."""
        ...

    async def names(self, *, tenant_id: str, organization_id: str) -> list[SealedCredential]:
        """All of them, by name, without nonce and ciphertext: a list is for looking."""
        ...

    async def delete(self, name: str, *, tenant_id: str, organization_id: str) -> bool: ...


class CredentialCipher(Protocol):
    """Encryption of one credential, bound to its owner, name and type."""

    async def seal(self, credential: Credential, *, tenant_id: str, organization_id: str) -> SealedCredential:
        """Raises SettingsInvalid when this process has no key."""
        ...

    async def open(self, sealed: SealedCredential) -> Credential:
        """Raises SettingsInvalid without a key, CredentialUnreadable with a wrong one or when the row was changed."""
        ...


class CredentialSource(Protocol):
    """What a worker asks: the decrypted credential of a name."""

    async def open(self, name: str, *, tenant_id: str, organization_id: str) -> Credential:
        """Raises ToolFailed with kind `auth` when there is none or it cannot be decrypted; the message names the name
        and nothing else."""
        ...
