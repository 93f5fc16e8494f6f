"""Record batches of any type, and tables over real stores."""

from __future__ import annotations

import datetime as dt
import math
import string
import uuid
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import ipc

from noetl.adapters.arrow.segments.folder import SegmentFolder
from noetl.adapters.arrow.segments.shared import Segments
from noetl.adapters.arrow.tables import ArrowTables
from noetl.adapters.objects.filesystem import FilePayloads
from noetl.ports.data.tables import LandedTable

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
NODE = "node-1"

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_MOMENTS = st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29))
_DAYS = st.dates()


def _whole_seconds(unit: str) -> Any:
    places = {"s": 0, "ms": 1000, "us": 1}[unit]

    def cut(moment: Any) -> Any:
        return moment.replace(microsecond=moment.microsecond // places * places if places else 0)

    return cut


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    bound = 10**precision - 1
    return st.integers(-bound, bound).map(lambda number: Decimal(f"{number}E{-scale}"))


# Type, and the Python values of it.
SCALARS: tuple[tuple[Any, st.SearchStrategy[Any]], ...] = (
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float16(), st.floats(width=16)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.string_view(), TEXTS),
    (pa.binary(), st.binary(max_size=9)),
    (pa.large_binary(), st.binary(max_size=9)),
    (pa.binary_view(), st.binary(max_size=30)),
    (pa.binary(5), st.binary(min_size=5, max_size=5)),
    (pa.decimal128(38, 10), _decimals(38, 10)),
    (pa.decimal128(9, 0), _decimals(9, 0)),
    (pa.decimal128(4, -2), st.integers(-9999, 9999).map(lambda number: Decimal(f"{number}E2"))),
    (pa.decimal256(76, 38), _decimals(60, 38)),
    (pa.decimal256(50, 0), _decimals(50, 0)),
    (pa.date32(), _DAYS),
    (pa.date64(), _DAYS),
    (pa.time32("s"), st.times().map(_whole_seconds("s"))),
    (pa.time32("ms"), st.times().map(_whole_seconds("ms"))),
    (pa.time64("us"), st.times()),
    (pa.time64("ns"), st.times()),
    (pa.timestamp("s"), _MOMENTS.map(_whole_seconds("s"))),
    (pa.timestamp("ms"), _MOMENTS.map(_whole_seconds("ms"))),
    (pa.timestamp("us"), _MOMENTS),
    (pa.timestamp("ns"), st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))),
    (pa.timestamp("us", "UTC"), _MOMENTS.map(lambda one: one.replace(tzinfo=dt.UTC))),
    (pa.timestamp("us", "+05:30"), _MOMENTS.map(lambda one: one.replace(tzinfo=dt.UTC))),
    (
        pa.timestamp("ms", "America/New_York"),
        st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2037, 1, 1))
        .map(_whole_seconds("ms"))
        .map(lambda one: one.replace(tzinfo=dt.UTC)),
    ),
    (pa.duration("s"), st.integers(-(10**9), 10**9).map(lambda count: dt.timedelta(seconds=count))),
    (pa.duration("us"), st.timedeltas(dt.timedelta(days=-9999), dt.timedelta(days=9999))),
    (
        pa.month_day_nano_interval(),
        st.tuples(*[st.integers(-99, 99)] * 3).map(lambda parts: pa.MonthDayNano(list(parts))),
    ),
    (pa.uuid(), st.uuids()),
    (pa.dictionary(pa.int16(), pa.string()), st.sampled_from(["red", "green", "", "ü"])),
)


