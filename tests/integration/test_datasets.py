"""Datasets through whole playbooks: whoever reads tables reads them, and what is recorded and kept of them."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi import FastAPI
from pyarrow import ipc

from noetl.core.dataset import MEDIA_DATASET
from noetl.core.errors import ToolFailed
from noetl.core.results.members import parsed_path
from noetl.engine.collecting.large import CollectedLarge
from noetl.engine.collecting.report import DELETED
from noetl.engine.reading.encoding import window_of
from noetl.engine.work.calling.datasets import CallDatasets
from noetl.engine.work.calling.redact import Redactor
from noetl.ports.tool import ToolCall, ToolResult
from noetl.processes.server import problems
from noetl.processes.server.auth import EVERYTHING, Doorkeeper
from noetl.processes.server.owners import Owner
from noetl.processes.server.routes import results
from noetl.processes.server.routing import API, install
from tests.support.aio import asynchronous
from tests.support.collecting import until_gone
from tests.support.databases import empty_database
from tests.support.datasets import landed
from tests.support.engine import OWNER, Running, completed, running_engine


def table_of(rows: int) -> Any:
    """Partitioned by `day`, these rows keep their order: all of a day stand together."""
    third = -(-rows // 3)
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "amount": pa.array([number * 1.5 for number in range(rows)]),
            "name": [f"row {number}" for number in range(rows)],
            "day": pa.array([[None, "2026-01-01", "größe/x=1"][number // third] for number in range(rows)]),
        }
    )


class WritesDatasets:
    """Stands where the http tool stands: what a job of an engine would leave, written here."""

    kind = "http"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def run(self, call: ToolCall) -> ToolResult:
        assert call.datasets is not None
        rows = int(str(call.fields.get("url")))
        table = table_of(rows)
        job = landed(self._folder, table, rows_per_file=max(rows // 5, 1), rows_per_group=500, partition_by=["day"])
        reference = await call.datasets.keep(job)
        value = {"status": "success", "rows": None, "row_count": rows, "columns": table.column_names}
        return ToolResult(value=value, parts={("rows",): reference})


@pytest.fixture(scope="module")
def address() -> str:
    return empty_database()


@pytest.fixture
def own_address() -> str:
    """Whose ledger names nothing that is elsewhere."""
    return empty_database()


@asynccontextmanager
async def engine_with(address: str, home: Path) -> AsyncIterator[Running]:
    async with running_engine(address, home) as running:
        tools: Any = running.engine.tools
        tools["http"] = WritesDatasets(home / "jobs")
        yield running


SEEN = """
workflow:
  - step: write
    tool: {kind: http, url: "{{ workload.count }}"}
    next: [{step: see, when: "{{ write.row_count > 2 and write.rows[2].id == 2 }}"}]
  - step: see
    tool:
      kind: noop
      result:
        first: "{{ write.rows[0] }}"
        last: "{{ write.rows[-1].amount }}"
        length: "{{ write.rows | length }}"
        some: "{{ write.rows[1:3] | map(attribute='name') | list }}"
        text: "{{ write.rows[1].name }} on {{ write.rows[-1].day }}"
    next: [{step: rows}]
  - step: rows
    tool:
      kind: python
      input: {rows: "{{ write.rows }}"}
      code: |
        result = {"n": len(rows), "ids": sum(row["id"] for row in rows), "last": rows[-1]}
    next: [{step: arrow}]
  - step: arrow
    tool:
      kind: python
      tables: arrow
      input: {rows: "{{ write.rows }}"}
      code: |
        result = {"n": rows.num_rows, "names": rows.column_names, "nulls": rows.column("day").null_count}
    next: [{step: pandas}]
  - step: pandas
    tool:
      kind: python
      tables: pandas
      input: {rows: "{{ write }}"}
      code: |
        result = {"n": len(rows["rows"]), "sum": float(rows["rows"]["amount"].sum())}
    next: [{step: duck}]
  - step: duck
    tool:
      kind: duckdb
      input: {w: "{{ write.rows }}"}
      command: SELECT day, count(*) AS n, sum(id)::bigint AS ids FROM w GROUP BY day ORDER BY day NULLS FIRST
    next: [{step: all}]
  - step: all
    tool:
      kind: noop
      result:
        see: "{{ see }}"
        rows: "{{ rows }}"
        arrow: "{{ arrow }}"
        pandas: "{{ pandas }}"
        duck: "{{ duck.rows }}"
