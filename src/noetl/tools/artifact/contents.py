"""Bytes as values, and values as bytes."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping

from noetl.core.codec import ordered_bytes
from noetl.core.errors import EnvelopeInvalid, Failure, ToolFailed
from noetl.core.expression import normalise
from noetl.core.limits import RESULT_BYTES_MAX
from noetl.ports.tool import Place

JSON, TEXT, OCTETS = "application/json", "text/plain; charset=utf-8", "application/octet-stream"
Parts = Mapping[Place, Mapping[str, object]]
_GZIP_MAGIC = b"\x1f\x8b"


def packed(data: object) -> tuple[bytes, str]:
    """The bytes of a value and their content type: text as it is, anything else as JSON."""
    try:
        content = data.encode("utf-8") if isinstance(data, str) else ordered_bytes(normalise(data))
    except (EnvelopeInvalid, UnicodeEncodeError) as error:
        raise ToolFailed(Failure(kind="config", message=f"artifact: data cannot be stored: {error}")) from error
    return content, TEXT if isinstance(data, str) else JSON


def unpacked(content: bytes, *, is_compressed: bool) -> bytes:
    """The bytes as they were before they were compressed, if they were."""
    if not is_compressed or not content.startswith(_GZIP_MAGIC):
        return content
    reader = zlib.decompressobj(wbits=31)
    try:
        plain = reader.decompress(content, RESULT_BYTES_MAX + 1)
    except zlib.error as error:
        raise ToolFailed(Failure(kind="parse", message=f"artifact: the bytes are no gzip: {error}")) from error
    if len(plain) > RESULT_BYTES_MAX:
        message = f"artifact: more than {RESULT_BYTES_MAX:,} bytes when decompressed"
        raise ToolFailed(Failure(kind="storage_quota", message=message))
    return plain


def value_of(content: bytes, content_type: str | None = None) -> tuple[object, str]:
    """What bytes are: JSON if they say so or parse as a mapping or a list, else text, else base64."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return base64.b64encode(content).decode("ascii"), content_type or OCTETS
    is_json = content_type is not None and ("json" in content_type.partition(";")[0])
    if is_json or (content_type is None and text.lstrip()[:1] in ("{", "[")):
        try:
            return normalise(json.loads(text)), content_type or JSON
        except (ValueError, RecursionError):
            pass
    return text, content_type or TEXT


OURS = ("data", "uri", "size_bytes", "content_type")


def shown(data: object, *, uri: str, size_bytes: int, content_type: str) -> dict[str, object]:
    """The result of a `get`: the keys of a mapping stand beside ours, and ours win."""
    own = dict(data) if isinstance(data, Mapping) else {}
    return {**own, "data": data, "uri": uri, "size_bytes": size_bytes, "content_type": content_type}


def shown_parts(parts: Parts) -> Parts:
    """Where the parts of the data stand in the result: below `data`, and beside our keys."""
    found = {("data", *place): reference for place, reference in parts.items()}
    return found | {place: one for place, one in parts.items() if place and place[0] not in OURS}
