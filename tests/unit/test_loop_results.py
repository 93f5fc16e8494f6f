"""Results of loops: how rows are recorded, and how a playbook sees them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.core.expression import compile_template, render, view_of
from noetl.core.limits import PAYLOAD_INLINE_BYTES_MAX
from noetl.core.reference import MEDIA_FRAME, MEDIA_JSON, MEDIA_LOOP, MEDIA_PIPELINE
from noetl.engine.payloads import Payloads
from noetl.engine.results import (
    frame_records,
    loop_records,
    loop_result,
    pipeline_result,
    read_result,
    result_extras,
    row_result,
)
from tests.support.aio import asynchronous

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
ERROR = {"kind": "python", "message": "boom"}
COUNTS = {"total": 4, "success": 3, "failed": 1, "status": "ok"}


def memory() -> Payloads:
    return Payloads(small=MemoryPayloads({}), large=MemoryPayloads({}))


async def kept(payloads: Payloads, value: object, media_type: str = MEDIA_FRAME) -> dict[str, object]:
    payload = await payloads.keep_json(value, media_type=media_type, **OWNER)
    await payloads.store(payload)
    return payload.reference.to_json()


# --- records ---------------------------------------------------------------------------------------------

PIPELINE = {"order": ["pull", "fold"], "results": {"pull": {"n": 1, "more": True}, "fold": {"more": False}}}


@pytest.mark.parametrize(
    ("record", "row"),
    [
        ({"v": 7}, 7),
        ({"v": None}, None),
        ({"v": {"status": "error"}}, {"status": "error"}),
        (None, None),
        ({"v": None, "e": ERROR}, {"status": "error", "error": ERROR}),
        ({"v": [1], "e": ERROR}, {"status": "error", "error": ERROR}),
        ({"v": {"rows": 3, "status": "ok"}, "e": ERROR}, {"rows": 3, "status": "error", "error": ERROR}),
        ({"e": ERROR}, {"status": "error", "error": ERROR}),
    ],
)
def test_a_record_is_what_the_step_would_have_given_without_the_loop(record: Any, row: object) -> None:
    assert row_result(record) == row


def test_a_record_of_a_list_pipeline_keeps_each_result_once_and_shows_all_names() -> None:
    row: Any = row_result({"p": PIPELINE})
    assert row == pipeline_result(["pull", "fold"], PIPELINE["results"])  # type: ignore[arg-type]
    assert (row["more"], row["n"], row["fold"], row["_prev"]) == (False, 1, {"more": False}, {"more": False})
    failed: Any = row_result({"p": {"order": ["pull"], "results": {"pull": {"n": 1}}}, "e": ERROR})
    assert (failed["status"], failed["error"], failed["pull"], failed["n"]) == ("error", ERROR, {"n": 1}, 1)


def test_a_row_of_which_no_task_ran_is_an_empty_pipeline() -> None:
    assert row_result({"p": {"order": [], "results": {}}, "e": ERROR}) == {
        "results": {},
        "_prev": None,
        "status": "error",
        "error": ERROR,
    }


def test_a_loop_shows_rows_counts_and_status() -> None:
    records = [{"v": 1}, {"v": 2}, {"v": None, "e": ERROR}, {"v": 4}]
    assert loop_result(COUNTS, records) == {
        "results": [1, 2, {"status": "error", "error": ERROR}, 4],
        "stats": {"total": 4, "success": 3, "failed": 1},
        "count": 4,
        "status": "ok",
    }


# --- frames ----------------------------------------------------------------------------------------------


@asynchronous
async def test_the_records_of_a_frame_are_in_its_output() -> None:
    payloads = memory()
    reference = await kept(payloads, {"first": 2, "records": [{"v": 2}, None]})
    output = {"first": 2, "rows": 2, "ref": reference}
    assert await frame_records(payloads, output, **OWNER) == [{"v": 2}, None]
    assert await frame_records(payloads, {**output, "ref": None, "records": [{"v": 9}]}, **OWNER) == [{"v": 9}]


@asynchronous
async def test_a_lost_frame_has_the_rows_that_were_persisted_and_the_others_failed_with_it() -> None:
    payloads = memory()
    parts = [
        {"ref": await kept(payloads, {"rows": [[3, {"v": "three"}], [5, {"e": ERROR}]], "writes": []}), "ranges": []},
        {"ref": await kept(payloads, {"rows": [[6, {"v": "six"}]], "writes": []}), "ranges": []},
    ]
    output = {"first": 3, "rows": 4, "ref": None, "parts": parts, "error": {"code": "lost"}}
    lost = {"e": {"code": "lost"}}
    assert await frame_records(payloads, output, **OWNER) == [{"v": "three"}, lost, {"e": ERROR}, {"v": "six"}]
    # Rows that count as never run have no outcome.
    del output["error"]
    assert await frame_records(payloads, output, **OWNER) == [{"v": "three"}, None, {"e": ERROR}, {"v": "six"}]


@asynchronous
async def test_rows_of_frames_that_never_ran_are_null() -> None:
    document = {**COUNTS, "total": 5, "frames": [{"first": 3, "rows": 1, "ref": None, "records": [{"v": 3}]}]}
    assert await loop_records(memory(), document, **OWNER) == [None, None, None, {"v": 3}, None]


@given(st.lists(st.integers(1, 5), max_size=6), st.randoms())
@asynchronous
async def test_frames_in_any_order_give_rows_in_item_order(sizes: list[int], random: Any) -> None:
    payloads, frames, first = memory(), [], 0
    for size in sizes:
        records = [{"v": index} for index in range(first, first + size)]
        frames.append({"first": first, "rows": size, "ref": await kept(payloads, {"first": first, "records": records})})
        first += size
    random.shuffle(frames)
    document = {"total": first, "success": first, "failed": 0, "status": "ok", "frames": frames}
    found = await loop_records(payloads, document, **OWNER)
    assert found == [{"v": index} for index in range(first)]


# --- what is behind a reference --------------------------------------------------------------------------


@asynchronous
async def test_a_reference_is_opened_as_what_it_is() -> None:
    payloads = memory()
    frames = [{"first": 0, "rows": 2, "ref": None, "records": [{"v": 1}, {"v": 2}]}]
    counts = {"total": 2, "success": 2, "failed": 0, "status": "ok"}
    plain = await kept(payloads, {"order": ["a"], "results": {"a": 1}}, MEDIA_JSON)
    pipeline = await kept(payloads, {"order": ["a"], "results": {"a": {"n": 1}}}, MEDIA_PIPELINE)
    loop = await kept(payloads, {**counts, "frames": frames}, MEDIA_LOOP)
    assert await read_result(payloads, plain, **OWNER) == {"order": ["a"], "results": {"a": 1}}
    opened: Any = await read_result(payloads, pipeline, **OWNER)
    assert (opened["a"], opened["n"]) == ({"n": 1}, 1)
    rows: Any = await read_result(payloads, loop, **OWNER)
    assert rows == {
        "results": [1, 2],
        "stats": {"total": 2, "success": 2, "failed": 0},
        "count": 2,
        "status": "ok",
    }


def seen(expression: str, value: object, reference: dict[str, object]) -> object:
    view = view_of(value, extras=result_extras(reference, value))
    return render(compile_template("{{ " + expression + " }}"), {"each": view})


def test_data_and_result_of_a_loop_are_its_rows() -> None:
    value = loop_result(COUNTS, [{"v": {"data": "own"}}, {"v": 2}, None, {"v": 4}])
    reference: dict[str, object] = {"media_type": MEDIA_LOOP, "store": "db", "bytes": 9}
    assert seen("each.data", value, reference) == [{"data": "own"}, 2, None, 4]
    assert seen("each.result[1]", value, reference) == 2
    assert seen("each.results[0].data", value, reference) == "own"
    assert seen("each.stats.total", value, reference) == 4
    assert seen("each.count", value, reference) == 4
    assert seen("each._ref is defined", value, reference) is False
    assert seen("each", value, reference) == value


def test_only_what_is_stored_outside_the_database_has_a_reference() -> None:
    value = loop_result(COUNTS, [])
    reference: dict[str, object] = {"media_type": MEDIA_LOOP, "store": "file", "bytes": PAYLOAD_INLINE_BYTES_MAX + 1}
    assert seen("each._ref.bytes", value, reference) == PAYLOAD_INLINE_BYTES_MAX + 1
    assert seen("each.data", value, reference) == []
    assert result_extras(None, value) is None
    assert result_extras({"media_type": MEDIA_JSON, "store": "db", "bytes": 1}, value) is None
