"""Tables where something is short or in the way: threads, room, and folders and files that are not what they should
be."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from noetl.adapters.arrow.opening import durable
from noetl.adapters.arrow.segments.attach import SegmentMiss, Wanted, attach
from noetl.adapters.arrow.segments.shared import payload_key
from noetl.adapters.arrow.segments.writer import has_no_writer
from noetl.adapters.arrow.tables import ArrowTables
from noetl.adapters.session.http_stream_link import ServerLink
from noetl.adapters.session.http_stream_stores import HttpPayloads
from noetl.core.errors import StorageFull, ToolFailed
from noetl.core.reference import Reference
from noetl.engine.reading.rows import TableRows
from noetl.ports.data.tables import LandedTable, OpenTable
from noetl.ports.tool import ToolCall
from noetl.tools.duckdb.inputs import opened_sources
from noetl.tools.postgres.tables import spool
from noetl.tools.python.landed import GivenTables
from tests.support.aio import asynchronous
from tests.support.arrow import OWNER, numbers, segments_in, stream_of, tables_in

ROWS = 20_000
TABLE = numbers(ROWS)
FULL = Path("/dev/full")
"""A file that takes nothing: there is no space left on its device."""


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of these tests count as large."""
    monkeypatch.setattr(durable, "TABLE_WHOLE_BYTES_MAX", 10_000)
    monkeypatch.setattr("noetl.adapters.arrow.tables.TABLE_WHOLE_BYTES_MAX", 10_000)


async def large(tables: ArrowTables, first: int = 0) -> Reference:
    batches = numbers(ROWS, first=first).to_batches(max_chunksize=3_000)
    return await tables.keep(stream_of(*batches), **OWNER)


# --- threads ---------------------------------------------------------------------------------------------


class Given:
    """A table in the input of a call."""

    def __init__(self, table: OpenTable) -> None:
        self.reference: dict[str, object] = {}
        self._table = table

    async def open(self) -> OpenTable:
        return self._table


def call_with(table: OpenTable, **fields: object) -> ToolCall:
    return ToolCall(
        fields=fields,
        input={"t": None},
        names={},
        context=None,
        timeout_seconds=30.0,
        execution_id=1,
        step="s",
        label="t",
        given_tables={("t",): Given(table)},
        **OWNER,
    )


async def page(table: OpenTable) -> int:
    return sum([len(chunk) async for chunk in TableRows(table).chunks(0, ROWS)])


async def batches(table: OpenTable) -> int:
    return sum([len(batch) async for batch in TableRows(table).batches(0, ROWS, None)])


async def python_rows(table: OpenTable) -> int:
    with tempfile.TemporaryDirectory() as folder:
        _, given = await GivenTables(Path(folder)).prepare(call_with(table))
        assert given is not None
        (((_, path, _, _),),) = (given["given"],)  # type: ignore[misc]
        return len(json.loads(await asyncio.to_thread(Path(path).read_text)))


async def python_columns(table: OpenTable) -> int:
    _, given = await GivenTables(Path(tempfile.gettempdir())).prepare(call_with(table, tables="arrow"))
    assert given is not None
    return table.row_count


async def duckdb(table: OpenTable) -> int:
    async with AsyncExitStack() as stack:
        assert len(await opened_sources(call_with(table), stack)) == 1
        return table.row_count


