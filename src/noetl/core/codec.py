"""Canonical JSON and digests.  Equal values have equal bytes: keys sorted by code point, no spaces, UTF-8,
integers as they are, floats as their shortest repr; NaN and Infinity are refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, NoReturn

from noetl.core.errors import EnvelopeInvalid


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"{type(value).__name__} is not JSON")


def _encoder(*, sort_keys: bool) -> Callable[[object], str]:
    """The encoder of the standard library, built once: `JSONEncoder` builds its C encoder anew for every call, and
    this is the hottest call of an append."""
    make: Any = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    if make is None:
        return json.JSONEncoder(sort_keys=sort_keys, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
    write = make(None, _refuse, quoted, None, ":", ",", sort_keys, False, False)
    return lambda value: "".join(write(value, 0))


quoted: Callable[[str], str] = json.encoder.encode_basestring
_encode = _encoder(sort_keys=True)
_encode_ordered = _encoder(sort_keys=False)


def canonical_json(value: object) -> str:
    """The canonical text.  Whoever encodes it as UTF-8 refuses lone surrogates."""
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvelopeInvalid(f"value has no canonical JSON form: {error}") from error


def canonical_bytes(value: object) -> bytes:
    try:
        return _encode(value).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvelopeInvalid(f"value has no canonical JSON form: {error}") from error


def ordered_bytes(value: object) -> bytes:
    """As canonical, but keys stay in the order of the value: a payload gives back what it was given, and whoever reads
    the columns of a row, or prints it, sees them as they were."""
    try:
        return _encode_ordered(value).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvelopeInvalid(f"value has no canonical JSON form: {error}") from error


def parse_json(text: str | bytes) -> object:
    value: object = json.loads(text)
    return value


def sha256_hex(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
