"""What goes wrong in a job, as recorded data: what happened, where, what to do, and no stack of Java's."""

from __future__ import annotations

import re
import traceback
from dataclasses import replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import (
    AnalysisException,
    ParseException,
    PySparkException,
    PythonException,
    UnknownException,
)

from noetl.adapters.spark.sources.telling import told_failure
from noetl.adapters.spark.types import TypeUnsupported
from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import ERROR_MESSAGE_CHARS_MAX, PYTHON_TRACEBACK_CHARS_MAX

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]")
_SQLSTATE = re.compile(r"SQLSTATE: (\w{5})")
# Syntax, names, rights and settings.
_WRITTEN_WRONG = ("42", "46", "0A")
_STACK = re.compile(r"\n\s*(?:at |\.\.\. \d+ more|Driver stacktrace:)")
_JAVA_HEAD = re.compile(r"\A(?:An error occurred while calling [^\n]*\n: )?(?:[\w.$]+(?:Exception|Error): )+")
_STAGE_HEAD = re.compile(
    r"\AJob aborted due to stage failure: .*?executor [\w.-]+\): (?:[\w.$]+(?:Exception|Error): )*", re.S
)
_TRACE = "Traceback (most recent call last):"
_SQLSTATE_END = re.compile(r"\s*SQLSTATE: \w{5}\s*\Z")
# The last line of a traceback: `package.SomeError: what happened`.
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w+)(?:: (.*))?\Z", re.M | re.S)
# Plans and repeated statements follow these lines; they are long, and say nothing that the first lines do not.
_TAIL = re.compile(r"\n(?:'?(?:Project|Filter|Aggregate|Join|Sort|Relation|SubqueryAlias|GlobalLimit)\b|\s*:?\+-)")
_CANCELLED = ("SPARK_JOB_CANCELLED", "cancelled part of cancelled job group")
_LOST = (
    "ExecutorLostFailure",
    "FetchFailed",
    "Slave lost",
    "Could not find a executor",
    "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND",
)
_FULL = ("No space left on device", "Disk quota exceeded")


class JobInvalid(ToolFailed):
    """A job that cannot be done as it is written."""

    def __init__(self, message: str, code: str, *, kind: str = "config") -> None:
        super().__init__(Failure(kind=kind, code=code, message=bounded(message)))


def bounded(text: str, chars_max: int = ERROR_MESSAGE_CHARS_MAX) -> str:
    text = text if len(text) <= chars_max else text[: chars_max - 1] + "…"
    return text.encode("utf-8", "replace").decode()


def describe(error: BaseException, *, filename: str | None = None, where: str = "") -> tuple[Failure, str | None]:
    """The failure and, of Python code, its traceback.  `filename` is what the user's program was compiled as."""
    if isinstance(error, ToolFailed):
        return error.failure, None
    if isinstance(error, TypeUnsupported):
        return Failure(kind="schema", code="SPARK_TYPE_UNSUPPORTED", message=_told(where, str(error))), None
    is_of_java = isinstance(error, Py4JJavaError | PySparkException)
    if isinstance(error, PythonException) or (is_of_java and _TRACE in _text(error)):
        return _of_worker(error, where)
    if isinstance(error, Py4JJavaError | PySparkException) and not _is_raised_by_python(error):
        return _of_spark(error, where), _user_frames(error, filename)
    name = type(error).__name__
    failure = Failure(
        kind="python",
        code=f"PY_{name}",
        message=_told(where, _text(error) or name),
        exception_type=name,
        details=_place(error, filename),
    )
    return failure, _user_frames(error, filename)


def _is_raised_by_python(error: BaseException) -> bool:
    """Whether it is PySpark that complains about a call, and not Spark about its work."""
    return isinstance(error, TypeError | ValueError | AttributeError | AssertionError) and not isinstance(
        error, AnalysisException | ParseException
    )


# --- Spark -----------------------------------------------------------------------------------------------


