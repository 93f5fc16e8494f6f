"""The result of a task that ran SQL (dsl §9.4): the last statement's at the top, and each one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from noetl.ports.tool import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementResult:
    """What one statement gave: rows that are stored already, or how many rows it changed."""

    row_count: int
    columns: tuple[str, ...] | None = None
    """None for a statement without a result set."""
    reference: Mapping[str, object] | None = None
    """Where the rows are."""

    def document(self) -> dict[str, object]:
        if self.columns is None:
            return {"status": "success", "row_count": self.row_count, "affected_rows": self.row_count}
        return {"status": "success", "rows": None, "row_count": self.row_count, "columns": list(self.columns)}


def value_of(
    results: Sequence[StatementResult], *, is_failed: bool
) -> tuple[dict[str, object] | None, dict[Place, Mapping[str, object]]]:
    """The value of the task and where its rows are.  Rows stand at two places and are stored once."""
    if is_failed and not results:
        return None, {}
    parts: dict[Place, Mapping[str, object]] = {}
    for number, result in enumerate(results):
        if result.reference is not None:
            parts[(f"command_{number}", "rows")] = result.reference
    last: dict[str, object] = {}
    if not is_failed:
        last = results[-1].document()
        if results[-1].reference is not None:
            parts[("rows",)] = results[-1].reference
    value = {
        **last,
        "status": "error" if is_failed else "success",
        "statement_count": len(results),
        **{f"command_{number}": result.document() for number, result in enumerate(results)},
    }
    return value, parts
