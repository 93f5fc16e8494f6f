"""Results of loops: how rows are recorded, and how a playbook sees them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.core.expression import compile_template, render
from noetl.core.reference import MEDIA_FRAME, MEDIA_JSON, MEDIA_LOOP, MEDIA_PIPELINE, Reference
from noetl.engine.payloads import Payloads
from noetl.engine.results import (
    loop_records,
    loop_result,
    pipeline_result,
    read_result,
    row_result,
)
from noetl.engine.stored.reader import LoopRecords, Reader
from noetl.engine.stored.sources import settled
from tests.support.aio import asynchronous

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
ERROR = {"kind": "python", "message": "boom"}
COUNTS = {"total": 4, "success": 3, "failed": 1, "status": "ok"}


class Counting(MemoryPayloads):
    """Remembers what was read."""

    def __init__(self) -> None:
        super().__init__({})
        self.read: list[str] = []

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        self.read.append(reference.sha256)
        return await super().get(reference, tenant_id=tenant_id, organization_id=organization_id)


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


async def frame_records(payloads: Payloads, output: dict[str, Any], **owner: str) -> list[Any]:
    """The records of a frame, read together and one by one."""
    first, end = output["first"], output["first"] + output["rows"]
    document = {**COUNTS, "total": end, "frames": [output]}
    found = (await loop_records(payloads, document, **owner))[first:]
    lazy = LoopRecords(Reader(payloads, **owner), document)
    assert [await settled(lambda index=index: lazy._find(index)) for index in range(first, end)] == found  # type: ignore[misc]
    return found


@asynchronous
async def test_the_records_of_a_frame_are_in_its_output() -> None:
    payloads = memory()
    reference = await kept(payloads, {"first": 2, "records": [{"v": 2}, None]})
    output = {"first": 2, "rows": 2, "ref": reference}
    assert await frame_records(payloads, output, **OWNER) == [{"v": 2}, None]
    inline = {**output, "ref": None, "rows": 1, "records": [{"v": 9}]}
    assert await frame_records(payloads, inline, **OWNER) == [{"v": 9}]


@asynchronous
async def test_a_lost_frame_has_the_rows_that_were_persisted_and_the_others_failed_with_it() -> None:
    payloads = memory()
    parts = [
        {
            "ref": await kept(payloads, {"rows": [[3, {"v": "three"}], [5, {"e": ERROR}]], "writes": []}),
            "ranges": [[3, 4], [5, 6]],
        },
        {"ref": await kept(payloads, {"rows": [[6, {"v": "six"}]], "writes": []}), "ranges": [[6, 7]]},
    ]
    output: dict[str, Any] = {"first": 3, "rows": 4, "ref": None, "parts": parts, "error": {"code": "lost"}}
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


async def seen(expression: str, document: dict[str, Any], stored: dict[str, object] | None = None) -> object:
    """What a template sees of a loop whose result is kept like this."""
    payloads = memory()
    reference = await kept(payloads, document, MEDIA_LOOP)
    view = Reader(payloads, **OWNER).step({"status": "ok", "ref": reference, "stored": stored})
    return await settled(lambda: render(compile_template("{{ " + expression + " }}"), {"each": view}))


ROWS = {"first": 0, "rows": 4, "ref": None, "records": [{"v": {"data": "own"}}, {"v": 2}, None, {"v": {"n": 4}}]}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("each.data", [{"data": "own"}, 2, None, {"n": 4}]),
        ("each.result[1]", 2),
        ("each.results[0].data", "own"),
        ("each.results[3].data", {"n": 4}),
        ("each.results[3].status", "ok"),
        ("each.results[-1].n", 4),
        ("each.results[9] is defined", False),
        ("each.results | length", 4),
        ("each.results | select('mapping') | map(attribute='status') | list", ["ok", "ok"]),
        ("(each.results | last).data.n", 4),
        ("each.results[1:3]", [2, None]),
        ("each.stats.total", 4),
        ("each.count", 4),
        ("each._ref is defined", False),
    ],
)
@asynchronous
async def test_a_loop_shows_its_rows_as_results(expression: str, value: object) -> None:
    assert await seen(expression, {**COUNTS, "frames": [ROWS]}) == value


@asynchronous
async def test_the_whole_of_a_loop_is_its_plain_result() -> None:
    document = {**COUNTS, "frames": [ROWS]}
    assert await seen("each", document) == loop_result(document, ROWS["records"])  # type: ignore[arg-type]


@asynchronous
async def test_only_what_counts_as_external_has_a_reference() -> None:
    document = {**COUNTS, "total": 0, "frames": []}
    stored: dict[str, object] = {"store": "kv", "bytes": 70_000, "preview": 100}
    assert await seen("each._size_bytes", document, stored) == 70_000
    assert await seen("each._ref.media_type", document, stored) == MEDIA_LOOP
    assert await seen("each._preview", document, stored) == "[]"
    assert await seen("each.data", document, stored) == []
    assert await seen("each._store is defined", document) is False


# --- reading no more than is looked at -------------------------------------------------------------------


@asynchronous
async def test_an_index_opens_one_frame() -> None:
    store = Counting()
    payloads = Payloads(small=store, large=store)
    frames = []
    for first in range(0, 100, 10):
        records = [{"v": {"n": index}} for index in range(first, first + 10)]
        frames.append({"first": first, "rows": 10, "ref": await kept(payloads, {"first": first, "records": records})})
    loop = {"total": 100, "success": 100, "failed": 0, "status": "ok", "frames": frames}
    reference = await kept(payloads, loop, MEDIA_LOOP)
    for expression, value, reads in (
        ("each.stats.failed", 0, 1),
        ("each.results | length", 100, 1),
        ("each.results[99].n", 99, 2),
        ("each.results[7].n + each.results[8].n", 15, 2),
        ("each.results[18:22] | map(attribute='n') | list", [18, 19, 20, 21], 3),
        ("each.results | map(attribute='n') | sum", 4950, 11),
    ):
        store.read.clear()
        fresh = Payloads(small=store, large=store)
        view = Reader(fresh, **OWNER).step({"status": "ok", "ref": reference})
        template = compile_template("{{ " + expression + " }}")
        assert await settled(lambda template=template, view=view: render(template, {"each": view})) == value  # type: ignore[misc]
        assert len(set(store.read)) == reads, expression
