"""The result of a loop (dsl §4.7): its summary, and its rows, each of them a result.  Nothing concatenates them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from noetl.core.expression.views.absence import put
from noetl.core.expression.views.base import MISSING, Composed, Lazy, Made, Path, View, bare, data_of, find, get
from noetl.core.expression.views.pipelines import (
    FailedView,
    failed_view,
    found,
    kept_pipeline,
    pipeline_result,
    with_parts,
)
from noetl.core.expression.views.results import SELF, plain_of, view_of


def loop_summary(document: Mapping[str, Any]) -> dict[str, object]:
    """The result of a loop as it is kept, without its rows."""
    stats = {name: document[name] for name in ("total", "success", "failed")}
    summary = {"stats": stats, "count": document.get("count", document["total"]), "status": document["status"]}
    return {**summary, **{name: document[name] for name in ("fanin", "dead_letter") if name in document}}


Record = Mapping[str, Any] | None
"""How the outcome of a row is kept: `{"v": value}` of a single tool, `{"p": {order, results}}` of a list pipeline, with
`"e"` beside it when the row failed, or null when it never ran."""


def row_result(record: Record) -> object:
    """What `results[i]` of a loop is, as plain data."""
    if record is None:
        return None
    kept = record.get("p")
    value = record.get("v") if kept is None else pipeline_result(kept["order"], kept["results"])
    return failed_view(record["e"], value) if "e" in record else value


def row_view(record: object) -> object:
    """What a template sees of a row: what the step's result would be without the loop.  The record may be lazy."""
    if record is None:
        return None
    kept = get(record, "p")
    beside: Any = bare(found(record, "x"))
    view = view_of(found(record, "v"), extras=beside) if kept is MISSING else kept_pipeline(kept)
    if get(record, "e") is MISSING:
        return view
    error: Any = bare(found(record, "e"))
    return FailedView(error, view)


class ResultRows(Lazy):
    """`results` of a loop: its rows in item order.  An index opens one of them; nothing concatenates them."""

    __slots__ = ("_is_data", "_records")
    _records: Any
    _is_data: bool

    def __init__(self, records: Any, *, is_data: bool = False) -> None:
        """`records` is a list, or a lazy one."""
        put(self, "_records", records)
        put(self, "_is_data", is_data)

    def _inner(self) -> Any:
        return self._records

    def _row(self, record: object) -> object:
        view = row_view(record)
        return data_of(view) if self._is_data else view

    def _plain(self) -> object:
        records: Any = bare(self._records)
        return [row_result(record) for record in records]

    def _holds_parts(self) -> bool:
        return isinstance(self._records, View) and self._records._holds_parts()

    def _parted(self) -> object:
        records: Any = self._records._parted() if isinstance(self._records, View) else self._records
        return [row_result(record) for record in records]

    def _sample(self) -> object:
        return []

    def _is_keyed(self) -> bool:
        return False

    def _bytes_min(self) -> int:
        return 2 * len(self._records)

    def _operand(self) -> object:
        return Made(self)

    def _cut(self, bounds: slice) -> object:
        records: Any = self._records
        cut: Any = records._cut(bounds) if isinstance(records, View) else records[bounds]
        return Made(self._row(record) for record in cut)

    def _data(self) -> object:
        return ResultRows(self._records, is_data=True)

    def _loaded(self) -> object:
        return ResultRows(bare(self._records), is_data=self._is_data)

    def __iter__(self) -> Iterator[object]:
        records: Any = with_parts(self._records)
        return iter([self._row(record) for record in records])

    def __contains__(self, item: object) -> bool:
        rows: Any = self._plain()
        return item in rows

    def _find(self, key: object) -> object:
        if not isinstance(key, int):
            return MISSING
        record = find(self._records, key)
        return record if record is MISSING else self._row(record)

    def _place(self, key: object) -> Path | None:
        return (key,) if type(key) is int and -len(self) <= key < len(self) else None


class LoopView(Composed):
    """The result of a loop: its summary, and its rows as `results`, `data` and `result`."""

    __slots__ = ("_aliases", "_extras", "_is_data", "_rows", "_summary")
    _summary: Mapping[str, object]
    _rows: ResultRows
    _extras: Mapping[str, object]
    _aliases: bool
    _is_data: bool

    def __init__(
        self,
        summary: Mapping[str, object],
        rows: ResultRows,
        *,
        extras: Mapping[str, object] | None = None,
        aliases: bool = True,
        is_data: bool = False,
    ) -> None:
        put(self, "_summary", summary)
        put(self, "_rows", rows)
        put(self, "_extras", extras or {})
        put(self, "_aliases", aliases and not is_data)
        put(self, "_is_data", is_data)

    def _with(self, *, aliases: bool, is_data: bool = False) -> LoopView:
        return LoopView(self._summary, self._rows, extras=self._extras, aliases=aliases, is_data=is_data)

    def _inner(self) -> Any:
        return {**self._summary, "results": self._rows}

    def _plain(self) -> object:
        return {**self._summary, "results": bare(self._rows)}

    def _holds_parts(self) -> bool:
        return self._rows._holds_parts()

    def _parted(self) -> object:
        return {**self._summary, "results": self._rows._parted()}

    def _loaded(self) -> object:
        rows: Any = self._rows._loaded()
        return LoopView(
            self._summary, rows, extras=plain_of(self._extras), aliases=self._aliases, is_data=self._is_data
        )

    def _bytes_min(self) -> int:
        return self._rows._bytes_min()

    def _self(self) -> object:
        return self._rows

    def _find(self, key: object) -> object:
        if key == "results":
            return self._rows._data() if self._is_data else self._rows
        value = get(self._summary, key)
        if value is MISSING and not self._is_data:
            value = get(self._extras, key)
        return self._rows if value is MISSING and self._aliases and key in SELF else value

    def _place(self, key: object) -> Path | None:
        if key == "results" or key in self._summary:
            return (key,)  # type: ignore[return-value]
        return ("results",) if self._aliases and key in SELF and key not in self._extras else None