def _nested(inner: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    def lists(one: tuple[Any, Any]) -> st.SearchStrategy[tuple[Any, Any]]:
        kind, values = one
        items = st.lists(st.none() | values, max_size=3)
        fixed = st.lists(st.none() | values, min_size=2, max_size=2)
        return st.sampled_from(
            [
                (pa.list_(kind), items),
                (pa.large_list(kind), items),
                (pa.list_(kind, 2), fixed),
                (
                    pa.map_(pa.string(), kind),
                    st.dictionaries(TEXTS, st.none() | values, max_size=3).map(lambda pairs: list(pairs.items())),
                ),
            ]
        )

    def structs(members: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        fields = [pa.field(f"m{place}", kind) for place, (kind, _) in enumerate(members)]
        values = {f"m{place}": st.none() | value for place, (_, value) in enumerate(members)}
        return pa.struct(fields), st.fixed_dictionaries(values)

    return inner.flatmap(lists) | st.lists(inner, max_size=3).map(structs)


def column_types(*but: Any) -> st.SearchStrategy[tuple[Any, Any]]:
    """Types with their values, some types excepted."""
    scalars = [one for one in SCALARS if one[0] not in but]
    # Of Python values Arrow makes no nested arrays of extension types, and below nulls unsound ones of dictionaries.
    odd = pa.BaseExtensionType | pa.DictionaryType
    inner = st.sampled_from([one for one in scalars if not isinstance(one[0], odd)])
    return st.sampled_from(scalars) | st.recursive(inner, _nested, max_leaves=4)


COLUMN_TYPES = column_types()


@st.composite
def batches(
    draw: st.DrawFn,
    types: st.SearchStrategy[tuple[Any, Any]] = COLUMN_TYPES,
    *,
    rows_max: int = 12,
    columns_max: int = 4,
) -> Any:
    """A record batch of a few columns; some rows of it are cut off, so that arrays do not start at their buffers."""
    rows = draw(st.integers(0, rows_max))
    columns = draw(st.lists(types, max_size=columns_max))
    names = draw(st.lists(st.text(string.ascii_letters + "äß. ", max_size=5), min_size=len(columns), unique=True))
    arrays = []
    for kind, values in columns:
        plain = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        arrays.append(pa.array(plain, type=kind))
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, type=pa.struct([])))
    batch = pa.RecordBatch.from_arrays(arrays, names=names[: len(arrays)])
    first = draw(st.integers(0, rows))
    return batch.slice(first, draw(st.integers(0, rows - first)))


def is_same(one: Any, other: Any) -> bool:
    """Equality in which NaN equals itself."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


async def stream_of(*given: Any) -> AsyncIterator[Any]:
    for batch in given:
        yield batch


def land(
    path: Path, batches_: list[Any], *, schema: Any = None, offset: int = 0, compression: Any = None
) -> LandedTable:
    """What a child process does."""
    with path.open("wb") as file:
        file.write(bytes(offset))
        options = ipc.IpcWriteOptions(compression=compression)
        with ipc.new_stream(file, schema or batches_[0].schema, options=options) as writer:
            for batch in batches_:
                writer.write_batch(batch)
    return LandedTable(path=path, offset=offset)


def numbers(rows: int, first: int = 0) -> Any:
    """A table with a column of numbers and one of texts."""
    places = range(first, first + rows)
    return pa.table({"id": pa.array(places, pa.int64()), "name": [f"name {place}" for place in places]})


def segments_in(
    root: Path,
    *,
    budget_bytes: int = 64 * 1024 * 1024,
    grace_seconds: float = 0.0,
    lease_seconds: float = 60.0,
    node_id: str = NODE,
    bytes_min: int = 1,
) -> Segments:
    from noetl.adapters.arrow.counters import TableCounters

    folder = SegmentFolder(root, budget_bytes=budget_bytes, grace_seconds=grace_seconds)
    return Segments(
        node_id=node_id, folder=folder, counters=TableCounters(), lease_seconds=lease_seconds, bytes_min=bytes_min
    )


def tables_in(home: Path, segments: Segments | None = None, **options: Any) -> ArrowTables:
    """Tables over files below a folder."""
    return ArrowTables(FilePayloads(home / "payloads"), segments=segments, spill=home / "spill", **options)


UUID = uuid.UUID(int=7)
