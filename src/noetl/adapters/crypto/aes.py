"""AES-256-GCM over the fields of a credential.

Owner, name and type are authenticated along with the fields, so a row that was copied to another name or tenant, or
whose type was changed, does not decrypt.  The id of the key stands beside each row: a process with another key can
say so, and rows of several keys can live in one table while a key is replaced."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from noetl.adapters.crypto.keys import KeySource
from noetl.core.codec import canonical_bytes, parse_json, sha256_hex
from noetl.core.errors import CredentialUnreadable
from noetl.core.secret import Secret
from noetl.ports.secrets import Credential, SealedCredential

NONCE_BYTES = 12
KEY_ID_CHARS = 16


class AesGcmCipher:
    """The key is fetched when it is first needed: a process that never meets a credential needs none."""

    def __init__(self, key: KeySource) -> None:
        self._source = key
        self._loaded: tuple[str, AESGCM] | None = None

    async def seal(self, credential: Credential, *, tenant_id: str, organization_id: str) -> SealedCredential:
        key_id, aead = await self._key()
        # Random is safe here: a key seals thousands of rows, and 96 bits are good for four thousand million.
        nonce = os.urandom(NONCE_BYTES)
        bound = _bound_to(tenant_id, organization_id, credential.name, credential.type)
        return SealedCredential(
            name=credential.name,
            type=credential.type,
            tenant_id=tenant_id,
            organization_id=organization_id,
            key_id=key_id,
            nonce=nonce,
            ciphertext=aead.encrypt(nonce, canonical_bytes(dict(credential.data.reveal())), bound),
        )

    async def open(self, sealed: SealedCredential) -> Credential:
        key_id, aead = await self._key()
        if sealed.key_id != key_id:
            raise CredentialUnreadable(
                f"credential {sealed.name!r} was sealed with the key {sealed.key_id}, and this process has the key "
                f"{key_id}: give it the same key as the server, or set the credential again"
            )
        bound = _bound_to(sealed.tenant_id, sealed.organization_id, sealed.name, sealed.type)
        try:
            fields = parse_json(aead.decrypt(sealed.nonce, sealed.ciphertext, bound))
        except (InvalidTag, ValueError):
            fields = None
        if not isinstance(fields, dict):
            raise CredentialUnreadable(
                f"credential {sealed.name!r} does not decrypt: its row was changed or moved; set the credential again"
            )
        data: Secret[Mapping[str, object]] = Secret(fields)
        return Credential(name=sealed.name, type=sealed.type, data=data)

    async def _key(self) -> tuple[str, AESGCM]:
        if self._loaded is None:
            key = await asyncio.to_thread(self._source)
            self._loaded = (sha256_hex(key.reveal())[:KEY_ID_CHARS], AESGCM(key.reveal()))
        return self._loaded


def _bound_to(tenant_id: str, organization_id: str, name: str, type_: str) -> bytes:
    return canonical_bytes({"tenant_id": tenant_id, "organization_id": organization_id, "name": name, "type": type_})
