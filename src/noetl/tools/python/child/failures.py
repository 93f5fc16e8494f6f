"""What an exception of user code is as recorded data: kind, code, bounded message, the user's own lines."""

from __future__ import annotations

import socket
import traceback

from noetl.core import limits
from noetl.core.errors import Failure, ToolFailed

# Libraries name their exceptions like the builtin ones without deriving from them, so the names of all
# classes of an exception count.
_TIMEOUTS = frozenset({"TimeoutError", "Timeout", "TimeoutException"})
_CONNECTIONS = frozenset({"ConnectionError", "ConnectError", "ClientConnectionError", "gaierror"})
_PARSES = frozenset({"JSONDecodeError", "UnicodeDecodeError", "ParseError", "YAMLError"})
_FRAMES_MAX = 50


def describe(error: BaseException, filename: str) -> tuple[Failure, str | None]:
    """The failure and the traceback of an exception that user code let out."""
    if isinstance(error, ToolFailed):
        return error.failure, None
    name = type(error).__name__
    kind = _kind(error)
    line = _line(error, filename)
    failure = Failure(
        kind=kind,
        code=_code(error, name),
        message=_message(error, name),
        retryable=kind in {"timeout", "connection"},
        exception_type=name,
        details={} if line is None else {"line": line},
    )
    return failure, _traceback(error, filename)


def bounded(text: str, chars_max: int) -> str:
    """Text that fits and is valid Unicode, whatever user code put into it."""
    text = text if len(text) <= chars_max else text[: chars_max - 1] + "…"
    return text.encode("utf-8", "replace").decode()


def _kind(error: BaseException) -> str:
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & _TIMEOUTS:
        return "timeout"
    if names & _CONNECTIONS:
        return "connection"
    if names & _PARSES:
        return "parse"
    reason = getattr(error, "reason", None) if "URLError" in names else None
    return _kind(reason) if isinstance(reason, BaseException) else "python"


def _code(error: BaseException, name: str) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "CONN_REFUSED"
    if isinstance(error, socket.gaierror):
        return "DNS_ERROR"
    return f"PY_{bounded(name, 100)}"


def _message(error: BaseException, name: str) -> str:
    try:
        text = str(error)
    except Exception:  # user code at the tool boundary: `__str__` may do anything
        text = ""
    if isinstance(error, SystemExit):
        text = f"the code called sys.exit({text}); return or raise instead"
    elif isinstance(error, MemoryError):
        text = text or "the code needs more memory than a Python task may use"
    return bounded(text or name, limits.ERROR_MESSAGE_CHARS_MAX)


def _line(error: BaseException, filename: str) -> int | None:
    """The last line of the user's code that was involved."""
    if isinstance(error, SyntaxError) and error.filename == filename:
        return error.lineno
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _traceback(error: BaseException, filename: str) -> str | None:
    """Frames of the user's code only, the end kept when it is too long."""
    try:
        described = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
        _keep_user_frames(described, filename)
        text = "".join(described.format())
    except Exception:  # user code at the tool boundary: formatting calls `__str__` and `__repr__`
        return None
    excess = len(text) - limits.PYTHON_TRACEBACK_CHARS_MAX
    return bounded(text if excess <= 0 else "…" + text[excess + 1 :], limits.PYTHON_TRACEBACK_CHARS_MAX)


def _keep_user_frames(described: traceback.TracebackException, filename: str) -> None:
    waiting = [described]
    while waiting:
        one = waiting.pop()
        frames = [frame for frame in one.stack if frame.filename == filename]
        one.stack = traceback.StackSummary.from_list(frames[-_FRAMES_MAX:])
        waiting.extend(chained for chained in (one.__cause__, one.__context__) if chained is not None)
        waiting.extend(one.exceptions or ())
