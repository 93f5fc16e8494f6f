"""`numeric` in Arrow: a decimal with the scale that the values have.

The driver does not tell the modifier of a column, but every value has its scale with it, and in `numeric(10, 2)` each
of them has two digits.  What no decimal can hold (`NaN`, `Infinity`, hundreds of digits) is kept as text, with all
digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from noetl.core.results.plain import NUMBERS, PLAIN_KEY, TYPE_KEY, WHOLE
from noetl.tools.postgres.tables.ways import Misfit, Way

_DIGITS_MAX = 76
_DIGITS_USUAL = 38


@dataclass(frozen=True, slots=True)
class Shape:
    """What the values of a column have in common: digits before and behind the point, and whether there were whole
    numbers without a point, and with one."""

    whole_digits: int = 0
    scale: int = 0
    has_bare: bool = False
    has_zeros: bool = False
    """A whole number that was written with zeros behind its point."""

    def joined(self, other: Shape) -> Shape:
        return Shape(
            max(self.whole_digits, other.whole_digits),
            max(self.scale, other.scale),
            self.has_bare or other.has_bare,
            self.has_zeros or other.has_zeros,
        )

    @property
    def digits(self) -> int:
        return self.whole_digits + self.scale


class Numerics:
    """Decimals of one shape."""

    def __init__(self, shape: Shape = Shape()) -> None:  # noqa: B008  (frozen)
        self._shape = shape
        is_usual = shape.digits <= _DIGITS_USUAL
        self.type = (pa.decimal128 if is_usual else pa.decimal256)(
            _DIGITS_USUAL if is_usual else _DIGITS_MAX, shape.scale
        )
        # A template sees 10 where the server has 10, and 10.0 where it has 10.00.  Where a column has both it sees
        # 10.0: the decimal type of a column has one scale.
        is_mixed = shape.scale > 0 and shape.has_bare and not shape.has_zeros
        self.metadata = {PLAIN_KEY: WHOLE} if is_mixed else {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numerics) and self.type == other.type and self.metadata == other.metadata

    __hash__ = None  # type: ignore[assignment]

    def array(self, values: Sequence[Any]) -> Any:
        texts = texts_of(values)
        shape = _shape_of(texts)
        if shape is None:
            raise Misfit(NumericTexts())
        shape = shape.joined(self._shape)
        if shape != self._shape:
            raise Misfit(Numerics(shape) if shape.digits <= _DIGITS_MAX else NumericTexts())
        return texts.cast(self.type)

    def values(self, array: Any) -> Sequence[Any]:
        found: list[Any] = array.to_pylist()
        return found

    def changed(self, array: Any, wider: Way) -> Any:
        if isinstance(wider, Numerics):
            return array.cast(wider.type)
        return wider.array(self.values(array))


class NumericTexts:
    """All digits as text, and what is no number too."""

    type = pa.string()
    metadata = {TYPE_KEY: "numeric", PLAIN_KEY: NUMBERS}  # noqa: RUF012  (never changed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumericTexts)

    __hash__ = None  # type: ignore[assignment]

    def array(self, values: Sequence[Any]) -> Any:
        return texts_of(values)

    def values(self, array: Any) -> Sequence[Any]:
        return [None if text is None else Decimal(text) for text in array.to_pylist()]

    def changed(self, array: Any, wider: Way) -> Any:
        return wider.array(self.values(array))


def texts_of(values: Sequence[Any]) -> Any:
    texts = pa.array([None if value is None else str(value) for value in values], pa.string())
    if pc.any(pc.match_substring(texts, "E")).as_py():
        texts = pa.array([None if value is None else format(value, "f") for value in values], pa.string())
    return texts


def _shape_of(texts: Any) -> Shape | None:
    """None when there is something else than numbers."""
    if pc.any(pc.match_substring(texts, "N")).as_py() or pc.any(pc.match_substring(texts, "I")).as_py():
        return None  # NaN, Infinity
    lengths = pc.utf8_length(texts)
    points = pc.find_substring(texts, ".")
    has_point = pc.greater_equal(points, 0)
    scales = pc.if_else(has_point, pc.subtract(pc.subtract(lengths, points), 1), 0)
    signs = pc.cast(pc.starts_with(texts, "-"), pa.int32())
    wholes = pc.subtract(pc.if_else(has_point, points, lengths), signs)
    zeros = pc.match_substring_regex(texts.filter(pc.ends_with(texts, "0")), r"\.0+$")
    return Shape(
        whole_digits=pc.max(wholes).as_py() or 0,
        scale=pc.max(scales).as_py() or 0,
        has_bare=pc.all(has_point).as_py() is False,
        has_zeros=bool(pc.any(zeros).as_py()),
    )
