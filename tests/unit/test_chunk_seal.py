"""Payloads at rest: sealed in chunks, opened from the middle, and nothing in it can be changed or moved."""

from __future__ import annotations

import hashlib
import random
import struct

import pytest

from noetl.adapters.crypto.chunks import CHUNK_BYTES, HEAD_BYTES, MAGIC, SEALED_CHUNK_BYTES, ChunkSeal
from noetl.core.errors import PayloadCorrupt
from noetl.core.secret import Secret

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
SEAL = ChunkSeal(Secret(bytes(range(32))))
SIZES = [0, 1, 15, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 77]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sealed(content: bytes, *, seal: ChunkSeal = SEAL, **owner: str) -> bytes:
    sealing = seal.sealing(**{**OWNER, **owner})
    chance = random.Random(len(content))
    pieces, at = [], 0
    while at < len(content):
        step = chance.randrange(1, 100_000)
        pieces.append(sealing.seal(content[at : at + step]))
        at += step
    pieces.append(sealing.rest())
    return sealing.head(digest(content)) + b"".join(pieces)


def opened(stored: bytes, sha256: str, *, seal: ChunkSeal = SEAL, **owner: str) -> bytes:
    opening = seal.opening(stored[:HEAD_BYTES], sha256=sha256, **{**OWNER, **owner})
    content = opening.chunks(0, stored[HEAD_BYTES:])
    if len(content) != opening.size:
        raise PayloadCorrupt("cut off")
    return content


@pytest.mark.parametrize("size", SIZES)
def test_what_is_sealed_is_opened(size: int) -> None:
    content = random.Random(size).randbytes(size)
    stored = sealed(content)
    assert opened(stored, digest(content)) == content
    assert len(stored) == SEAL.sealed_size(size)
    assert SEAL.plain_size(len(stored)) == size
    assert size < 16 or content[:16] not in stored


@pytest.mark.parametrize("size", SIZES[1:])
def test_a_part_is_opened_by_itself(size: int) -> None:
    content = random.Random(size).randbytes(size)
    stored = sealed(content)
    opening = SEAL.opening(stored[:HEAD_BYTES], sha256=digest(content), **OWNER)
    chance = random.Random(size)
    for _ in range(50):
        offset = chance.randrange(size)
        length = chance.randrange(1, size - offset + 1)
        start, span = opening.span(offset, length)
        assert opening.part(offset, length, stored[start : start + span]) == content[offset : offset + length]
        assert span <= length + 2 * SEALED_CHUNK_BYTES


def test_the_same_content_looks_different_every_time() -> None:
    assert sealed(b"again") != sealed(b"again")


def test_every_flipped_bit_is_found() -> None:
    content = random.Random(1).randbytes(CHUNK_BYTES + 500)
    stored = sealed(content)
    chance = random.Random(2)
    for place in [*range(HEAD_BYTES), *(chance.randrange(len(stored)) for _ in range(200))]:
        damaged = bytearray(stored)
        damaged[place] ^= 1 << chance.randrange(8)
        with pytest.raises(PayloadCorrupt):
            opened(bytes(damaged), digest(content))


def test_chunks_cannot_change_places() -> None:
    content = random.Random(1).randbytes(3 * CHUNK_BYTES)
    stored = sealed(content)
    head, body = stored[:HEAD_BYTES], stored[HEAD_BYTES:]
    chunks = [body[at : at + SEALED_CHUNK_BYTES] for at in range(0, len(body), SEALED_CHUNK_BYTES)]
    for order in ((1, 0, 2), (0, 2, 1), (0, 0, 2), (2, 1, 0)):
        with pytest.raises(PayloadCorrupt, match="was changed"):
            opened(head + b"".join(chunks[number] for number in order), digest(content))


@pytest.mark.parametrize("left", [0, 50, HEAD_BYTES, HEAD_BYTES + 1, HEAD_BYTES + SEALED_CHUNK_BYTES, -1])
def test_a_cut_is_found(left: int) -> None:
    content = random.Random(1).randbytes(2 * CHUNK_BYTES)
    with pytest.raises(PayloadCorrupt):
        opened(sealed(content)[:left], digest(content))


def test_an_object_cannot_stand_in_for_another_one() -> None:
    one, two = b"one" * 100, b"two" * 100
    with pytest.raises(PayloadCorrupt, match="header"):
        opened(sealed(one), digest(two))
    with pytest.raises(PayloadCorrupt, match="header"):
        opened(sealed(one)[:HEAD_BYTES] + sealed(two)[HEAD_BYTES:], digest(two))


def test_another_tenant_or_key_opens_nothing() -> None:
    stored = sealed(b"private")
    for owner in ({"tenant_id": "other"}, {"organization_id": "other"}):
        with pytest.raises(PayloadCorrupt):
            opened(stored, digest(b"private"), **owner)
    other = ChunkSeal(Secret(bytes(32)))
    assert other.key_id != SEAL.key_id
    with pytest.raises(PayloadCorrupt):
        opened(stored, digest(b"private"), seal=other)


def test_the_header_is_as_it_is_documented() -> None:
    stored = sealed(b"x" * 100_000)
    assert struct.unpack_from("<8sIIQ", stored) == (MAGIC, 1, 65_536, 100_000)
    assert (HEAD_BYTES, len(stored)) == (84, 84 + 100_000 + 2 * 16)
