"""Whether values fit where their types do: what the server would cut or round without a word is refused here.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from noetl.adapters.spark.sources.postgres.options import wrong
from noetl.adapters.spark.sources.postgres.types import Column
from noetl.core.errors import ToolFailed

_TEXTS = frozenset(("varchar", "bpchar"))
_TIMES = frozenset(("timestamp", "timestamptz"))
_TIME_DIGITS = 6
# The modifier of a text counts a header of four bytes that is not there.
_HEADER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What values of a column must keep to.  It travels with the tasks."""

    number: int
    name: str
    title: str
    """The target's type as people write it."""
    is_key: bool = False
    length: int | None = None
    """Characters of a text.  The server cuts blanks behind them."""
    step: int | None = None
    """Microseconds of which a time is a multiple.  The server rounds."""


def bounds_of(struct: StructType, columns: Sequence[Column], key: Sequence[str]) -> tuple[Bound, ...]:
    """Of those columns that have one."""
    by_name = {column.name: column for column in columns}
    found = (_bound(number, by_name[name], name in key) for number, name in enumerate(struct.fieldNames()))
    return tuple(one for one in found if one.is_key or one.length is not None or one.step is not None)


def _bound(number: int, column: Column, is_key: bool) -> Bound:
    type_ = column.type if column.element is None else column.element
    length = column.modifier - _HEADER if type_ in _TEXTS and column.modifier >= _HEADER else None
    step = 10 ** (_TIME_DIGITS - column.modifier) if type_ in _TIMES and 0 <= column.modifier < _TIME_DIGITS else None
    return Bound(number=number, name=column.name, title=column.title, is_key=is_key, length=length, step=step)


def check_values(batch: pa.RecordBatch, bounds: Sequence[Bound], target: str) -> None:
    """Raises ToolFailed with the name of the column, and no value."""
    for bound in bounds:
        values: Any = batch.column(bound.number)
        if bound.is_key and values.null_count:
            raise _refused(bound, f"it is in key, and a row for {target} has none", "KEY_MISSING")
        if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
            values = values.flatten()
        if bound.length is not None and (pc.max(pc.utf8_length(values)).as_py() or 0) > bound.length:
            raise _refused(
                bound, f"a text is longer than {bound.title} of {target}: cut it, or trim it", "VALUE_MISFIT"
            )
        if bound.step is not None and not _are_multiples(values, bound.step):
            raise _refused(bound, f"a time has more digits than {bound.title} of {target}: round it", "VALUE_MISFIT")


def _are_multiples(times: Any, step: int) -> bool:
    numbers = times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64())
    # Division rounds towards zero, so the rest is nothing on both sides of 1970 or it is something.
    rest = pc.subtract(numbers, pc.multiply(pc.divide(numbers, step), step))
    return pc.all(pc.equal(rest, 0)).as_py() is not False


def _refused(bound: Bound, message: str, code: str) -> ToolFailed:
    return wrong(f"column {bound.name!r}: {message}", code)