@pytest.mark.parametrize("look", [page, batches, python_rows, python_columns, duckdb])
@pytest.mark.usefixtures("small_limits")
@asynchronous
async def test_looks_at_large_tables_do_not_wait_for_each_other(
    look: Callable[[OpenTable], Coroutine[Any, Any, int]], tmp_path: Path
) -> None:
    """More of them than the loop has threads, over a store that needs such a thread for each batch."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    tables = tables_in(tmp_path)
    references = [await large(tables, first) for first in range(4)]
    assert all(reference.index is not None for reference in references)
    opened = [await tables.open(reference, **OWNER) for reference in references]
    async with asyncio.timeout(60):
        assert await asyncio.gather(*(look(table) for table in opened)) == [ROWS] * 4


@pytest.mark.usefixtures("small_limits")
def test_a_look_ends_with_the_loop_that_would_have_to_fetch(tmp_path: Path) -> None:
    tables = tables_in(tmp_path)

    async def opened() -> OpenTable:
        return await tables.open(await large(tables), **OWNER)

    table: Any = asyncio.run(opened())
    # The loop took the order in its last moment, and ended before it came to it.
    with pytest.raises(RuntimeError, match="has ended"):
        table._content.batches._awaited(Future())


# --- files in the way ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
@asynchronous
async def test_what_lands_must_be_a_plain_file(kind: str, tmp_path: Path) -> None:
    tables = tables_in(tmp_path, segments_in(tmp_path / "segments"))
    path = tmp_path / "1-1"
    in_the_way(kind, path)
    async with asyncio.timeout(60):
        with pytest.raises(ToolFailed, match="cannot be read"):
            await tables.keep(LandedTable(path=path), **OWNER)


@asynchronous
async def test_a_pipe_among_the_segments_stops_nobody(tmp_path: Path) -> None:
    segments = segments_in(tmp_path / "segments")
    tables = tables_in(tmp_path, segments)
    reference = await tables.keep(TABLE, **OWNER)
    key = payload_key(**OWNER, sha256=reference.sha256)
    (name,) = segments.folder.find(key)
    pipe = segments.folder.root / name
    pipe.unlink()
    os.mkfifo(pipe)
    async with asyncio.timeout(60):
        with pytest.raises(SegmentMiss):
            await asyncio.to_thread(attach, segments.folder, name, Wanted(key=key, reference=reference))
        with pytest.raises(OSError, match="no plain file"):
            await asyncio.to_thread(has_no_writer, pipe)
        assert (await tables.open(reference, **OWNER)).tier == "durable"
        assert await asyncio.to_thread(segments.folder.sweep) == 1


def in_the_way(kind: str, path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.parent / "elsewhere")


# --- folders ---------------------------------------------------------------------------------------------


@asynchronous
async def test_bits_that_a_folder_inherits_let_nobody_in(tmp_path: Path) -> None:
    tmp_path.chmod(0o2755)
    tables = tables_in(tmp_path)
    table = await tables.open(await tables.keep(TABLE, **OWNER), **OWNER)
    file = await table.looked(table.mapped)
    assert file.path.parent == tmp_path / "spill"
    assert file.path.parent.stat().st_mode & 0o7777 == 0o2700


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("way", ["mapped", "incoming"])
@asynchronous
async def test_a_folder_that_others_may_use_is_not_written_to(way: str, tmp_path: Path) -> None:
    (tmp_path / "spill").mkdir(mode=0o755)
    tables = tables_in(tmp_path)
    reference = await large(tables)
    table = await tables.open(reference, **OWNER)
    assert table.tier == "durable", "a copy that cannot be had is none"
    fetched = partial(tables_in(tmp_path).open, replace(reference, index=None), **OWNER)
    look: Any = fetched if way == "incoming" else partial(table.looked, table.mapped)
    with pytest.raises(ToolFailed, match="0700") as caught:
        await look()
    failure = caught.value.failure
    assert (failure.kind, failure.code, failure.retryable) == ("storage_quota", "SPILL_REFUSED", False)


# --- room ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_limits")
@asynchronous
async def test_no_room_for_bytes_on_their_way_is_a_failure_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_in(tmp_path)
    reference = replace(await large(tables), index=None)
    monkeypatch.setattr(durable, "_create", lambda _: FULL.open("wb"))
    with pytest.raises(ToolFailed, match="no room") as caught:
        await tables.open(reference, **OWNER)
    failure = caught.value.failure
    assert (failure.kind, failure.code, failure.retryable) == ("storage_quota", "SPILL_REFUSED", True)


@pytest.mark.parametrize("size", [10, 100_000])
@asynchronous
async def test_no_room_for_bytes_on_their_way_to_the_server_is_said_so(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: FULL.open("w+b"))

    async def chunks() -> AsyncIterator[bytes]:
        yield bytes(size)

    link: Any = ServerLink.__new__(ServerLink)  # nothing is sent
    with pytest.raises(StorageFull):
        await HttpPayloads(link).put_stream(chunks(), media_type="text/plain", **OWNER)


def test_the_end_of_a_spool_hides_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: FULL.open("w+b"))
    columns: Any = None
    waiting = spool.Spool(columns)
    batch = TABLE.to_batches()[0]
    with pytest.raises(OSError, match="No space left"):
        waiting.add(batch, [])
    waiting.close()
