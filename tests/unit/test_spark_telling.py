"""What a source says gets through the text of a traceback."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest

from noetl.adapters.spark.sources.telling import told, told_failure
from noetl.core.errors import Failure, LedgerUnavailable, NoetlError, PayloadMissing, RequestInvalid, ToolFailed

BUSY = Failure(
    kind="rate_limit", code="HTTP_429", message="two\nlines: {}", retryable=True, status=429, retry_after=2.5
)


class Source:
    def __init__(self, error: Exception) -> None:
        self._error = error

    @told
    def schema(self) -> str:
        raise self._error

    @told
    def read(self) -> Iterator[int]:
        yield 1
        self.schema()


def trace_of(error: Exception, *, is_reading: bool = False) -> str:
    """As Spark hands it on."""
    source = Source(error)
    try:
        _ = list(source.read()) if is_reading else [source.schema()]
    except type(error):
        return traceback.format_exc()
    raise AssertionError("it does not fail")


@pytest.mark.parametrize("is_reading", [False, True])
def test_a_failure_comes_back_as_it_was_and_once(is_reading: bool) -> None:
    trace = trace_of(ToolFailed(BUSY), is_reading=is_reading)
    assert trace.count("noetl-failure: ") == 1
    found, rest = told_failure(trace)
    assert found == BUSY
    assert rest.endswith("two\nlines: {}")


@pytest.mark.parametrize(
    ("error", "kind", "is_retryable"),
    [
        (RequestInvalid("what"), "config", False),
        (PayloadMissing("what"), "missing_reference", False),
        (LedgerUnavailable("what"), "db_connection", True),
    ],
)
def test_other_errors_of_ours_have_a_kind(error: NoetlError, kind: str, is_retryable: bool) -> None:
    found, _ = told_failure(trace_of(error))
    assert found == Failure(kind=kind, code=error.code, message="what", retryable=is_retryable)


@pytest.mark.parametrize("mark", ["{}", '{"kind": 1}', '{"kind": "a", "code": []}', "{no}"])
def test_a_mark_of_somebody_else_means_nothing(mark: str) -> None:
    found, rest = told_failure(f"Traceback\nnoetl.core.errors.ToolFailed: what\nnoetl-failure: {mark}\n")
    assert found is None
    assert "noetl-failure" not in rest


def test_what_is_not_of_ours_is_left_alone() -> None:
    trace = trace_of(ValueError("what"))
    assert told_failure(trace) == (None, trace)
