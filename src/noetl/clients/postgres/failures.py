"""Errors of the driver and the server as recorded data (dsl §8.4): kind, code, SQLSTATE, a bounded message.

A message names the server by host, port and database, and never says more about the credential.
"""

from __future__ import annotations

import errno
import socket
import ssl

import asyncpg

from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import ERROR_MESSAGE_CHARS_MAX

QUERY_CANCELLED = "57014"

# The longest prefix of the SQLSTATE decides.
_KINDS = {
    "08": "db_connection",
    "0A": "unsupported",
    "22": "transform",
    "23": "db_constraint",
    "25P03": "db_timeout",
    "25P04": "db_timeout",
    "28": "auth",
    "3D": "schema",
    "3F": "schema",
    "40001": "db_deadlock",
    "40002": "db_constraint",
    "40P01": "db_deadlock",
    "42": "schema",
    "42501": "auth",
    "53100": "storage_quota",
    "53300": "db_connection",
    "55P03": "db_timeout",
    "57014": "db_timeout",
    "57P": "db_connection",
    "57P04": "schema",
}
_RETRYABLE = frozenset(("db_connection", "db_deadlock", "db_timeout", "timeout"))
_DETAIL_CHARS_MAX = 400

# What the driver raises beside the errors of the server.
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


def failed(kind: str, message: str, code: str | None = None) -> ToolFailed:
    """A failure that is known before or after the server was asked."""
    return ToolFailed(Failure(kind=kind, code=code, message=_bounded(f"postgres: {message}")))


def connect_failure(error: BaseException, place: str) -> Failure:
    """Why there is no connection to a server."""
    sqlstate = getattr(error, "sqlstate", None)
    if isinstance(error, asyncpg.PostgresError) and sqlstate:
        return _made(_kind(sqlstate), f"{place}: {_server_text(error)}", sqlstate=sqlstate)
    if isinstance(error, asyncpg.InterfaceError):
        return _made("config", f"{place}: {error}", code="CONN_REFUSED_BY_DRIVER", error=error)
    if isinstance(error, ssl.SSLCertVerificationError):
        message = f"the certificate of {place} is not trusted: {error.verify_message}"
        return _made("auth", message, code="TLS_UNTRUSTED", error=error)
    # The text of an operating system's error may be in any language; the reason is in its number.
    reason = getattr(error, "strerror", None) or type(error).__name__
    return _made("db_connection", f"cannot connect to {place}: {reason}", code=_connect_code(error), error=error)


def _connect_code(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return "CONN_REFUSED"
    if isinstance(error, socket.gaierror):
        return "DNS_ERROR"
    return "CONN_TIMEOUT" if isinstance(error, TimeoutError) else "CONN_FAILED"


def statement_failure(error: BaseException, place: str, *, number: int) -> Failure:
    """Why statement `number` failed."""
    details: dict[str, object] = {"statement": number}
    sqlstate = getattr(error, "sqlstate", None)
    if isinstance(error, asyncpg.PostgresError) and sqlstate:
        details |= _server_details(error)
        return _made(_kind(sqlstate), _server_text(error), sqlstate=sqlstate, error=error, details=details)
    # A connection that is cut off in the middle of an answer confuses the driver, which says so of itself.
    lost = OSError, asyncpg.InterfaceError, asyncpg.InternalClientError
    if isinstance(error, lost) and not isinstance(error, asyncpg.DataError):
        message = f"the connection to {place} was lost while statement {number} ran: {type(error).__name__}"
        return _made("db_connection", message, code="CONN_LOST", error=error, details=details)
    return _made("unknown", f"the driver failed at statement {number}: {error}", error=error, details=details)


def unreadable_failure(error: BaseException, *, number: int) -> Failure:
    message = f"statement {number} was carried out, but its result cannot be read: {error}; cast the column to text"
    return _made("parse", message, error=error, details={"statement": number})


def unsupported_failure(error: BaseException, *, number: int) -> Failure:
    return _made("unsupported", f"statement {number}: {error}", error=error, details={"statement": number})


def timeout_failure(seconds: float, *, number: int) -> Failure:
    """Our own time limit: the statement was cancelled at the server."""
    message = f"statement {number} was cancelled after {seconds:g} s, the time limit of the task"
    return _made("timeout", message, sqlstate=QUERY_CANCELLED, details={"statement": number})


def storage_failure(error: OSError) -> Failure:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    what = "there is no space for the rows" if is_full else "the rows could not be stored"
    kind, code = ("storage_quota", "NO_SPACE") if is_full else ("storage_access", "STORE_FAILED")
    return _made(kind, f"the statement was carried out, but {what}", code=code, error=error)


def pg_facts(failure: Failure | None) -> dict[str, object]:
    """`output.pg`: the SQLSTATE of what failed."""
    sqlstate = failure.details.get("sqlstate") if failure else None
    return {"pg": {"code": sqlstate, "sqlstate": sqlstate}} if sqlstate else {}


def _kind(sqlstate: str) -> str:
    lengths = (len(sqlstate), 3, 2)
    return next((_KINDS[sqlstate[:length]] for length in lengths if sqlstate[:length] in _KINDS), "unknown")


def _server_text(error: asyncpg.PostgresError) -> str:
    message = str(error.args[0]) if error.args else type(error).__name__
    for title, text in (("Detail", error.detail), ("Hint", error.hint)):
        if text:
            message += f" {title}: {str(text)[:_DETAIL_CHARS_MAX]}"
    return message


def _server_details(error: asyncpg.PostgresError) -> dict[str, object]:
    names = ("constraint_name", "table_name", "schema_name", "column_name", "position")
    found = ((name, getattr(error, name, None)) for name in names)
    return {name.removesuffix("_name"): value for name, value in found if value}


def _made(
    kind: str,
    message: str,
    *,
    code: str | None = None,
    sqlstate: str | None = None,
    error: BaseException | None = None,
    details: dict[str, object] | None = None,
) -> Failure:
    return Failure(
        kind=kind,
        code=f"PG_{sqlstate}" if sqlstate else code,
        message=_bounded(message if message.startswith("postgres: ") else f"postgres: {message}"),
        retryable=kind in _RETRYABLE,
        exception_type=type(error).__name__ if error else None,
        details={**(details or {}), **({"sqlstate": sqlstate} if sqlstate else {})},
    )


def _bounded(message: str) -> str:
    text = " ".join(message.split())
    text = text if len(text) <= ERROR_MESSAGE_CHARS_MAX else text[: ERROR_MESSAGE_CHARS_MAX - 1] + "…"
    return text.encode("utf-8", "replace").decode()
