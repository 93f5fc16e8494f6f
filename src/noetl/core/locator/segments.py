"""The text of a locator: `noetl://` and segments between slashes, each written in exactly one way.

A value stands percent-encoded as UTF-8 with upper-case digits; only letters, digits and `-._~` stand for themselves.
So two locators name the same thing exactly when their texts are equal."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, unquote

from noetl.core.errors import LocatorInvalid
from noetl.core.limits import LOCATOR_CHARS_MAX, LOCATOR_VALUE_CHARS_MAX

SCHEME = "noetl://"
_SHOWN_CHARS_MAX = 200


def is_ours(text: str) -> bool:
    """Whether a text says that it is a locator, right or wrong."""
    return text[: len(SCHEME)].lower() == SCHEME


def refused(text: str, reason: str) -> LocatorInvalid:
    shown = text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
    return LocatorInvalid(f"{shown!r} is no locator: {reason}")


def encoded(value: str, what: str) -> str:
    """A value as a segment.  Raises LocatorInvalid."""
    if not isinstance(value, str) or not 0 < len(value) <= LOCATOR_VALUE_CHARS_MAX:
        raise LocatorInvalid(f"a locator needs a {what} of 1 to {LOCATOR_VALUE_CHARS_MAX:,} characters")
    try:
        segment = quote(value, safe="")
    except UnicodeEncodeError as error:
        raise LocatorInvalid(f"the {what} of a locator must be text that has an UTF-8 form") from error
    # Whoever reads addresses takes these two for folders and drops them.
    return segment.replace(".", "%2E") if value in (".", "..") else segment


def joined(segments: Sequence[str]) -> str:
    text = SCHEME + "/".join(segments)
    if len(text) > LOCATOR_CHARS_MAX:
        raise refused(text, f"it has {len(text):,} characters, the limit is {LOCATOR_CHARS_MAX:,}")
    return text


def split(text: str) -> list[str]:
    """The segments as they are written, each checked to be written in the one way.  Raises LocatorInvalid."""
    if len(text) > LOCATOR_CHARS_MAX:
        raise refused(text, f"it has {len(text):,} characters, the limit is {LOCATOR_CHARS_MAX:,}")
    if not text.startswith(SCHEME):
        raise refused(text, f"it must begin with {SCHEME}, in lower case")
    if "?" in text or "#" in text:
        raise refused(text, "it has a query or a fragment: there is none, and `?` and `#` in a name are %3F and %23")
    segments = text[len(SCHEME) :].split("/")
    for segment in segments:
        if segment in ("", ".", ".."):
            raise refused(
                text, "a segment is empty or a dot: names stand between single slashes, without one at the end"
            )
        _check(text, segment)
    return segments


def decoded(segment: str) -> str:
    """The value of a segment that `split` gave."""
    return unquote(segment, errors="strict")


def _check(text: str, segment: str) -> None:
    try:
        right = encoded(unquote(segment, errors="strict"), "name")
    except UnicodeDecodeError as error:
        raise refused(text, f"{segment!r} is not percent-encoded UTF-8") from error
    if right != segment:
        raise refused(text, f"the segment {segment!r} must be written {right!r}")
