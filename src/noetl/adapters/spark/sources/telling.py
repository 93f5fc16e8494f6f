"""Why a source failed, in a form that gets through Spark.

Sources run in processes of Spark's, and all that it hands on of an exception is the text of its traceback.  So kind,
code and whether to try again stand in a line of that text, a note of the exception; who reads the text takes it out."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar, cast

from noetl.core.errors import (
    Failure,
    HostUnavailable,
    LedgerUnavailable,
    LocatorInvalid,
    NoetlError,
    PayloadCorrupt,
    PayloadMissing,
    PayloadUnreadable,
    RequestInvalid,
    ResultNotTabular,
    ResultUnknown,
    StorageFull,
    StoreRefused,
    StoreUnavailable,
    Terminal,
    ToolFailed,
    Transient,
)

P = ParamSpec("P")
T = TypeVar("T")

_MARK = "noetl-failure: "
# The kinds of what is no failure of a task by itself (dsl §8.4).
_KINDS: tuple[tuple[tuple[type[NoetlError], ...], str], ...] = (
    ((RequestInvalid, LocatorInvalid), "config"),
    ((ResultUnknown, PayloadMissing, PayloadCorrupt), "missing_reference"),
    ((ResultNotTabular,), "schema"),
    ((StoreRefused, StoreUnavailable, PayloadUnreadable), "storage_access"),
    ((StorageFull,), "storage_quota"),
    ((LedgerUnavailable,), "db_connection"),
    ((HostUnavailable,), "connection"),
)
_NAMES = sorted(
    {ToolFailed.__name__, *(one.__name__ for base in (Terminal, Transient) for one in base.__subclasses__())}
)
_TOLD = re.compile(rf"^{_MARK}(\{{.*\}})[ \t]*$", re.M)
# The line of a traceback with which the message begins: `package.SomeError: what happened`.
_RAISED = re.compile(rf"^(?:[\w.]+\.)?(?:{'|'.join(_NAMES)}): ", re.M)


def told(call: Callable[P, T]) -> Callable[P, T]:
    """For what Spark calls of a source: an error of ours that leaves it, or the iterator that it gives, is marked."""

    @functools.wraps(call)
    def telling(*args: P.args, **options: P.kwargs) -> T:
        with _marking():
            given = call(*args, **options)
        return cast("T", _through(given)) if isinstance(given, Iterator) else given

    return telling


def told_failure(trace: str) -> tuple[Failure | None, str]:
    """What a source of ours said at the end of a traceback, if it did, and the traceback without it."""
    marks = list(_TOLD.finditer(trace))
    if not marks:
        return None, trace
    rest = trace[: marks[-1].start()].rstrip()
    heads = list(_RAISED.finditer(rest))
    if not heads:
        return None, rest
    return _failure(marks[-1][1], rest[heads[-1].end() :].strip()), rest


@contextmanager
def _marking() -> Iterator[None]:
    try:
        yield
    except NoetlError as error:
        notes = getattr(error, "__notes__", ())
        if not any(note.startswith(_MARK) for note in notes):
            error.add_note(_MARK + json.dumps(_document(error)))
        raise


def _through(given: Iterator[T]) -> Iterator[T]:
    with _marking():
        yield from given


def _document(error: NoetlError) -> dict[str, object]:
    if isinstance(error, ToolFailed):
        failure = error.failure
        found = {
            "kind": failure.kind,
            "code": failure.code,
            "retryable": failure.retryable,
            "status": failure.status,
            "retry_after": failure.retry_after,
        }
        return {name: value for name, value in found.items() if value is not None}
    kind = next((kind for types, kind in _KINDS if isinstance(error, types)), "unknown")
    return {"kind": kind, "code": error.code, "retryable": isinstance(error, Transient)}


def _failure(document: str, message: str) -> Failure | None:
    """None for what is no mark of ours: user code can write such a line too."""
    try:
        found = json.loads(document)
    except ValueError:
        return None
    kind, code = found.get("kind"), found.get("code")
    status, retry_after = found.get("status"), found.get("retry_after")
    if not isinstance(kind, str) or not isinstance(code, str | None):
        return None
    return Failure(
        kind=kind[:40],
        code=None if code is None else code[:100],
        message=message,
        retryable=found.get("retryable") is True,
        status=status if isinstance(status, int) else None,
        retry_after=float(retry_after) if isinstance(retry_after, int | float) else None,
    )
