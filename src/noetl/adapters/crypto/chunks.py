"""AES-256-GCM over bytes of any length, in chunks: streamed in and out, read from the middle, and never half trusted.

A sealed object, little-endian:

    0   8   magic `NOETLAES`
    8   4   version, 1
    12  4   plain bytes of a chunk, 65 536
    16  8   plain bytes in all
    24  12  nonce
    36  48  the object's own key, sealed with the key of its tenant and organization
    84  …   the chunks, each with its tag of 16 bytes; the last one may be shorter, and there is none of no bytes

The object's key is random, so a chunk's nonce is its number: chunks that change places do not open.  What seals the
object's key also covers the header, the owner and the digest of the plain bytes: an object that is cut off, or stands
in for another one, does not open.  The digest is known last; so is the header written last."""

from __future__ import annotations

import hashlib
import os
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from noetl.core.codec import canonical_bytes
from noetl.core.errors import PayloadCorrupt
from noetl.core.secret import KEY_BYTES, Secret

MAGIC = b"NOETLAES"
VERSION = 1
CHUNK_BYTES = 64 * 1024
TAG_BYTES = 16
NONCE_BYTES = 12
_PREFIX = struct.Struct("<8sIIQ")
HEAD_BYTES = _PREFIX.size + NONCE_BYTES + KEY_BYTES + TAG_BYTES
SEALED_CHUNK_BYTES = CHUNK_BYTES + TAG_BYTES
_KEY_ID_CHARS = 16


class ChunkSeal:
    """Seals and opens payloads with keys that are derived from one master key for each tenant and organization."""

    head_bytes = HEAD_BYTES
    chunk_bytes = SEALED_CHUNK_BYTES

    def __init__(self, key: Secret[bytes]) -> None:
        self._key = key
        self.key_id = hashlib.sha256(b"noetl payload key id\0" + key.reveal()).hexdigest()[:_KEY_ID_CHARS]

    def sealing(self, *, tenant_id: str, organization_id: str) -> Sealing:
        return Sealing(self._owner_key(tenant_id, organization_id))

    def opening(self, head: bytes, *, sha256: str, tenant_id: str, organization_id: str) -> Opening:
        """What opens the chunks behind a header.  Raises PayloadCorrupt."""
        if len(head) != HEAD_BYTES:
            raise PayloadCorrupt("the sealed object is shorter than its header")
        magic, version, chunk_bytes, size = _PREFIX.unpack_from(head)
        if (magic, version, chunk_bytes) != (MAGIC, VERSION, CHUNK_BYTES):
            raise PayloadCorrupt("the sealed object has no header of ours")
        nonce = head[_PREFIX.size : _PREFIX.size + NONCE_BYTES]
        sealed_key = head[_PREFIX.size + NONCE_BYTES :]
        try:
            key = self._owner_key(tenant_id, organization_id).decrypt(
                nonce, sealed_key, head[: _PREFIX.size] + sha256.encode()
            )
        except InvalidTag:
            raise PayloadCorrupt("the header of the sealed object does not open") from None
        return Opening(AESGCM(key), size)

    def sealed_size(self, size: int) -> int:
        return HEAD_BYTES + size + TAG_BYTES * _chunk_count(size)

    def plain_size(self, sealed: int) -> int:
        """The size of the plain bytes, as far as the size of the sealed ones tells."""
        rest = max(sealed - HEAD_BYTES, 0)
        return max(rest - TAG_BYTES * -(-rest // SEALED_CHUNK_BYTES), 0)

    def _owner_key(self, tenant_id: str, organization_id: str) -> AESGCM:
        owner = canonical_bytes({"tenant_id": tenant_id, "organization_id": organization_id})
        derived = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=b"noetl payload key\0" + owner)
        return AESGCM(derived.derive(self._key.reveal()))


class Sealing:
    """One object on its way in.  Its bytes come in any pieces, its header last."""

    def __init__(self, owner_key: AESGCM) -> None:
        self._owner_key = owner_key
        self._key = os.urandom(KEY_BYTES)
        self._cipher = AESGCM(self._key)
        self._waiting = bytearray()
        self._number = 0
        self._size = 0

    def seal(self, piece: bytes) -> bytes:
        """The chunks that are complete by now."""
        self._waiting += piece
        end = len(self._waiting) - len(self._waiting) % CHUNK_BYTES
        sealed = [self._one(self._waiting[at : at + CHUNK_BYTES]) for at in range(0, end, CHUNK_BYTES)]
        del self._waiting[:end]
        return b"".join(sealed)

    def rest(self) -> bytes:
        """The last chunk.  Nothing may be sealed after it."""
        last = self._one(self._waiting) if self._waiting else b""
        self._waiting.clear()
        return last

    def head(self, sha256: str) -> bytes:
        prefix = _PREFIX.pack(MAGIC, VERSION, CHUNK_BYTES, self._size)
        # Random is safe here: a key of a tenant seals one small key per object.
        nonce = os.urandom(NONCE_BYTES)
        return prefix + nonce + self._owner_key.encrypt(nonce, self._key, prefix + sha256.encode())

    def _one(self, chunk: bytes | bytearray) -> bytes:
        sealed = self._cipher.encrypt(_nonce(self._number), bytes(chunk), None)
        self._number += 1
        self._size += len(chunk)
        return sealed


class Opening:
    """One object on its way out."""

    def __init__(self, cipher: AESGCM, size: int) -> None:
        self._cipher = cipher
        self.size = size

    def span(self, offset: int, length: int) -> tuple[int, int]:
        """Where in the sealed object the chunks of some plain bytes are: offset and length."""
        first = offset // CHUNK_BYTES
        last = (offset + length - 1) // CHUNK_BYTES
        start = HEAD_BYTES + first * SEALED_CHUNK_BYTES
        end = min(HEAD_BYTES + (last + 1) * SEALED_CHUNK_BYTES, HEAD_BYTES + self.size + TAG_BYTES * self.chunk_count)
        return start, end - start

    @property
    def chunk_count(self) -> int:
        return _chunk_count(self.size)

    def part(self, offset: int, length: int, sealed: bytes) -> bytes:
        """Plain bytes out of the chunks of their span.  Raises PayloadCorrupt."""
        first = offset // CHUNK_BYTES
        skipped = offset - first * CHUNK_BYTES
        return self.chunks(first, sealed)[skipped : skipped + length]

    def chunks(self, first: int, sealed: bytes) -> bytes:
        """Whole chunks in a row, beginning with the number `first`.  Raises PayloadCorrupt."""
        found = []
        for number, at in enumerate(range(0, len(sealed), SEALED_CHUNK_BYTES), first):
            chunk = sealed[at : at + SEALED_CHUNK_BYTES]
            expected = min(CHUNK_BYTES, self.size - number * CHUNK_BYTES)
            if len(chunk) != expected + TAG_BYTES:
                raise PayloadCorrupt(f"chunk {number} of the sealed object has another length")
            try:
                found.append(self._cipher.decrypt(_nonce(number), chunk, None))
            except InvalidTag:
                raise PayloadCorrupt(f"chunk {number} of the sealed object was changed") from None
        return b"".join(found)


def _nonce(number: int) -> bytes:
    return number.to_bytes(NONCE_BYTES, "little")


def _chunk_count(size: int) -> int:
    return -(-size // CHUNK_BYTES)
