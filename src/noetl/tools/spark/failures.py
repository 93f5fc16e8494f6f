"""What goes wrong around a job, as recorded data (dsl §8.4).  What goes wrong in it its driver tells."""

from __future__ import annotations

from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import ERROR_MESSAGE_CHARS_MAX


def failed(kind: str, message: str, code: str | None = None) -> ToolFailed:
    """A failure that is known without asking Spark."""
    text = " ".join(f"spark: {message}".split())
    text = text if len(text) <= ERROR_MESSAGE_CHARS_MAX else text[: ERROR_MESSAGE_CHARS_MAX - 1] + "…"
    return ToolFailed(Failure(kind=kind, code=code, message=text.encode("utf-8", "replace").decode()))


def timeout_failure(seconds: float, how_far: str) -> Failure:
    """The time limit of the task has passed; nothing of the job runs any more."""
    message = (
        f"spark: the time limit of the task, {seconds:g} s, has passed: {how_far}. Raise `timeout` if it needs longer"
    )
    return Failure(kind="timeout", code="SPARK_TIMEOUT", message=message, retryable=True)
