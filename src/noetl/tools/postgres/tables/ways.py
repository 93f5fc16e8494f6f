"""How the values of one column are kept in Arrow, and how they are had back.

A column begins with the exact type.  When a value comes that this type cannot hold (`infinity`, a year before Christ,
an array in an array), the column takes a wider way, and what was kept before is made anew from its own values."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from noetl.core.codec import ordered_bytes
from noetl.core.results.plain import TYPE_KEY, json_value
from noetl.tools.postgres.values import Clock, Convert, Days, Interval, Json, Moment, ZonedMoment, plain

Values = Sequence[Any]

_JSON_DEPTH_SAFE = 200
_FEW = 64


class Misfit(Exception):
    """Some values do not fit; the way that holds them is `wider`."""

    def __init__(self, wider: Way) -> None:
        super().__init__()
        self.wider = wider


class Way(Protocol):
    """`type` and `metadata` are those of the field.  Two ways that are equal need no conversion."""

    @property
    def type(self) -> Any: ...

    @property
    def metadata(self) -> dict[str, str]: ...

    def array(self, values: Values) -> Any:
        """The values in Arrow.  Raises Misfit."""
        ...

    def values(self, array: Any) -> Values:
        """What `array` was made of."""
        ...

    def changed(self, array: Any, wider: Way) -> Any:
        """An array of this way in another one, which holds it."""
        ...


class _Way:
    def __init__(self, type_: Any, metadata: dict[str, str] | None = None) -> None:
        self.type = type_
        self.metadata = metadata or {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Way) and self.type == other.type and self.metadata == other.metadata

    __hash__ = None  # type: ignore[assignment]

    def values(self, array: Any) -> Values:
        found: list[Any] = array.to_pylist()
        return found

    def changed(self, array: Any, wider: Way) -> Any:
        return wider.array(self.values(array))


class Same(_Way):
    """Values that Arrow takes as the driver gives them."""

    def array(self, values: Values) -> Any:
        return pa.array(values, self.type)


class Texts(_Way):
    """The plain values, as long as they are texts; else their JSON."""

    def __init__(self, name: str, convert: Convert = plain) -> None:
        super().__init__(pa.string(), {TYPE_KEY: name})
        self._convert = convert

    def array(self, values: Values) -> Any:
        texts = [None if value is None else self._convert(value) for value in values]
        if any(text is not None and type(text) is not str for text in texts):
            raise Misfit(PlainJson(self.metadata[TYPE_KEY]))
        return pa.array(texts, self.type)


class PlainJson(_Way):
    """The plain values as JSON: holds whatever there is."""

    def __init__(self, name: str) -> None:
        super().__init__(pa.json_(), {TYPE_KEY: name})

    def array(self, values: Values) -> Any:
        texts = [None if value is None else ordered_bytes(plain(value)) for value in values]
        return pa.ExtensionArray.from_storage(self.type, pa.array(texts, pa.string()))


class JsonTexts(_Way):
    """JSON as the server has it: every digit stays."""

    def __init__(self) -> None:
        super().__init__(pa.json_())

    def array(self, values: Values) -> Any:
        for value in values:
            if value is not None and value.count(b"[") + value.count(b"{") > _JSON_DEPTH_SAFE:
                # What nobody will be able to read is not kept as if it could be.
                json_value(value.decode())
        return pa.ExtensionArray.from_storage(self.type, pa.array(values, pa.string()))

    def values(self, array: Any) -> Values:
        return [None if text is None else Json(text.encode()) for text in array.storage.to_pylist()]


class Uuids(_Way):
    def __init__(self) -> None:
        super().__init__(pa.uuid())

    def array(self, values: Values) -> Any:
        return pa.array([None if value is None else value.bytes for value in values], self.type)


# --- times -----------------------------------------------------------------------------------------------

_DAY = 86_400_000_000
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_SHIFT_DAYS = datetime.date(2000, 1, 1).toordinal() - _EPOCH
# What every reader of Arrow agrees about: the years 1 to 9999.
_FIRST_DAY, _LAST_DAY = 1 - _EPOCH, datetime.date.max.toordinal() - _EPOCH


class Counts(_Way):
    """Days or microseconds, counted from another day than Arrow does."""

    def __init__(
        self, name: str, type_: Any, *, made: Callable[[int], object], shift: int, first: int, last: int
    ) -> None:
        super().__init__(type_)
        self._name = name
        self._made = made
        self._shift = shift
        self._bounds = first - shift, last - shift
        self._storage = pa.int32() if type_ == pa.date32() else pa.int64()

    def array(self, values: Values) -> Any:
        if len(values) <= _FEW:
            return self._few(values)
        counts = pa.array(values, self._storage)
        least, most = (bound.as_py() for bound in pc.min_max(counts).values())
        if least is not None and (least < self._bounds[0] or most > self._bounds[1]):
            raise Misfit(Texts(self._name))
        return (pc.add(counts, pa.scalar(self._shift, self._storage)) if self._shift else counts).cast(self.type)

    def _few(self, values: Values) -> Any:
        """The same without the functions of Arrow, each of which costs more than a few values."""
        least, most = self._bounds
        if any(value is not None and not least <= value <= most for value in values):
            raise Misfit(Texts(self._name))
        shift = self._shift
        return pa.array([None if value is None else value + shift for value in values], self.type)

    def values(self, array: Any) -> Values:
        counts = array.cast(self._storage).to_pylist()
        return [None if count is None else self._made(count - self._shift) for count in counts]


def dates() -> Way:
    return Counts("date", pa.date32(), made=Days, shift=_SHIFT_DAYS, first=_FIRST_DAY, last=_LAST_DAY)


def times() -> Way:
    return Counts("time", pa.time64("us"), made=Clock, shift=0, first=0, last=_DAY - 1)


def timestamps() -> Way:
    return _moments("timestamp", None, Moment)


def zoned_timestamps() -> Way:
    return _moments("timestamptz", "UTC", ZonedMoment)


def _moments(name: str, zone: str | None, made: Callable[[int], object]) -> Way:
    type_ = pa.timestamp("us", zone)
    first, last = _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1
    return Counts(name, type_, made=made, shift=_SHIFT_DAYS * _DAY, first=first, last=last)


class Intervals(_Way):
    """Months, days and nanoseconds.  The server counts microseconds, of which it can have more; and the infinite ones
    are those with the last number in all three."""

    _LAST = (2**63 - 1) // 1_000
    _INFINITE = frozenset(((2**31 - 1, 2**31 - 1, 2**63 - 1), (-(2**31), -(2**31), -(2**63))))

    def __init__(self) -> None:
        super().__init__(pa.month_day_nano_interval())

    def array(self, values: Values) -> Any:
        if any(value is not None and (abs(value[2]) > self._LAST or value in self._INFINITE) for value in values):
            raise Misfit(Texts("interval"))
        return pa.array([None if value is None else (*value[:2], value[2] * 1_000) for value in values], self.type)

    def values(self, array: Any) -> Values:
        found = array.to_pylist()
        return [None if value is None else Interval((value[0], value[1], value[2] // 1_000)) for value in found]


# --- arrays ----------------------------------------------------------------------------------------------


class Lists(_Way):
    """Arrays of one dimension.  The server does not say how many there are; several become JSON."""

    def __init__(self, name: str, items: Way) -> None:
        super().__init__(pa.list_(pa.field("item", items.type, metadata=items.metadata)))
        self._name = name
        self._items = items

    def array(self, values: Values) -> Any:
        flat = [item for value in values if value is not None for item in value]
        if any(isinstance(item, list) for item in flat):
            raise Misfit(PlainJson(self._name))
        ends, end = [0], 0
        for value in values:
            end += 0 if value is None else len(value)
            ends.append(end)
        try:
            items = self._items.array(flat)
        except Misfit as misfit:
            raise Misfit(Lists(self._name, misfit.wider)) from misfit
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items, type=self.type, mask=mask)

    def values(self, array: Any) -> Values:
        flat = self._items.values(array.values)
        spans = zip(
            array.offsets.to_pylist(), array.offsets.to_pylist()[1:], array.is_valid().to_pylist(), strict=False
        )
        return [list(flat[first:last]) if is_valid else None for first, last, is_valid in spans]
