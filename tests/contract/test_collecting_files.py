"""The collector over files: what is kept there, across stores, and what unfinished uploads leave."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from noetl.adapters.objects.filesystem import FilePayloads
from noetl.adapters.postgres.payloads import PostgresPayloads
from noetl.adapters.postgres.pool import Reader
from noetl.core.reference import Payload, Reference, Result, address
from noetl.engine.collecting.report import DELETED, KEPT, NOMINATED, Report
from noetl.engine.payloads import Payloads
from noetl.settings import read_settings
from noetl.wiring.stores import collect_payloads
from tests.support.aio import asynchronous
from tests.support.backends import postgres_backend
from tests.support.collecting import OWNER, POLICY, age
from tests.support.databases import fresh_database
from tests.support.events import offer


@pytest.fixture
def database() -> str:
    return fresh_database(shards=2)


def large(content: bytes) -> Payload:
    return address(content, media_type="application/json", store="file", **OWNER)


def files(home: Path) -> set[str]:
    return {path.name for path in (home / "payloads").rglob("*") if path.is_file()}


async def named(database: str, *documents: object) -> None:
    """One event for each, whose `meta` has it."""
    async with postgres_backend(database) as backend:
        for document in documents:
            execution_id = backend.make.execution_id()
            event = backend.make.initialized(execution_id, meta={"said": document})
            await backend.ledger.append([offer(0, event)])


async def collect(database: str, home: Path, *, is_dry_run: bool = False) -> Report:
    settings = read_settings({"NOETL_HOME": str(home)})
    return await collect_payloads(settings, database, POLICY, is_dry_run=is_dry_run)


async def until_gone(database: str, home: Path) -> Report:
    for _ in range(2):
        await age(database, hours=30, home=home)
        report = await collect(database, home)
    return report


@asynchronous
async def test_an_orphan_among_files_goes_and_the_rest_stays(database: str, tmp_path: Path) -> None:
    store = FilePayloads(tmp_path / "payloads")
    kept, orphan = large(b"kept"), large(b"orphan")
    for payload in (kept, orphan):
        await store.put(payload)
    await named(database, kept.reference.to_json())
    await age(database, hours=30, home=tmp_path)
    looked = await collect(database, tmp_path, is_dry_run=True)
    assert looked.total([NOMINATED]).count == 1
    assert {kind.store for kind in looked.heaps} == {"file"}
    assert (await until_gone(database, tmp_path)).total([DELETED]).count == 1
    assert files(tmp_path) == {kept.reference.sha256}


@asynchronous
async def test_a_candidate_among_files_that_is_put_again_stays(database: str, tmp_path: Path) -> None:
    store = FilePayloads(tmp_path / "payloads")
    orphan = large(b"orphan")
    await store.put(orphan)
    await age(database, hours=30, home=tmp_path)
    await collect(database, tmp_path)
    await age(database, hours=30, home=tmp_path)
    await store.put(orphan)
    assert (await collect(database, tmp_path)).total([DELETED]).count == 0
    assert files(tmp_path) == {orphan.reference.sha256}


@asynchronous
async def test_large_values_with_their_index_and_what_they_name_are_kept(database: str, tmp_path: Path) -> None:
    reader = Reader(database, size_max=2)
    await reader.open()
    try:
        store = FilePayloads(tmp_path / "payloads")
        payloads = Payloads(small=PostgresPayloads(reader), large=store)
        body = await payloads.keep_stream(chunks(b"a body " * 1_000), media_type="text/csv", **OWNER)
        rows: list[Any] = [{"number": number, "text": "x" * 100} for number in range(20_000)]
        rows[10_000] = {"_ref": body.to_json()}
        value = await payloads.keep_json(rows, **OWNER)
        assert value.reference.index is not None
        # Named by digest alone, as a document in between may do.
        small = await payloads.keep_json({"parts": [value.reference.to_json()]}, **OWNER)
        await payloads.store(small)
        await named(database, {"sha256": small.reference.sha256})
        await store.put(large(b"orphan"))
        assert (await until_gone(database, tmp_path)).total([DELETED]).count == 1
        index = str(value.reference.index["sha256"])
        assert files(tmp_path) == {body.sha256, value.reference.sha256, index}
        assert await payloads.read(body, **OWNER) == b"a body " * 1_000
    finally:
        await reader.close()


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@asynchronous
async def test_a_damaged_file_keeps_everything_of_its_owner(database: str, tmp_path: Path) -> None:
    store = FilePayloads(tmp_path / "payloads")
    outer = large(json.dumps({"_ref": large(b"inner").reference.to_json()}).encode())
    for payload in (outer, large(b"inner")):
        await store.put(payload)
    await named(database, outer.reference.to_json())
    (path,) = tmp_path.rglob(outer.reference.sha256)
    path.write_bytes(b"damaged" * 100)
    report = await until_gone(database, tmp_path)
    assert (report.total([KEPT]).count, report.total([DELETED]).count) == (1, 0)
    assert large(b"inner").reference.sha256 in files(tmp_path)


@asynchronous
async def test_unfinished_uploads_are_removed_when_they_are_old(database: str, tmp_path: Path) -> None:
    store = FilePayloads(tmp_path / "payloads")
    broken = broken_off()
    stream = store.put_stream(broken, media_type="text/plain", **OWNER)
    with pytest.raises(ConnectionResetError):
        await stream
    folder = tmp_path / "payloads" / ".incoming"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "left").write_bytes(b"half of somethi")
    assert (await collect(database, tmp_path)).leftovers.count == 0
    await age(database, hours=30, home=tmp_path)
    looked = await collect(database, tmp_path, is_dry_run=True)
    assert (looked.leftovers.count, looked.leftovers.bytes) == (1, 15)
    assert (folder / "left").exists()
    assert (await collect(database, tmp_path)).leftovers.count == 1
    assert not (folder / "left").exists()


async def broken_off() -> AsyncIterator[bytes]:
    yield b"x"
    raise ConnectionResetError


@asynchronous
async def test_an_event_with_a_result_keeps_a_table_that_nothing_else_names(database: str, tmp_path: Path) -> None:
    """Rows in columns: their reference is all that says where they are."""
    store = FilePayloads(tmp_path / "payloads")
    table: Reference = await store.put_stream(
        chunks(b"\xff\xff\xff\xff", b"rows" * 10), media_type="application/vnd.apache.arrow.stream", **OWNER
    )
    async with postgres_backend(database) as backend:
        execution_id = backend.make.execution_id()
        result = Result(status="ok", reference=table).to_json()
        events = (backend.make.initialized(execution_id), backend.make.completed(execution_id, result=result))
        await backend.ledger.append([offer(0, *events)])
    await until_gone(database, tmp_path)
    assert files(tmp_path) == {table.sha256}
