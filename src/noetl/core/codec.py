"""Canonical JSON and digests.  Equal values have equal bytes: keys sorted by code point, no spaces, UTF-8, integers
as they are, floats as their shortest repr; NaN and Infinity are refused."""

from __future__ import annotations

import hashlib
import json

from noetl.core.errors import EnvelopeInvalid

# Built once: `json.dumps` with options would build an encoder per call, and this is the hottest call of an append.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def canonical_json(value: object) -> str:
    try:
        text = _encode(value)
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvelopeInvalid(f"value has no canonical JSON form: {error}") from error
    return text


def canonical_bytes(value: object) -> bytes:
    try:
        return _encode(value).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvelopeInvalid(f"value has no canonical JSON form: {error}") from error


def parse_json(text: str | bytes) -> object:
    value: object = json.loads(text)
    return value


def sha256_hex(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
