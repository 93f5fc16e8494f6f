"""Errors of DuckDB and of its process as recorded data (dsl §8.4): kind, code, a bounded message."""

from __future__ import annotations

import signal

from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import ERROR_MESSAGE_CHARS_MAX

# DuckDB's name for what happened → kind.
_KINDS = {
    "PermissionException": "policy",
    "ParserException": "schema",
    "SyntaxException": "schema",
    "BinderException": "schema",
    "CatalogException": "schema",
    "DependencyException": "schema",
    "TypeMismatchException": "transform",
    "ConversionException": "transform",
    "OutOfRangeException": "transform",
    "InvalidTypeException": "transform",
    "InvalidInputException": "transform",
    "DataError": "transform",
    "ConstraintException": "db_constraint",
    "IntegrityError": "db_constraint",
    "TransactionException": "db_deadlock",
    "OutOfMemoryException": "storage_quota",
    "IOException": "storage_access",
    "InterruptException": "timeout",
    "NotImplementedException": "unsupported",
    "NotSupportedError": "unsupported",
    "ArrowInvalid": "transform",
    "ArrowNotImplementedError": "unsupported",
}
_RETRYABLE = frozenset(("db_deadlock", "timeout"))
_LOCKED = "configuration has been locked"
_FILES = (
    "a task reads and writes files only in the folder of its execution, by relative names; "
    "give other data as tables in `input`"
)
_HINTS = {
    "policy": _FILES,
    "storage_quota": "the task's share is NOETL_DUCKDB_MEMORY_MB",
}


def failed(kind: str, message: str, code: str | None = None) -> ToolFailed:
    """A failure that is known without asking DuckDB."""
    return ToolFailed(Failure(kind=kind, code=code, message=_bounded(f"duckdb: {message}")))


def statement_failure(error_type: str, message: str, *, number: int, hint: str | None = None) -> Failure:
    """Why statement `number` failed."""
    kind = _KINDS.get(error_type, "unknown")
    if _LOCKED in message:
        kind, hint = "policy", "the settings of a task's DuckDB are those of the installation"
    hint = hint or _HINTS.get(kind)
    # The picture of the statement behind the first paragraph says less than its number.
    text = message.partition("\n\nLINE ")[0]
    return Failure(
        kind=kind,
        code=f"DUCKDB_{error_type.removesuffix('Exception').upper()}",
        message=_bounded(f"duckdb: statement {number}: {text}{f' ({hint})' if hint else ''}"),
        retryable=kind in _RETRYABLE,
        exception_type=error_type,
        details={"statement": number},
    )


def timeout_failure(seconds: float, *, number: int, is_waiting: bool) -> Failure:
    if is_waiting:
        what = f"the database was in use by other tasks for {seconds:g} s, the time limit of the task"
    else:
        what = f"statement {number} was interrupted after {seconds:g} s, the time limit of the task"
    code = "DUCKDB_BUSY" if is_waiting else "DUCKDB_INTERRUPT"
    details: dict[str, object] = {"statement": number}
    return Failure(kind="timeout", code=code, message=f"duckdb: {what}", retryable=True, details=details)


def crash_failure(status: int | None, *, number: int, memory_bytes: int) -> Failure:
    """The process of the task ended on its own."""
    reason = f"with status {status}"
    if status is not None and status < 0:
        reason = f"by signal {signal.Signals(-status).name}"
    memory = f"{memory_bytes // 1024**2:,} MB"
    message = (
        f"duckdb: the process of the task ended {reason} at statement {number}; what was committed before stays. "
        f"If it needed more memory than its {memory}, raise NOETL_DUCKDB_MEMORY_MB"
    )
    return Failure(kind="unknown", code="DUCKDB_CRASHED", message=message, details={"statement": number})


def _bounded(message: str) -> str:
    text = " ".join(message.split())
    text = text if len(text) <= ERROR_MESSAGE_CHARS_MAX else text[: ERROR_MESSAGE_CHARS_MAX - 1] + "…"
    return text.encode("utf-8", "replace").decode()
