"""A value that cannot be shown by accident: no text, no JSON, no pickle, no comparison."""

from __future__ import annotations

import base64
from typing import Generic, NoReturn, TypeVar

T = TypeVar("T")
HIDDEN = "***"


class Secret(Generic[T]):
    """Holds a value; only `reveal` gives it back, so every place that looks at it can be searched for."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        return self._value

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __str__(self) -> str:
        return HIDDEN

    def __format__(self, _spec: str) -> str:
        return HIDDEN

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is never serialised")

    def __eq__(self, _other: object) -> NoReturn:
        raise TypeError("secrets are not compared: reveal them and use hmac.compare_digest")

    __hash__ = None  # type: ignore[assignment]


KEY_BYTES = 32
KEY_RULE = f"the base64 of {KEY_BYTES} random bytes, for example from `openssl rand -base64 {KEY_BYTES}`"


def key_from_text(text: str) -> Secret[bytes]:
    """The key that a setting or a key file holds.  Raises ValueError, whose text says nothing about it."""
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        raise ValueError("not base64") from None
    if len(key) != KEY_BYTES:
        raise ValueError("not a key of 32 bytes")
    return Secret(key)


def key_to_text(key: Secret[bytes]) -> str:
    return base64.b64encode(key.reveal()).decode("ascii")
