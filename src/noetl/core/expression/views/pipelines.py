"""Results made of others (dsl §8.3): of the tasks of a list pipeline, of what was done before something failed.
Nothing is merged that nobody reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl.core.expression.views.absence import put
from noetl.core.expression.views.base import (
    COUNTED_MAX,
    MISSING,
    Composed,
    Lazy,
    Path,
    View,
    bare,
    bytes_min,
    data_of,
    find,
    get,
    loaded,
    place_of,
    unaliased,
)
from noetl.core.expression.views.results import SELF, ResultView, is_mapping, plain_of, view_of

# --- a list pipeline -------------------------------------------------------------------------------------


def pipeline_result(order: Sequence[str], results: Mapping[str, object]) -> dict[str, object]:
    """The result of a list pipeline: labels, the same map under `results`, and the merged keys of mappings."""
    merged: dict[str, object] = {}
    for label in order:
        value = results[label]
        if isinstance(value, dict):
            merged.update({key: item for key, item in value.items() if key not in results})
    last = results[order[-1]] if order else None
    if order and not isinstance(last, dict):
        merged["data"] = last
    return {**merged, **results, "results": dict(results), "_prev": last}


class PipelineView(Composed):
    """The result of a list pipeline, without merging what nobody reads.

    Task results are result views themselves (`s.pull.x` falls through to the body of `pull`), except in the plain form:
    that is the data, as `{{ s }}` hands it over.  `tasks` has extras of single tasks, by label."""

    __slots__ = ("_aliases", "_extras", "_is_data", "_order", "_results", "_tasks")
    _order: Sequence[str]
    _results: Mapping[str, object]
    _extras: Mapping[str, object]
    _tasks: Mapping[str, Mapping[str, object]]
    _aliases: bool
    _is_data: bool

    def __init__(
        self,
        order: Sequence[str],
        results: Mapping[str, object],
        *,
        extras: Mapping[str, object] | None = None,
        tasks: Mapping[str, Mapping[str, object]] | None = None,
        aliases: bool = True,
        is_data: bool = False,
    ) -> None:
        put(self, "_order", order)
        put(self, "_results", results)
        put(self, "_extras", extras or {})
        put(self, "_tasks", tasks or {})
        put(self, "_aliases", aliases and not is_data)
        put(self, "_is_data", is_data)

    def _with(self, *, aliases: bool, is_data: bool = False) -> PipelineView:
        return PipelineView(
            self._order, self._results, extras=self._extras, tasks=self._tasks, aliases=aliases, is_data=is_data
        )

    def _inner(self) -> Any:
        return self._plain()

    def _plain(self) -> object:
        return pipeline_result(self._order, plain_of(self._results))

    def _holds_parts(self) -> bool:
        return any(isinstance(result, View) and result._holds_parts() for result in self._results.values())

    def _parted(self) -> object:
        return pipeline_result(self._order, {label: with_parts(result) for label, result in self._results.items()})

    def _loaded(self) -> object:
        return PipelineView(
            self._order,
            plain_of(self._results),
            extras=plain_of(self._extras),
            tasks={label: plain_of(extras) for label, extras in self._tasks.items()},
            aliases=self._aliases,
            is_data=self._is_data,
        )

    def __bool__(self) -> bool:
        return True

    def _bytes_min(self) -> int:
        return sum(bytes_min(result, COUNTED_MAX) for result in self._results.values())

    def _own(self, key: object) -> object:
        """A key of the result itself."""
        if key == "results":
            return _TaskResults(self)
        if key == "_prev":
            return self._results[self._order[-1]] if self._order else None
        if isinstance(key, str) and key in self._results:
            return self._task(key)
        return self._merged(key)

    def _task(self, label: str) -> object:
        raw = self._results[label]
        return raw if self._is_data else view_of(raw, extras=self._tasks.get(label))

    def _merged(self, key: object) -> object:
        if key == "data" and self._order and not is_mapping(self._results[self._order[-1]]):
            return self._results[self._order[-1]]
        for label in reversed(self._order):
            raw = self._results[label]
            value = get(raw, key) if is_mapping(raw) else MISSING
            if value is not MISSING:
                return value
        return MISSING

    def _find(self, key: object) -> object:
        value = self._own(key)
        if value is MISSING and not self._is_data:
            value = get(self._extras, key)
        if value is MISSING and self._aliases:
            if key in SELF:
                return self._data()
            if key == "status":
                return "ok"
        return value

    def _place(self, key: object) -> Path | None:
        if not isinstance(key, str):
            return None
        if self._own(key) is not MISSING:
            return (key,)
        return () if self._aliases and key in SELF and key not in self._extras else None


class _TaskResults(Lazy):
    """`results` of a list pipeline: the results of its tasks by label."""

    __slots__ = ("_pipeline",)
    _pipeline: PipelineView

    def __init__(self, pipeline: PipelineView) -> None:
        put(self, "_pipeline", pipeline)

    def _inner(self) -> Any:
        return self._pipeline._results

    def _plain(self) -> object:
        return plain_of(self._pipeline._results)

    def _holds_parts(self) -> bool:
        return self._pipeline._holds_parts()

    def _parted(self) -> object:
        return {label: with_parts(result) for label, result in self._pipeline._results.items()}

    def _bytes_min(self) -> int:
        return self._pipeline._bytes_min()

    def _sample(self) -> object:
        return {}

    def _is_keyed(self) -> bool:
        return True

    def _find(self, key: object) -> object:
        pipeline = self._pipeline
        return pipeline._task(key) if isinstance(key, str) and key in pipeline._results else MISSING

    def _place(self, key: object) -> Path | None:
        return (key,) if isinstance(key, str) and key in self._pipeline._results else None

    def _data(self) -> object:
        return _TaskResults(self._pipeline._with(aliases=False, is_data=True))

    def _loaded(self) -> object:
        pipeline: Any = self._pipeline._loaded()
        return _TaskResults(pipeline)


def with_parts(value: object) -> object:
    """A result as data in which parts that are stored on their own stay views."""
    return value._parted() if isinstance(value, View) else value


def kept_pipeline(document: object, extras: Mapping[str, object] | None = None) -> PipelineView:
    """The view of a list pipeline as it is kept; the document may be lazy."""
    order: Any = bare(found(document, "order"))
    results = {label: found(found(document, "results"), label) for label in order}
    tasks: Any = bare(found(document, "x"))
    return PipelineView(order, results, extras=extras, tasks=tasks)


def found(mapping: object, key: str) -> Any:
    """What a kept document has under a key, or None."""
    value = get(mapping, key)
    return None if value is MISSING else value


# --- what failed -----------------------------------------------------------------------------------------


def failed_view(error: Mapping[str, object] | None, partial: object) -> dict[str, object]:
    """The plain value of what failed: its error beside what there is of a mapping."""
    base = dict(partial) if isinstance(partial, dict) else {}
    return {**base, "status": "error", "error": error}


class FailedView(Composed):
    """A failed result: `status` and `error` beside what was done before; an http body is searched as ever."""

    __slots__ = ("_aliases", "_error", "_is_data", "_view")
    _view: Any
    _error: Mapping[str, object] | None
    _aliases: bool
    _is_data: bool

    def __init__(
        self, error: Mapping[str, object] | None, partial: object, *, aliases: bool = True, is_data: bool = False
    ) -> None:
        """`partial` is the view of what there is; only that of a mapping counts."""
        put(self, "_view", unaliased(partial) if is_mapping(partial) else ResultView({}, aliases=False))
        put(self, "_error", error)
        put(self, "_aliases", aliases and not is_data)
        put(self, "_is_data", is_data)

    def _with(self, *, aliases: bool, is_data: bool = False) -> FailedView:
        return FailedView(self._error, self._view, aliases=aliases, is_data=is_data)

    def _inner(self) -> Any:
        return self._plain()

    def _plain(self) -> object:
        return failed_view(self._error, bare(self._view))

    def _holds_parts(self) -> bool:
        return bool(self._view._holds_parts())

    def _parted(self) -> object:
        return failed_view(self._error, self._view._parted())

    def _bytes_min(self) -> int:
        return bytes_min(self._view, COUNTED_MAX)

    def _loaded(self) -> object:
        return FailedView(self._error, loaded(self._view), aliases=self._aliases, is_data=self._is_data)

    def __bool__(self) -> bool:
        return True

    def _find(self, key: object) -> object:
        if key == "status":
            return "error"
        if key == "error":
            return self._error
        value = find(data_of(self._view) if self._is_data else self._view, key)
        if value is MISSING and self._aliases and key in SELF:
            own = self._view._self()
            return self._data() if own is MISSING else own
        return value

    def _place(self, key: object) -> Path | None:
        return None if key in ("status", "error") else place_of(self._view, key)
