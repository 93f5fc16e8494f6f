"""A value that cannot be shown by accident: no text, no JSON, no pickle, no comparison."""

from __future__ import annotations

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
