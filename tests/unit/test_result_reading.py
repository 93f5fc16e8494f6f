"""Results for readers outside: the same as templates see, in pieces, and no more of it than is asked for."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc

from noetl.core import limits
from noetl.core.codec import ordered_bytes
from noetl.core.errors import PayloadCorrupt, PayloadMissing, RequestInvalid, ResultNotTabular, ResultUnknown
from noetl.core.expression.views import pipeline_result
from noetl.core.reference import (
    MEDIA_FRAME,
    MEDIA_JSON,
    MEDIA_LOOP,
    MEDIA_PARTED,
    MEDIA_PIPELINE,
    parted_media,
)
from noetl.core.results.members import parsed_path
from tests.support.aio import asynchronous
from tests.support.results import OWNER, ResultShelf, all_of, lines, page
from tests.support.thresholds import thresholds

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=4)),
    max_leaves=12,
)
ROWS = [{"n": n, "text": "x" * 50} for n in range(20_000)]
TABLE = pa.table(
    {
        "n": pa.array(range(1_000), pa.int32()),
        "price": pa.array([Decimal(n) / 100 for n in range(1_000)], pa.decimal128(10, 2)),
        "name": pa.array([None if n % 7 == 0 else f"r{n}" for n in range(1_000)]),
        "tags": pa.array([[n, None] for n in range(1_000)]),
    }
)
PARTS = {"INDEX_PART_BYTES": 20, "PAYLOAD_INLINE_BYTES_MAX": 10}


async def json_of(shelf: ResultShelf, reference: Any, path: str = "", **more: Any) -> Any:
    return json.loads(await all_of(await shelf.reading(reference, **more).json(parsed_path(path))))


# --- the plain result ------------------------------------------------------------------------------------


@given(VALUES, st.sampled_from([0, 3, 20, 10**6]))
@settings(max_examples=60, deadline=None)
@asynchronous
async def test_the_json_of_a_result_is_that_of_the_value(value: object, part_bytes: int) -> None:
    shelf = ResultShelf()
    with thresholds({"INDEX_PART_BYTES": part_bytes, "PAYLOAD_INLINE_BYTES_MAX": 10}):
        reference = await shelf.keep(value)
        assert await all_of(await shelf.reading(reference).json(())) == ordered_bytes(value)


@given(st.lists(VALUES, min_size=1, max_size=3), st.sampled_from([3, 10**6]))
@settings(max_examples=60, deadline=None)
@asynchronous
async def test_the_json_of_a_pipeline_is_what_the_step_hands_over(values: list[object], part_bytes: int) -> None:
    shelf = ResultShelf()
    order = [f"t{number}" for number in range(len(values))]
    results = dict(zip(order, values, strict=True))
    with thresholds({"INDEX_PART_BYTES": part_bytes, "PAYLOAD_INLINE_BYTES_MAX": 10}):
        reference = await shelf.keep({"order": order, "results": results}, MEDIA_PIPELINE)
        assert await all_of(await shelf.reading(reference).json(())) == ordered_bytes(pipeline_result(order, results))


@given(st.lists(VALUES, max_size=9), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
@asynchronous
async def test_the_json_of_a_loop_has_its_rows_in_order(rows: list[object], frame_rows: int) -> None:
    shelf = ResultShelf()
    with thresholds(PARTS):
        found = await json_of(shelf, await shelf.keep_loop(rows, frame_rows))
    assert found == {
        "stats": {"total": len(rows), "success": len(rows), "failed": 0},
        "count": len(rows),
        "status": "ok",
        "results": rows,
    }


@asynchronous
async def test_a_failed_step_has_its_error_beside_what_was_done() -> None:
    shelf = ResultShelf()
    reference = await shelf.keep({"order": ["a"], "results": {"a": {"n": 1}}}, MEDIA_PIPELINE)
    found = await json_of(shelf, reference, status="error", error={"kind": "python", "message": "no"})
    assert (found["status"], found["n"], found["a"]) == ("error", 1, {"n": 1})
    assert (found["error"]["kind"], found["error"]["message"]) == ("python", "no")
    nothing = await json_of(shelf, None, status="error", error={"kind": "python", "message": "no"})
    assert set(nothing) == {"status", "error"}


@asynchronous
async def test_tables_are_rows_wherever_they_stand() -> None:
    shelf = ResultShelf()
    table = await shelf.keep_table(TABLE.slice(0, 3))
    rows = [
        {"n": 0, "price": 0.0, "name": None, "tags": [0, None]},
        {"n": 1, "price": 0.01, "name": "r1", "tags": [1, None]},
        {"n": 2, "price": 0.02, "name": "r2", "tags": [2, None]},
    ]
    assert await json_of(shelf, table) == rows
    document = {"value": {"x": 1, "deep": [None, 2]}, "parts": [[["rows"], table], [["deep", 0], table]]}
    document["value"]["rows"] = None  # type: ignore[index]
    parted = await shelf.keep(document, MEDIA_PARTED)
    assert await json_of(shelf, parted) == {"x": 1, "deep": [rows, 2], "rows": rows}
    assert await json_of(shelf, parted, "deep[0][1].name") == "r1"
    assert await json_of(shelf, parted, "rows[2]") == rows[2]
    assert lines(await page(shelf.reading(parted), "ndjson", offset=1, limit=1)) == rows[1:2]
    assert lines(await page(shelf.reading(parted), "ndjson", path=("deep", 0), columns=["n"])) == [
        {"n": n} for n in range(3)
    ]


@asynchronous
async def test_tables_in_the_rows_of_a_loop_are_rows_too() -> None:
    shelf = ResultShelf()
    table = await shelf.keep_table(TABLE.slice(0, 2).select(["n"]))
    document = {"records": [{"v": {"x": 1, "rows": None}}, {"v": None}]}
    parts = [[["records", 0, "v", "rows"], table], [["records", 1, "v"], table]]
    frame = await shelf.keep({"value": document, "parts": parts}, parted_media(MEDIA_FRAME))
    frames = [{"first": 0, "rows": 2, "ref": frame}]
    loop = await shelf.keep({"total": 2, "success": 2, "failed": 0, "status": "ok", "frames": frames}, MEDIA_LOOP)
    rows = [{"n": 0}, {"n": 1}]
    assert (await json_of(shelf, loop))["results"] == [{"x": 1, "rows": rows}, rows]
    assert await json_of(shelf, loop, "results[0].rows[1].n") == 1
    assert lines(await page(shelf.reading(loop), "ndjson", path=("results", 0))) == rows
    assert lines(await page(shelf.reading(loop), "ndjson", offset=1)) == [rows]


@asynchronous
async def test_an_empty_table_is_an_empty_list_with_its_columns() -> None:
    shelf = ResultShelf()
    table = await shelf.keep_table(TABLE.slice(0, 0))
    assert await json_of(shelf, table) == []
    assert await page(shelf.reading(table), "json") == b"[]"
    assert await page(shelf.reading(table), "csv") == b'"n","price","name","tags"\n'
    assert ipc.open_stream(await page(shelf.reading(table), "arrow")).read_all().schema == TABLE.schema


# --- a part of it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("", None),
        ("$", None),
        ("rows[1].n", 2),
        ("$.rows[-1].n", 2),
        ("rows.0", {"n": 1}),
        ('$["odd key"].a', 5),
        ("data.rows[0]", {"n": 1}),
        ("result.count", 2),
    ],
)
@asynchronous
async def test_a_path_leads_to_a_part(path: str, value: object) -> None:
    shelf = ResultShelf()
    whole = {"rows": [{"n": 1}, {"n": 2}], "odd key": {"a": 5}, "count": 2}
    with thresholds(PARTS):
        assert await json_of(shelf, await shelf.keep(whole), path) == (whole if value is None else value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("row", "the result has no 'row': it has rows, deep, n"),
        ("deep.x", "deep has no 'x': it has a"),
        ("deep.a.x", "deep.a has no 'x': it is neither a mapping nor a list"),
        ("rows[7]", "rows has no item 7: it is a list of 2"),
        ("rows[0].__class__", r"rows\[0\] has no '__class__'"),
        ("rows[", "no path"),
        (".rows", "no path"),
    ],
)
@asynchronous
async def test_a_path_that_leads_nowhere_says_what_is_there(path: str, message: str) -> None:
    shelf = ResultShelf()
    reference = await shelf.keep({"rows": [{"n": 1}, {"n": 2}], "deep": {"a": 1}, "n": 1})
    with pytest.raises(ResultUnknown, match=message):
        await json_of(shelf, reference, path)


# --- its rows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        ([1, 2], [1, 2]),
        ({"rows": [{"a": 1}], "results": [2]}, [{"a": 1}]),
        ({"rows": 7, "results": [2]}, [2]),
        ({"data": [3]}, [3]),
        (
            {"status_code": 200, "headers": {}, "url": "", "elapsed": 1, "data": {"rows": [4]}, "body": {"rows": [4]}},
            [4],
        ),
    ],
)
@asynchronous
async def test_the_natural_rows_of_a_result(value: object, rows: list[object]) -> None:
    shelf = ResultShelf()
    assert lines(await page(shelf.reading(await shelf.keep(value)), "ndjson")) == rows


@asynchronous
async def test_what_has_no_rows_says_where_lists_are() -> None:
    shelf = ResultShelf()
    reference = await shelf.keep({"a": {"b": [1]}, "items": [1], "n": 1})
    with pytest.raises(ResultNotTabular, match="has no rows: choose one of its lists with path: items"):
        await page(shelf.reading(reference), "csv")
    with pytest.raises(ResultNotTabular, match=r"a has no rows: choose one of its lists with path: a\.b"):
        await page(shelf.reading(reference), "csv", path=("a",))
    with pytest.raises(ResultNotTabular, match="n has no rows: ask for json"):
        await page(shelf.reading(reference), "csv", path=("n",))


CELLS = st.fixed_dictionaries(
    {"n": st.integers(-5, 5), "t": st.none() | st.text(st.characters(codec="utf-8"), max_size=4)},
    optional={"l": st.lists(st.integers(0, 3), max_size=2)},
)


@given(
    st.lists(CELLS, max_size=12),
    st.sampled_from(["list", "table", "loop"]),
    st.sampled_from(["json", "ndjson", "csv", "arrow", "parquet"]),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
@settings(max_examples=120, deadline=None)
@asynchronous
async def test_pages_joined_are_the_whole(rows: list[dict[str, Any]], form: str, name: str, sizes: list[int]) -> None:
    shelf = ResultShelf()
    schema = pa.schema([("n", pa.int64()), ("t", pa.string()), ("l", pa.list_(pa.int64()))])
    columns = ["n", "t", "l"]
    with thresholds(PARTS):
        if form == "list":
            reference = await shelf.keep({"rows": rows})
        elif form == "loop":
            reference = await shelf.keep_loop(rows, 2)
        else:
            reference = await shelf.keep_table(pa.Table.from_pylist(rows, schema))
        whole = _read(await page(shelf.reading(reference), name, columns=columns), name)
        found: list[Any] = []
        offset = 0
        while offset < len(rows):
            size = sizes[offset % len(sizes)]
            content = await page(shelf.reading(reference), name, offset=offset, limit=size, columns=columns)
            found += _read(content, name)
            offset += size
    assert found == whole
    if name != "csv":
        assert whole == [{"n": row["n"], "t": row["t"], "l": row.get("l")} for row in rows]


def _read(content: bytes, name: str) -> list[Any]:
    if name == "json":
        return list(json.loads(content))
    if name == "ndjson":
        return lines(content)
    if name == "csv":
        return list(csv.DictReader(io.StringIO(content.decode(), newline="")))
    table = ipc.open_stream(content).read_all() if name == "arrow" else pq.read_table(io.BytesIO(content))
    return list(table.to_pylist())


@asynchronous
async def test_a_table_keeps_its_types_in_every_window() -> None:
    shelf = ResultShelf()
    reference = await shelf.keep_table(TABLE)
    for name in ("arrow", "parquet"):
        content = await page(shelf.reading(reference), name, offset=700, limit=250, columns=["price", "n"])
        found = ipc.open_stream(content).read_all() if name == "arrow" else pq.read_table(io.BytesIO(content))
        assert found.equals(TABLE.slice(700, 250).select(["price", "n"])), name
    text = (await page(shelf.reading(reference), "csv", offset=699, limit=2)).decode()
    assert text == '"n","price","name","tags"\n699,6.99,"r699","[699,null]"\n700,7.00,,"[700,null]"\n'


@asynchronous
async def test_a_column_that_a_table_does_not_have_is_refused() -> None:
    shelf = ResultShelf()
    reference = await shelf.keep_table(TABLE)
    with pytest.raises(RequestInvalid, match="no column 'x': there are n, price, name, tags"):
        await page(shelf.reading(reference), "csv", columns=["n", "x"])
    scalars = await shelf.keep([1, 2])
    with pytest.raises(ResultNotTabular, match="no mappings"):
        await page(shelf.reading(scalars), "ndjson", columns=["n"])


@asynchronous
async def test_what_parquet_cannot_hold_is_said() -> None:
    shelf = ResultShelf()
    reference = await shelf.keep([{"a": {}}])
    with pytest.raises(ResultNotTabular, match="Parquet cannot hold these columns"):
        await page(shelf.reading(reference), "parquet")
    assert await page(shelf.reading(reference), "csv") == b'"a"\n"{}"\n'


@asynchronous
async def test_a_screen_shows_one_line_for_each_row_whatever_is_in_it() -> None:
    shelf = ResultShelf()
    rows = [{"n": 1, "t": "a\nb\x1b[31m"}, {"n": 22, "t": "x" * 100}, {"n": None, "t": None}]
    text = (await page(shelf.reading(await shelf.keep(rows)), "table")).decode()
    head, dashes, *found = text.splitlines()
    assert (head, dashes) == (" n  t", f"--  {'-' * 48}")
    assert found == [" 1  a⏎b�[31m", f"22  {'x' * 47}…", ""]


# --- what it costs ---------------------------------------------------------------------------------------


@asynchronous
async def test_a_page_of_a_large_list_costs_its_parts_only() -> None:
    shelf = ResultShelf()
    reference = await shelf.keep({"rows": ROWS})
    assert reference["bytes"] > 1_000_000
    reading = shelf.reading(reference)
    assert lines(await page(reading, "ndjson", offset=11_000, limit=10)) == ROWS[11_000:11_010]
    assert shelf.store.bytes_read < 400_000
    # The columns are those of the page, and nothing else is looked at to find them.
    assert (await page(shelf.reading(reference), "csv", offset=5, limit=1)).startswith(b'"n","text"\n5,')
    assert shelf.store.bytes_read < 400_000


@asynchronous
async def test_a_page_of_a_loop_opens_the_frames_that_have_it() -> None:
    shelf = ResultShelf()
    reference = await shelf.keep_loop(ROWS[:1_000], 10)
    reading = shelf.reading(reference)
    assert lines(await page(reading, "ndjson", offset=503, limit=20)) == ROWS[503:523]
    assert len(set(shelf.store.opened)) == 1 + 3
    assert await (shelf.reading(reference)).summary() == await shelf.reading(reference).summary()


@asynchronous
async def test_what_was_sent_is_not_held() -> None:
    """Frames that were read are forgotten: a reader of a million rows holds a few of them."""
    shelf = ResultShelf()
    reference = await shelf.keep_loop(ROWS[:2_000], 10)
    with thresholds({"RESULT_CHUNK_ROWS": 16}):
        reading = shelf.reading(reference)
        rows = await reading.rows(())
        most = 0
        async for _ in rows.chunks(0, rows.total):
            most = max(most, len(reading._reader._opened))
    assert 0 < most < 20


@asynchronous
async def test_rows_that_are_large_are_read_a_few_at_a_time() -> None:
    shelf = ResultShelf()
    big = "x" * 300_000
    reference = await shelf.keep_loop([{"t": big}] * 64, 1)
    rows = await shelf.reading(reference).rows(())
    sizes = [len(chunk) async for chunk in rows.chunks(0, rows.total)]
    assert sum(sizes) == 64
    assert max(sizes[1:]) * len(big) <= limits.RESULT_CHUNK_BYTES


# --- what is wrong with the store ------------------------------------------------------------------------


@asynchronous
async def test_missing_and_damaged_payloads_are_named_and_never_returned() -> None:
    shelf = ResultShelf()
    reference = await shelf.keep({"rows": ROWS})
    key = (*OWNER.values(), reference["sha256"])
    content = bytearray(shelf.store._contents[key])
    content[len(content) // 2] ^= 1
    shelf.store._contents[key] = bytes(content)
    with pytest.raises(PayloadCorrupt, match="another digest"):
        await all_of(await shelf.reading(reference).json(()))
    with pytest.raises(PayloadCorrupt):
        await all_of(shelf.reading(reference).stored_bytes(0, reference["bytes"]))
    small = await shelf.keep([1])
    del shelf.store._contents[(*OWNER.values(), small["sha256"])]
    for name in ("json", "csv"):
        with pytest.raises(PayloadMissing):
            await page(shelf.reading(small), name)
    summary = await shelf.reading(small).summary()
    assert (summary.rows, summary.bytes) == (None, 3)
    assert "is not there" in str(summary.problem)


@asynchronous
async def test_the_stored_bytes_are_given_in_any_part() -> None:
    shelf = ResultShelf()
    reference = await shelf.keep({"rows": ROWS})
    whole = ordered_bytes({"rows": ROWS})
    reading = shelf.reading(reference)
    assert await all_of(reading.stored_bytes(0, len(whole))) == whole
    assert await all_of(reading.stored_bytes(7, 11)) == whole[7:18]
    assert await all_of(reading.stored_bytes(1, len(whole) - 1)) == whole[1:]
    with pytest.raises(ResultUnknown, match="null"):
        shelf.reading(None).raw()


@asynchronous
async def test_a_summary_says_what_a_result_is() -> None:
    shelf = ResultShelf()
    table = await shelf.reading(await shelf.keep_table(TABLE)).summary()
    assert (table.rows, table.columns) == (1_000, ("n", "price", "name", "tags"))
    listed = await shelf.reading(await shelf.keep({"rows": ROWS})).summary()
    assert (listed.rows, listed.columns, listed.media_type) == (20_000, ("n", "text"), MEDIA_JSON)
    scalar = await shelf.reading(await shelf.keep(7)).summary()
    assert (scalar.rows, scalar.columns, scalar.bytes) == (None, None, 1)
    nothing = await shelf.reading(None).summary()
    assert (nothing.rows, nothing.media_type, nothing.bytes, nothing.problem) == (None, None, 0, None)
