"""The body of an answer as a value: JSON, text, or base64 of bytes."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass

import msgspec

from noetl.core.errors import Failure, ToolFailed

OCTETS = "application/octet-stream"
_TEXT_SUBTYPES = frozenset(
    {"json", "xml", "javascript", "ecmascript", "yaml", "x-yaml", "toml", "sql", "graphql"}
    | {"x-www-form-urlencoded", "ndjson", "x-ndjson", "jsonl"}
)
_STRICT = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class ContentType:
    """A `Content-Type` header taken apart."""

    media_type: str
    charset: str

    @property
    def is_json(self) -> bool:
        return self.media_type == "application/json" or self.media_type.endswith("+json")

    @property
    def is_text(self) -> bool:
        kind, _, subtype = self.media_type.partition("/")
        if kind == "text" or subtype.endswith(("+json", "+xml", "+yaml")):
            return True
        return kind == "application" and subtype in _TEXT_SUBTYPES


_JSON = ContentType("application/json", "utf-8")


def content_type(header: str) -> ContentType:
    if header == "application/json":
        return _JSON
    media_type, _, rest = header.partition(";")
    charset = "utf-8"
    for parameter in rest.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip("\"'").lower()
    return ContentType(media_type.strip().lower(), charset or "utf-8")


def decoded(content: bytes, kind: ContentType, *, response_type: str) -> object:
    """Parsed JSON, text, or base64 of bytes.  Raises ToolFailed only when JSON was demanded and is not there."""
    if response_type == "json" or (response_type == "auto" and kind.is_json):
        if not content:
            return None
        try:
            return parsed(content, kind.charset)
        except ValueError:
            if response_type == "json":
                raise ToolFailed(
                    Failure(kind="parse", code="JSON_INVALID", message="http: the body is not JSON"),
                    data=text_of(content, kind.charset),
                ) from None
            return text_of(content, kind.charset)
    if response_type == "binary":
        return base64.b64encode(content).decode("ascii")
    if response_type == "text":
        return text_of(content, kind.charset)
    return _guessed(content, kind)


def _guessed(content: bytes, kind: ContentType) -> object:
    """`auto` without a JSON type: JSON if it parses, else text, else base64."""
    is_text = kind.is_text
    if not is_text and kind.media_type in ("", OCTETS):
        is_text = _is_utf8(content)
    if not is_text:
        return base64.b64encode(content).decode("ascii")
    try:
        return _STRICT.decode(content)
    except (ValueError, RecursionError):
        return text_of(content, kind.charset)


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in content


def text_of(content: bytes, charset: str) -> str:
    try:
        return content.decode(charset, "replace")
    except (LookupError, UnicodeError):
        return content.decode("utf-8", "replace")


def parsed(content: bytes, charset: str = "utf-8") -> object:
    """JSON as values that can be recorded: NaN, Infinity and numbers beyond a float are null (dsl §8.6).

    Raises ValueError.  The strict reader is the fast one; what it refuses is read again by the lenient one.
    """
    try:
        return _STRICT.decode(content)
    except (ValueError, RecursionError):
        text = text_of(content, "utf-8-sig" if charset == "utf-8" else charset)
    try:
        value = json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
        return storable(value) if "\\u" in text else value
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def storable(value: object) -> object:
    """Half of a surrogate pair is no text that can be stored."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [storable(item) for item in value]
    if isinstance(value, dict):
        return {str(storable(key)): storable(item) for key, item in value.items()}
    return value
