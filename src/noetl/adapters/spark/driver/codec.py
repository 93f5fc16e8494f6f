"""Jobs and what becomes of them as plain data, and back.  What comes back is checked: user code shares the process that
wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from noetl.adapters.spark.driver.wire import MessageInvalid

T = TypeVar("T")


def plain(value: object) -> object:
    """A value of our own types as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def typed(kind: type[T], document: object) -> T:
    """Raises MessageInvalid."""
    try:
        return msgspec.convert(document, kind, dec_hook=_foreign)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MessageInvalid(f"this is no {kind.__name__}: {error}") from error


def _foreign(kind: type, value: object) -> object:
    if kind is object:
        return value
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(kind)
