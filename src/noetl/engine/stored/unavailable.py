"""Payloads that are gone or damaged, and results that cannot be stored, as failures of tasks."""

from __future__ import annotations

import re

from noetl.core.errors import (
    REFERENCE_NOT_AVAILABLE,
    Failure,
    NoetlError,
    PayloadCorrupt,
    PayloadMissing,
    PayloadUnreadable,
    StorageFull,
    StoreRefused,
    StoreUnavailable,
)

LOST = (PayloadMissing, PayloadCorrupt)
"""A payload that was there: making it again helps."""
UNSTORED = (StoreRefused, StoreUnavailable, StorageFull, PayloadUnreadable, *LOST, OSError)
_KIND = "missing_reference"
# The messages of stores name a payload by its locator or its digest.
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def digest_of(error: NoetlError) -> str | None:
    """Which payload an error of a store is about."""
    found = _DIGEST.search(str(error))
    return None if found is None else found.group()


def unavailable(error: NoetlError, place: str) -> Failure:
    """What a task's failure is because a payload is gone or damaged.  `place` names step and task."""
    digest = digest_of(error)
    details: dict[str, object] = {} if digest is None else {"sha256": digest}
    return Failure(kind=_KIND, code=REFERENCE_NOT_AVAILABLE, message=f"{place}: {error}", details=details)


def unstored(error: Exception, step: str, task: str) -> Failure:
    """What a task's failure is because its result cannot be stored."""
    message = f"step {step!r}, task {task!r}: its result could not be stored: {error}"
    details: dict[str, object] = {"step": step, "task": task}
    return Failure(kind=_KIND, code=REFERENCE_NOT_AVAILABLE, message=message, details=details)


def failed_by(error: NoetlError, step: str, task: str) -> Failure:
    """The failure of a task that an error of ours ended."""
    place = f"step {step!r}, task {task!r}"
    if isinstance(error, LOST):
        return unavailable(error, place)
    if isinstance(error, StoreRefused):
        return unstored(error, step, task)
    if isinstance(error, StorageFull | StoreUnavailable):
        kind = "storage_quota" if isinstance(error, StorageFull) else "storage_access"
        return Failure(kind=kind, code=error.code, message=f"{place}: {error}", retryable=True)
    return Failure(kind="unknown", code=error.code, message=f"{place}: {error}")


def told(error: NoetlError) -> Failure:
    """The failure of a command that came to no end of its own."""
    if isinstance(error, (*LOST, StoreRefused)):
        return unavailable(error, "the command could not be completed")
    return Failure(kind="unknown", code=error.code, message=str(error))


def is_unavailable(failure: Failure | None) -> bool:
    return failure is not None and (failure.kind, failure.code) == (_KIND, REFERENCE_NOT_AVAILABLE)
