"""The first 256 bytes of a segment; docs/reference/segments.md describes them byte by byte."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

MAGIC = b"NOETLIPC"
VERSION = 1
HEADER_BYTES = 256
"""A multiple of 64: the content behind it is aligned for everything that reads Arrow."""

# magic, version, header bytes, content bytes, rows, SHA-256 of the durable payload, digest of the schema, digest of the
# content, key of the owner's payload, lease end in microseconds, epoch, process, reserved
_LAYOUT = struct.Struct("<8sIIQQ32s32s16s16sQQI4x")
_CHECK = struct.Struct("<Q")
_CHECKED_BYTES = HEADER_BYTES - _CHECK.size


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """What a reader must know before it trusts the content."""

    length: int
    row_count: int
    sha256: bytes
    schema_digest: bytes
    content_digest: bytes
    key: bytes
    until_us: int
    epoch: int
    pid: int


class HeaderInvalid(ValueError):
    """`reason` says which kind of miss it is."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def packed(header: SegmentHeader) -> bytes:
    body = _LAYOUT.pack(
        MAGIC,
        VERSION,
        HEADER_BYTES,
        header.length,
        header.row_count,
        header.sha256,
        header.schema_digest,
        header.content_digest,
        header.key,
        header.until_us,
        header.epoch,
        header.pid,
    ).ljust(_CHECKED_BYTES, b"\0")
    return body + _CHECK.pack(xxhash.xxh3_64_intdigest(body))


def unpacked(content: bytes) -> SegmentHeader:
    """Raises HeaderInvalid."""
    if len(content) < HEADER_BYTES:
        raise HeaderInvalid("truncated")
    magic, version, header_bytes, *fields = _LAYOUT.unpack_from(content)
    if magic != MAGIC:
        raise HeaderInvalid("no_segment")
    if version != VERSION or header_bytes != HEADER_BYTES:
        raise HeaderInvalid("version")
    (check,) = _CHECK.unpack_from(content, _CHECKED_BYTES)
    if check != xxhash.xxh3_64_intdigest(content[:_CHECKED_BYTES]):
        raise HeaderInvalid("digest")
    length, row_count, sha256, schema_digest, content_digest, key, until_us, epoch, pid = fields
    return SegmentHeader(
        length=length,
        row_count=row_count,
        sha256=sha256,
        schema_digest=schema_digest,
        content_digest=content_digest,
        key=key,
        until_us=until_us,
        epoch=epoch,
        pid=pid,
    )


def content_digest() -> xxhash.xxh3_128:
    """XXH3-128: it must find accidents and cost less than the reading.  Against somebody who can write these files, who
    is this user, no digest beside the content would help."""
    return xxhash.xxh3_128()
