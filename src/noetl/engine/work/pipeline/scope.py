"""The names of one pipeline run, and which of them stands above which (dsl §7.3): reserved names, the iterator, labels
of tasks and names that their `set` made, keys of ctx, steps, the workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.expression import OutputView, Scope, plain, view_of
from noetl.engine.work.pipeline.outcome import TaskOutcome, error_document
from noetl.engine.work.pipeline.pointers import Pointer, digests_of, pointers_of
from noetl.engine.work.pipeline.run import Run


class PipelineScope:
    """`names` is what templates are given: flat, because every lookup goes there.  What is bound while the pipeline
    runs is bound here, so that it never hides what stands above it.

    `task_pointers` has, by label, the references of results that are stored already; `_prev` is the one of the task
    that ended last.  Both belong to one run: they begin empty and come back with a resume point."""

    def __init__(self, names: dict[str, object], above: frozenset[str]) -> None:
        self.names = names
        self._above = above
        self._own: set[str] = set()
        self.task_pointers: dict[str, tuple[Pointer, ...]] = {}
        self._prev: tuple[Pointer, ...] = ()

    def restore(self, run: Run) -> None:
        """The names of a run that begins, or that goes on behind its resume point."""
        names = self.names
        views = {label: view_of(value, extras=run.stored.get(label)) for label, value in run.results.items()}
        names["iter"] = {**mapping(names.get("iter")), **run.scopes["iter"]}
        names["step"] = run.scopes["step"]
        names["results"] = views
        names["_prev"] = None
        if run.order:
            last = run.order[-1]
            names["_prev"] = run.results[last]
            names["output"] = names["outcome"] = _output(run.results[last], run.failures.get(last))
            names["error"] = run.failures.get(last)
        for name, value in (*views.items(), *run.scopes["local"].items()):
            self.own(name, value)
        self.task_pointers, self._prev = {}, ()
        for label in run.order:
            self._point(label, run.results[label], (run.stored.get(label) or {}).get("_ref"))

    def outcome(self, run: Run, label: str, outcome: TaskOutcome) -> None:
        """What a task gave, for its rules, its writes and the tasks behind it."""
        names, output = self.names, outcome.output()
        view = outcome.view()
        self.own(label, view)
        names["results"] = {**mapping(names.get("results")), label: view}
        names["_prev"] = outcome.value
        names["output"] = names["outcome"] = output
        names["error"] = None if outcome.failure is None else plain(output["error"])
        self._point(label, outcome.value, outcome.reference)
        run.failures.pop(label, None)
        if outcome.failure is not None:
            run.failures[label] = error_document(outcome.failure)

    def _point(self, label: str, value: object, reference: object) -> None:
        found = pointers_of(value, reference)
        self.task_pointers.pop(label, None)
        if found:
            self.task_pointers[label] = found
        self._prev = found

    def producer_of(self, sha256: object) -> str | None:
        """The task of this run that stored something, the last one first."""
        for label, references in reversed(self.task_pointers.items()):
            if sha256 is not None and any(sha256 in digests_of(reference) for reference in references):
                return label
        return None

    def own(self, name: str, value: object) -> None:
        """A name that a task made: its label, or a key of its `set`."""
        if name not in self._above:
            self._own.add(name)
            self.names[name] = value

    def context(self, name: str, variables: Mapping[str, object]) -> None:
        """A key of ctx was written."""
        names = self.names
        names["ctx"] = Scope(variables, mapping(names["workload"]), mapping(names["steps"]))
        if name not in self._above and name not in self._own:
            names[name] = variables[name]

    def with_input(self, given: Mapping[str, object]) -> Mapping[str, object]:
        """The names of a task whose input is not private to its tool: the keys of its input are names of its own."""
        own = {name: value for name, value in given.items() if name not in self._above}
        return {**self.names, **own} if own else self.names


def _output(value: object, error: Mapping[str, object] | None) -> OutputView:
    """The outcome of a task that ended before the resume point, as far as that kept it."""
    if error is None:
        return OutputView(status="ok", data=value)
    partial = {name: part for name, part in mapping(value).items() if name not in ("status", "error")}
    return OutputView(status="error", data=partial or None, error=error)


def mapping(value: Any) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}
