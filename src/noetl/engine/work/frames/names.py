"""What templates and user code see of a row, or of a whole frame (dsl §4.3, §4.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl.core.playbook.compiled import CompiledStep


class FrameNames:
    """Of one frame.  How many rows a cursor will give nobody knows: `_total` is null there, and no row is the last.
    `reserved` names stand above the iterator, which is then only known as a member of `iter`."""

    def __init__(self, step: CompiledStep, stage: Mapping[str, Any], *, reserved: frozenset[str] = frozenset()) -> None:
        assert step.loop is not None
        self._iterator = step.loop.loop.iterator
        self._is_hidden = self._iterator in reserved
        self._is_cursor = "cursor" in stage or "claimed" in stage
        self._first: int = stage["first"]
        self._number: int = stage["number"] - 1
        self._total: int | None = None if self._is_cursor else stage["total"]
        self._done: int = stage["done"]
        self._injected = _names_in_code(step, (self._iterator, "_index", "_total"))

    def row(self, names: Mapping[str, object], index: int, items: Sequence[object], *, done: int) -> dict[str, object]:
        """The names of one row; `done` rows of this frame have ended."""
        place = index - self._first
        own = self._common(names, index, index + 1 == self._total, items[place], done)
        iteration = own["iter"]
        iteration["_frame_index"], iteration["_frame_row_index"] = self._number, place
        if self._is_cursor:
            own["frame"] = self._frame(items)
        return own

    def whole(self, names: Mapping[str, object], items: Sequence[object]) -> dict[str, object]:
        """The names of a pipeline that runs once for all rows of the frame."""
        rows = list(items)
        own = self._common(names, self._number, self._first + len(rows) == self._total, rows, 0)
        own["iter"] |= {
            f"{self._iterator}_rows": rows,
            "_frame_index": self._number,
            "_frame_row_count": len(rows),
        }
        own["frame"] = self._frame(rows)
        return own

    def injected(self, index: int, item: object) -> dict[str, object]:
        """What user code may read without being given it as input."""
        values = {self._iterator: item, "_index": index, "_total": self._total}
        return {name: values[name] for name in self._injected}

    def _common(
        self, names: Mapping[str, object], index: int, is_last: bool, item: object, done: int
    ) -> dict[str, Any]:
        """Called for every row: flat, because it counts."""
        total, is_first = self._total, index == 0
        iteration = {
            self._iterator: item,
            "index": index,
            "_index": index,
            "_first": is_first,
            "_last": is_last,
            "_total": total,
        }
        outer = names.get("iter")
        if outer and isinstance(outer, Mapping):
            iteration = {**outer, **iteration}
        own: dict[str, Any] = {
            **names,
            "iter": iteration,
            "loop": {"index": index, "first": is_first, "last": is_last, "length": total, "done": self._done + done},
            "_index": index,
            "loop_index": index,
            "_total": total,
        }
        if not self._is_hidden:
            own[self._iterator] = item
        return own

    def _frame(self, rows: Sequence[object]) -> dict[str, object]:
        return {"rows": rows, "row_count": len(rows), "index": self._number, "base_index": self._first}


def _names_in_code(step: CompiledStep, names: tuple[str, ...]) -> tuple[str, ...]:
    """Names that user code may read without being given them as input; what it does not mention is not sent."""
    if any(task.has_script or "code_b64" in task.fields for task in step.tasks):
        return names
    code = " ".join(str(task.fields["code"].source) for task in step.tasks if "code" in task.fields)
    return tuple(name for name in names if name in code)
