"""The outcome of a step as `output` (dsl §8.4): from what its event says, and from its result where that has the facts.

The worker that ran the step and one that is asked about it later use the same code, so that it does not matter who
evaluates an expression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.expression import FailedView, Lazy, OutputView, PipelineView, bare, find, unaliased
from noetl.core.expression.views import MISSING
from noetl.core.expression.views.absence import put
from noetl.core.expression.views.results import ResultView, is_http, is_mapping
from noetl.core.results.failures import error_of
from noetl.engine.stored.reader import StepView


def completing_names(step: str, envelope: Mapping[str, Any], view: object, traceback: object = None) -> dict[str, Any]:
    """The completing step under its own name and as `output`."""
    output = output_of(envelope, view, traceback)
    return {
        step: view,
        "steps": {step: view},
        "output": output,
        "outcome": output,
        "result": view,
        "response": view,
        "error": output["error"],
    }


def output_of(envelope: Mapping[str, Any], view: object, traceback: object = None) -> OutputView:
    """`view` is the step's result as templates see it; it is opened only when somebody looks at it."""
    error = error_of(envelope.get("error")) if envelope["status"] == "error" else None
    if traceback is None and isinstance(view, StepView) and envelope.get("traceback") is not None:
        traceback = view._reader.text(envelope["traceback"])
    data = Partial(view)
    return OutputView(
        status=envelope["status"],
        data=data,
        ref=envelope["ref"] if envelope.get("stored") is not None else None,
        error=error,
        http=HttpFacts(data),
        pg=_pg(error),
        py=_python(error, traceback),
        meta=envelope.get("meta"),
    )


def _pg(error: Mapping[str, Any] | None) -> dict[str, object] | None:
    sqlstate = error["pg_code"] if error is not None else None
    return {"code": sqlstate, "sqlstate": sqlstate} if sqlstate else None


def _python(error: Mapping[str, Any] | None, traceback: object) -> dict[str, object] | None:
    if error is None or error["kind"] != "python":
        return None
    return {"exception_type": error["exception_type"], "message": error["message"], "traceback": traceback}


class Partial(Lazy):
    """The result without what a failure adds to it: what `output.data` is."""

    __slots__ = ("_view",)
    _view: object

    def __init__(self, view: object) -> None:
        put(self, "_view", view)

    def _inner(self) -> Any:
        view = self._view._inner() if isinstance(self._view, StepView) else self._view
        return unaliased(view._view if isinstance(view, FailedView) else view)


class HttpFacts(Lazy):
    """`output.http`: status and headers, when the task that ended last was an http one."""

    __slots__ = ("_partial",)
    _partial: Partial

    def __init__(self, partial: Partial) -> None:
        put(self, "_partial", partial)

    def _inner(self) -> Any:
        raw = self._partial._inner()
        if isinstance(raw, PipelineView) and raw._order:
            raw = raw._results[raw._order[-1]]
        elif isinstance(raw, ResultView):
            raw = raw._raw
        if not is_mapping(raw) or not is_http(raw):
            return None
        return {"status": _found(raw, "status_code"), "headers": _found(raw, "headers")}


def _found(raw: object, key: str) -> object:
    value = find(raw, key)
    return None if value is MISSING else bare(value)