"""


@pytest.mark.parametrize("count", [30, 30_000])
@asynchronous
async def test_whoever_reads_tables_reads_datasets(address: str, tmp_path: Path, count: int) -> None:
    async with engine_with(address, tmp_path) as engine:
        result = completed(await engine.run(SEEN, {"count": count}))
    third = count // 3
    assert result["see"] == {
        "first": {"id": 0, "amount": 0.0, "name": "row 0", "day": None},
        "last": (count - 1) * 1.5,
        "length": count,
        "some": ["row 1", "row 2"],
        "text": "row 1 on größe/x=1",
    }
    last = {"id": count - 1, "amount": (count - 1) * 1.5, "name": f"row {count - 1}", "day": "größe/x=1"}
    assert result["rows"] == {"n": count, "ids": sum(range(count)), "last": last}
    assert result["arrow"] == {"n": count, "names": ["id", "amount", "name", "day"], "nulls": third}
    assert result["pandas"] == {"n": count, "sum": sum(range(count)) * 1.5}
    assert [row["n"] for row in result["duck"]] == [third] * 3
    assert sum(row["ids"] for row in result["duck"]) == sum(range(count))


LOOP = """
workflow:
  - step: write
    tool: {kind: http, url: "7"}
    next: [{step: each}]
  - step: each
    loop: {in: "{{ write.rows }}", iterator: row}
    tool: {kind: noop, result: {id: "{{ row.id }}", day: "{{ row.day }}"}}
    next: [{step: see}]
  - step: see
    tool: {kind: noop, result: {found: "{{ each.results | map(attribute='id') | list }}"}}