def _of_spark(error: Py4JJavaError | PySparkException, where: str) -> Failure:
    full = _text(error)
    text = _first_lines(full)
    found = _CONDITION.search(text)
    condition = _condition(error) or (found[1] if found else None)
    name = type(error).__name__
    if any(mark in full for mark in _CANCELLED):
        return Failure(kind="cancelled", code="SPARK_CANCELLED", message="the job was cancelled")
    if any(mark in full for mark in _FULL):
        message = _told(where, f"no room is left for what Spark writes: {text}")
        return Failure(kind="storage_quota", code="SPARK_NO_SPACE", message=message, exception_type=name)
    if any(mark in full for mark in _LOST):
        message = _told(where, text)
        return Failure(
            kind="connection", code="SPARK_EXECUTOR_LOST", message=message, retryable=True, exception_type=name
        )
    state = _SQLSTATE.search(full)
    is_written_wrong = state is not None and state[1].startswith(_WRITTEN_WRONG)
    kind = "config" if is_written_wrong or isinstance(error, AnalysisException | ParseException) else "transform"
    code = f"SPARK_{condition.split('.')[0]}" if condition else "SPARK_TASK_FAILED"
    details: dict[str, object] = {"condition": condition} if condition and "." in condition else {}
    return Failure(kind=kind, code=code, message=_told(where, text), exception_type=name, details=details)


def _condition(error: BaseException) -> str | None:
    if isinstance(error, PySparkException) and not isinstance(error, UnknownException):
        condition = error.getCondition()
        return condition if isinstance(condition, str) and condition else None
    return None


def _first_lines(text: str) -> str:
    """What Spark says, without the classes around it, its stack and its plans."""
    text = _STACK.split(text, maxsplit=1)[0]
    text = _JAVA_HEAD.sub("", text)
    text = _STAGE_HEAD.sub("", text)
    return _TAIL.split(text, maxsplit=1)[0].strip().removesuffix(";")


# --- Python ----------------------------------------------------------------------------------------------


def _of_worker(error: BaseException, where: str) -> tuple[Failure, str]:
    """An exception in a function or a data source that ran in a process of Spark's, which hands on its traceback as
    text."""
    _, mark, rest = _STACK.split(_text(error), maxsplit=1)[0].rpartition(_TRACE)
    told, trace = told_failure(f"{mark}{_SQLSTATE_END.sub('', rest)}".strip())
    if told is not None:
        return replace(told, message=_told(where, told.message)), _tail(trace)
    raised = [line for line in trace.splitlines() if line and not line[0].isspace()]
    found = _RAISED.match(raised[-1]) if raised else None
    name = found[1] if found else "Exception"
    message = (found[2] if found else None) or name
    failure = Failure(kind="python", code=f"PY_{name}", message=_told(where, message), exception_type=name)
    return failure, _tail(trace)


def _user_frames(error: BaseException, filename: str | None) -> str | None:
    if filename is None:
        return None
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename]
    if not frames and not isinstance(error, SyntaxError):
        return None
    lines = ["Traceback (most recent call last):\n", *traceback.StackSummary.from_list(frames).format()]
    if isinstance(error, SyntaxError):
        lines += traceback.format_exception_only(error)
    else:
        lines.append(f"{type(error).__name__}: {_first_lines(_text(error))}\n")
    return _tail("".join(lines))


def _place(error: BaseException, filename: str | None) -> dict[str, object]:
    if isinstance(error, SyntaxError):
        return {"line": error.lineno} if error.filename == filename and error.lineno else {}
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename]
    return {"line": lines[-1]} if lines else {}


def _tail(text: str) -> str:
    excess = len(text) - PYTHON_TRACEBACK_CHARS_MAX
    text = text if excess <= 0 else "…" + text[excess + 1 :]
    return text.encode("utf-8", "replace").decode()


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # user code: `__str__` may do anything
        return ""


def _told(where: str, text: str) -> str:
    return bounded(f"{where}: {text}" if where else text)
