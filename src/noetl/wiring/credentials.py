"""Credentials that come with a process, and the key of all others."""

from __future__ import annotations

from noetl.adapters.crypto.aes import AesGcmCipher
from noetl.adapters.crypto.keys import file_key, given_key, home_key, no_key
from noetl.adapters.postgres.access.data_access import built_in_fields
from noetl.adapters.postgres.embedded import ServerAddress
from noetl.core.secret import Secret
from noetl.ports.secrets import Credential
from noetl.settings import Settings


def built_in_credentials(server: ServerAddress | None) -> dict[str, Credential]:
    """Credentials that nobody has to set: the users' own database, and the published views of the control plane."""
    fields = built_in_fields(server) if server is not None else {}
    return {name: Credential(name=name, type="postgres", data=Secret(one)) for name, one in fields.items()}


def credential_cipher(settings: Settings, *, is_embedded: bool) -> AesGcmCipher:
    """The cipher with the key that was set; only an embedded home makes one of its own."""
    if settings.credential_key is not None:
        return AesGcmCipher(given_key(settings.credential_key))
    if settings.credential_key_file is not None:
        return AesGcmCipher(file_key(settings.credential_key_file))
    return AesGcmCipher(home_key(settings.home / "credential.key") if is_embedded else no_key)