"""


@asynchronous
async def test_a_loop_goes_over_the_rows_of_a_dataset(address: str, tmp_path: Path) -> None:
    async with engine_with(address, tmp_path) as engine:
        assert completed(await engine.run(LOOP))["found"] == list(range(7))


# --- what is recorded ------------------------------------------------------------------------------------


def parts_in(home: Path) -> list[Any]:
    """The parts that the only manifest of a home lists."""
    for path in home.rglob("payloads/**/*"):
        if path.is_file() and path.read_bytes().startswith(b'{"arrow_schema"'):
            found: list[Any] = json.loads(path.read_bytes())["parts"]
            return found
    raise AssertionError("there is no manifest")


class GivesDatasets(WritesDatasets):
    """Its result is a dataset and nothing else."""

    async def run(self, call: ToolCall) -> ToolResult:
        found = await super().run(call)
        return ToolResult(parts={(): found.parts["rows",]})


@asynchronous
async def test_a_result_that_is_a_dataset(address: str, tmp_path: Path) -> None:
    body = """
    workflow:
      - step: write
        tool: {kind: http, url: "5000"}
        next: [{step: see}]
      - step: see
        tool:
          kind: noop
          result:
            n: "{{ write | length }}"
            row: "{{ write[4999].id }}"
            store: "{{ write._store }}"
            ref: "{{ write._ref }}"
    """
    async with engine_with(address, tmp_path) as engine:
        tools: Any = engine.engine.tools
        tools["http"] = GivesDatasets(tmp_path / "jobs")
        told = await engine.run(body)
        found = completed(told)
        assert (found["n"], found["row"]) == (5_000, 4_999)
        assert found["store"] is not None
        assert found["ref"]["media_type"] == MEDIA_DATASET
        trace = await engine.engine.traces.trace(told.state.execution_id, "see", **OWNER)
        (write,) = [one.ref for one in trace.results if one.ref.step == "write"]
        assert (write.media_type, write.row_count) == (MEDIA_DATASET, 5_000)
        assert write.schema_digest
        read = await engine.run(
            f"""
            workflow:
              - step: read
                tool: {{kind: artifact, action: get, uri: "{found["ref"]["uri"]}"}}
                next: [{{step: see}}]
              - step: see
                tool: {{kind: noop, result: {{read: "{{{{ read }}}}", row: "{{{{ read.data[7].name }}}}"}}}}
            """
        )
        assert completed(read)["row"] == "row 7"


@asynchronous
async def test_a_small_dataset_is_no_external_result(address: str, tmp_path: Path) -> None:
    body = """
    workflow:
      - step: write
        tool: {kind: http, url: "%d"}
        next: [{step: see}]
      - step: see
        tool: {kind: noop, result: {ref: "{{ write._ref | default('none') }}", n: "{{ write.rows | length }}"}}
    """
    async with engine_with(address, tmp_path) as engine:
        assert completed(await engine.run(body % 3)) == {"ref": "none", "n": 3}
        large = completed(await engine.run(body % 20_000))
    assert large["ref"] != "none"
    assert large["n"] == 20_000


# --- results for whoever is outside ----------------------------------------------------------------------


async def encoded(engine: Running, execution_id: int, name: str, **window: Any) -> bytes:
    reading = await engine.engine.results.find(execution_id, "write", **OWNER)
    rows = await reading.rows(parsed_path(""))
    window = {"offset": 0, "limit": None, "columns": None} | window
    pieces = engine.engine.results.encoder.encoded(rows, window_of(rows, **window), name)
    return b"".join([piece async for piece in pieces])


@asynchronous
async def test_readers_outside_get_pages_and_formats(address: str, tmp_path: Path) -> None:
    table = table_of(12_000)
    async with engine_with(address, tmp_path) as engine:
        told = await engine.run(SEEN.partition("    next:")[0], {"count": 12_000})
        completed(told)
        run = told.state.execution_id
        arrow = ipc.open_stream(await encoded(engine, run, "arrow")).read_all()
        assert arrow.to_pylist() == table.to_pylist()
        parquet = pq.read_table(io.BytesIO(await encoded(engine, run, "parquet")))
        assert parquet.to_pylist() == table.to_pylist()
        page = await encoded(engine, run, "csv", offset=11_990, limit=5, columns=["day", "id"])
        assert list(csv.reader(io.StringIO(page.decode()))) == [
            ["day", "id"],
            *[["größe/x=1", str(number)] for number in range(11_990, 11_995)],
        ]
        lines = (await encoded(engine, run, "ndjson", offset=3_999, limit=2)).decode().splitlines()
        assert lines == [
            '{"id":3999,"amount":5998.5,"name":"row 3999","day":null}',
            '{"id":4000,"amount":6000.0,"name":"row 4000","day":"2026-01-01"}',
        ]
        (summary,) = (await engine.engine.results.listed(run, offset=0, limit=10, **OWNER))[1]
        assert (summary.rows, summary.columns) == (12_000, ("id", "amount", "name", "day"))


class WritesOneFile(WritesDatasets):
    """Of columns that everybody reads alike, or of one that only the manifest knows."""

    async def run(self, call: ToolCall) -> ToolResult:
        assert call.datasets is not None
        table = pa.table({"id": pa.array(range(3_000), pa.int64()), "n": pa.array([1] * 3_000, pa.int32())})
        job = landed(self._folder, table)
        if call.fields["url"] == "narrow":
            schema = pa.schema([("id", pa.int64()), ("n", pa.uint8())]).serialize().to_pybytes()
            job = replace(job, arrow_schema=schema)
        return ToolResult(value={"rows": None}, parts={("rows",): await call.datasets.keep(job)})


async def asked(engine: Running, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """What the route of results answers, without a server around it."""
    app = FastAPI(redirect_slashes=False)
    problems.install(app)
    install(app, results.router(engine.engine.results).routes, API)
    door = Doorkeeper(app, identify=lambda _token: EVERYTHING, owner=Owner(**OWNER), open_paths=frozenset())
    target, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": target,
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("test", 80),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }
    sent: list[Any] = []

    given: list[dict[str, Any]] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not given:
            await asyncio.Event().wait()  # nobody hangs up
        return given.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    await door(scope, receive, send)
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:])


@asynchronous
async def test_a_dataset_of_one_file_is_given_as_that_file(address: str, tmp_path: Path) -> None:
    body = """
    workflow:
      - step: write
        tool: {kind: http, url: "%s"}
    """
    async with engine_with(address, tmp_path) as engine:
        tools: Any = engine.engine.tools
        tools["http"] = WritesOneFile(tmp_path / "jobs")
        told = await engine.run(body % "same")
        place = f"/api/executions/{told.state.execution_id}/results/write"
        status, headers, content = await asked(engine, place, Accept="application/vnd.apache.parquet")
        digest = hashlib.sha256(content).hexdigest()
        assert (status, headers["etag"], headers["noetl-total-rows"]) == (200, f'"{digest}"', "3000")
        assert len(list(tmp_path.rglob(f"payloads/**/{digest}"))) == 1
        assert pq.read_table(io.BytesIO(content)).num_rows == 3_000
        status, headers, some = await asked(engine, f"{place}?format=parquet&path=rows", Range="bytes=4-99")
        assert (status, some) == (206, content[4:100])
        status, headers, _ = await asked(engine, f"{place}?format=parquet", **{"If-None-Match": f'"{digest}"'})
        assert status == 304
        # Some of the rows are another file, and so are rows that a reader of the file would see otherwise.
        status, _, some = await asked(engine, f"{place}?format=parquet&offset=2990&columns=id")
        assert pq.read_table(io.BytesIO(some)).to_pylist() == [{"id": number} for number in range(2_990, 3_000)]
        told = await engine.run(body % "narrow")
        place = f"/api/executions/{told.state.execution_id}/results/write"
        _, _, content = await asked(engine, f"{place}?format=parquet")
        assert pq.read_table(io.BytesIO(content)).schema.field("n").type == pa.uint8()
        status, headers, raw = await asked(engine, f"{place}?format=json&path=rows&limit=1")
        assert (status, raw) == (200, b'[{"id":0,"n":1}]')


# --- what is kept ----------------------------------------------------------------------------------------


@asynchronous
async def test_the_collector_keeps_parts_that_are_listed_and_no_others(own_address: str, tmp_path: Path) -> None:
    async with engine_with(own_address, tmp_path) as engine:
        told = await engine.run(SEEN.partition("    next:")[0], {"count": 3_000})
        completed(told)
        store: Any = engine.engine.stores.durable["file"]
        # A job that died before its manifest was stored.
        lost = landed(tmp_path / "dead", table_of(100))
        part = await store.put_file(lost.parts[0].path, media_type="application/vnd.apache.parquet", **OWNER)
        assert len(parts_in(tmp_path)) > 3
        reports = await until_gone(own_address, home=tmp_path, stores=[CollectedLarge("file", store)])
        assert reports[-1].total([DELETED]).count >= 1
        assert not await store.exists(part, **OWNER)
        after = ipc.open_stream(await encoded(engine, told.state.execution_id, "arrow")).read_all()
        assert after.to_pylist() == table_of(3_000).to_pylist()


# --- the sink --------------------------------------------------------------------------------------------


@asynchronous
async def test_the_sink_knows_one_owner_and_keeps_no_secret(address: str, tmp_path: Path) -> None:
    async with engine_with(address, tmp_path) as running:
        redactor = Redactor()
        sink = CallDatasets(running.engine.payloads, redactor=redactor, **OWNER)
        reference = await sink.keep(landed(tmp_path, pa.table({"a": ["sesame-open"], "b": [1]})))
        assert reference["plain_bytes"] == len('[{"a":"sesame-open","b":1}]')
        local = await sink.laid_out(reference, tmp_path / "laid")
        assert pq.read_table(next(local.root.iterdir())).num_rows == 1
        other = CallDatasets(running.engine.payloads, redactor=redactor, tenant_id="other", organization_id="x")
        with pytest.raises(ToolFailed, match="no payload of this tenant"):
            await other.laid_out(reference, tmp_path / "theirs")
        with pytest.raises(ToolFailed, match="is no dataset"):
            await sink.laid_out({**reference, "media_type": "text/plain"}, tmp_path / "text")
        with pytest.raises(ToolFailed, match="no reference"):
            await sink.laid_out({"uri": "x"}, tmp_path / "none")
        redactor.learn_values(["sesame-open"])
        with pytest.raises(ToolFailed, match="column 'a'") as caught:
            await sink.keep(landed(tmp_path, pa.table({"a": ["sesame-open"], "b": [1]})))
        assert caught.value.failure.code == "SECRET_IN_BODY"
