"""The artifact tool: stored results by reference, and files below the folders that are named."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow import ipc, parquet

from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.core.errors import ToolFailed
from noetl.core.execution.state import Status
from noetl.core.reference import MEDIA_LOOP, MEDIA_PIPELINE
from noetl.engine.payloads import Payloads
from noetl.engine.work.calling.artifacts import Artifacts
from noetl.engine.work.calling.redact import Redactor
from noetl.ports.tool import ToolCall, ToolSettings
from noetl.settings import read_settings
from noetl.tools.artifact import contents
from noetl.tools.artifact.tool import ArtifactTool
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import running_engine

OWNER = {"tenant_id": "acme", "organization_id": "sales"}


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


class Bench:
    """The tool with a store, called as a worker calls it."""

    def __init__(self, root: Path | None = None, *, secrets: tuple[str, ...] = ()) -> None:
        roots = () if root is None else (str(root),)
        self.tool = ArtifactTool(ToolSettings(python_children=1, python_memory_bytes=1, artifact_roots=roots))
        self.payloads = Payloads(small=MemoryPayloads({}), large=MemoryPayloads({}))
        redactor = Redactor()
        redactor.learn_values(secrets)
        self.store = Artifacts(self.payloads, redactor=redactor, **OWNER)

    async def run(self, given: dict[str, object] | None = None, **fields: object) -> Any:
        call = ToolCall(
            fields=fields,
            input=given or {},
            names={},
            context=None,
            timeout_seconds=10,
            execution_id=1,
            step="s",
            label="t",
            artifacts=self.store,
            **OWNER,
        )
        result = await self.tool.run(call)
        assert result.failure is None
        return result.value

    async def fails(self, given: dict[str, object] | None = None, **fields: object) -> tuple[str, str]:
        with pytest.raises(ToolFailed) as failed:
            await self.run(given, **fields)
        return failed.value.failure.kind, failed.value.failure.message

    async def kept(self, value: object, media_type: str = "application/json") -> dict[str, object]:
        payload = await self.payloads.keep_json(value, media_type=media_type, **OWNER)
        await self.payloads.store(payload)
        return payload.reference.to_json()


# --- through the engine ----------------------------------------------------------------------------------

LOAD = """
workflow:
  - step: make
    {hints}
    tool:
      kind: python
      code: 'result = {{"items": list(range(20000)), "count": 20000, "uri": "mine"}}'
    next: [{{step: pipe}}]
  - step: pipe
    output: {{inline_max_bytes: 0}}
    tool: [{{name: one, kind: noop, result: {{a: 1}}}}, {{name: two, kind: noop, result: {{b: "{{{{ one.a + 1 }}}}"}}}}]
    next: [{{step: each}}]
  - step: each
    output: {{inline_max_bytes: 0}}
    loop: {{in: [1, 2, 3], iterator: n}}
    tool: {{kind: noop, result: "{{{{ n * 2 }}}}"}}
    next: [{{step: load}}]
  - step: load
    tool:
      - {{name: object, kind: artifact, result_ref: "{{{{ make._ref }}}}"}}
      - {{name: text, kind: artifact, action: get, input: {{result_ref: "{{{{ make._ref.uri }}}}"}}}}
      - {{name: pipe_ref, kind: artifact, result_ref: "{{{{ pipe._ref }}}}"}}
      - {{name: pipe_uri, kind: artifact, uri: "{{{{ pipe._ref.uri }}}}"}}
      - {{name: each_ref, kind: artifact, result_ref: "{{{{ each._ref.uri }}}}"}}
    next: [{{step: check, when: "{{{{ output.status == 'ok' }}}}"}}, {{step: failed, when: "{{{{ error.kind }}}}"}}]
  - step: failed
    tool: {{kind: noop, result: {{kind: "{{{{ load.error.kind }}}}", message: "{{{{ load.error.message }}}}"}}}}
  - step: check
    tool:
      kind: python
      input:
        load: "{{{{ load.object }}}}"
        text: "{{{{ load.text }}}}"
        rest: ["{{{{ load.pipe_ref.data }}}}", "{{{{ load.pipe_uri.data }}}}", "{{{{ load.each_ref.data }}}}"]
        sizes: ["{{{{ make._size_bytes }}}}", "{{{{ load.object.size_bytes }}}}"]
        top: "{{{{ load.object.count }}}}"
        deep: "{{{{ load.object.data.uri }}}}"
      code: |
        result = {{
            "keys": sorted(load), "same": load["data"] == text["data"] and load["items"] == list(range(20000)),
            "uri": load["uri"].startswith("noetl://"), "type": load["content_type"], "sizes": sizes[0] == sizes[1],
            "rest": rest, "top": top, "deep": deep,
        }}
"""


@asynchronous
async def test_a_reference_of_a_step_gives_its_result(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(LOAD.format(hints=""))
    assert told.state.status is Status.COMPLETED, told.state.failure
    pipeline = {"a": 1, "b": 2, "one": {"a": 1}, "two": {"b": 2}, "_prev": {"b": 2}}
    pipeline["results"] = {"one": {"a": 1}, "two": {"b": 2}}
    loop = {"results": [2, 4, 6], "count": 3, "status": "ok", "stats": {"total": 3, "success": 3, "failed": 0}}
    assert told.result == {
        "keys": ["content_type", "count", "data", "items", "size_bytes", "uri"],
        "same": True,
        "uri": True,
        "type": "application/json",
        "sizes": True,
        "rest": [pipeline, pipeline, loop],
        "top": 20000,
        "deep": "mine",
    }


@asynchronous
async def test_a_result_that_is_inline_has_no_reference_to_load(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(LOAD.format(hints="output: {inline_max_bytes: 1000000}"))
    assert told.state.status is Status.COMPLETED, told.state.failure
    assert told.result["kind"] == "missing_reference"
    assert "result_ref is empty" in told.result["message"]


# --- references ------------------------------------------------------------------------------------------


@asynchronous
async def test_a_reference_may_come_as_an_object_as_json_or_as_an_address() -> None:
    bench = Bench()
    reference = await bench.kept({"n": 1})
    expected = {"n": 1, "data": {"n": 1}, "uri": reference["uri"], "size_bytes": 7, "content_type": "application/json"}
    for form in (reference, json.dumps(reference), reference["uri"], {"_ref": reference, "bytes": 7}):
        assert await bench.run(result_ref=form) == expected
        assert await bench.run({"result_ref": form}) == expected
    assert await bench.run(uri=reference["uri"]) == expected
    assert (await bench.run(result_ref=await bench.kept([1, 2])))["data"] == [1, 2]


@asynchronous
async def test_what_is_kept_of_pipelines_and_loops_is_shown_as_their_result() -> None:
    bench = Bench()
    pipeline = await bench.kept({"order": ["b", "a"], "results": {"a": {"n": 1}, "b": 2}}, MEDIA_PIPELINE)
    frames = [{"first": 0, "rows": 1, "ref": None, "records": [{"v": 5}]}]
    counts = {"total": 1, "success": 1, "failed": 0, "status": "ok"}
    loop = await bench.kept({**counts, "frames": frames}, MEDIA_LOOP)
    for form in ("uri", None):
        of_pipeline = await bench.run(result_ref=pipeline[form] if form else pipeline)
        of_loop = await bench.run(result_ref=loop[form] if form else loop)
        assert (of_pipeline["n"], of_pipeline["data"]["b"]) == (1, 2)
        assert of_loop["data"]["results"] == [5]


@asynchronous
async def test_a_bad_reference_says_what_is_wrong() -> None:
    bench = Bench()
    reference = await bench.kept({"n": 1})
    other = str(reference["uri"]).replace("acme", "other")
    absent = str(reference["uri"])[:-4] + "0000"
    for form in (None, ""):
        assert (await bench.fails(result_ref=form))[0] == "missing_reference"
    for form in (other, absent, "noetl://execution/1/result/2", {**reference, "uri": other}):
        kind, message = await bench.fails(result_ref=form)
        assert kind == "missing_reference", message
    for form in ("s3://x", 7, "{", {"a": 1}):
        assert (await bench.fails(result_ref=form))[0] == "config"
    assert (await bench.fails())[0] == "config"
    assert (await bench.fails(action="delete", uri="noetl://x"))[0] == "config"
    assert (await bench.fails(uri="s3://bucket/key"))[0] == "unsupported"
    assert (await bench.fails(uri="name"))[0] == "unsupported"


@asynchronous
async def test_what_is_put_can_be_got() -> None:
    bench = Bench()
    for data, kind in (
        ({"a": [1, None]}, "application/json"),
        ("text é", "text/plain; charset=utf-8"),
        (7, "application/json"),
    ):
        for compress in (None, True, "gzip"):
            stored = await bench.run(action="put", data=data, compress=compress)
            assert stored["ref"].get("compression") == ("gzip" if compress else None)
            assert stored["content_type"] == kind
            got = await bench.run(result_ref=stored["ref"])
            assert (got["data"], got["uri"]) == (data, stored["uri"])
    named = await bench.run(action="put", uri="noetl://", data={"a": 1}, compress=True)
    assert (await bench.run(uri=named["uri"]))["data"] == {"a": 1}
    assert (await bench.fails(action="put", uri="noetl://tenant/acme/mine", data=1))[0] == "config"
    assert (await bench.fails(action="put", uri="noetl://"))[0] == "config"
    assert (await bench.fails(action="put", data=1, compress="zip"))[0] == "config"


@asynchronous
async def test_a_secret_is_not_stored() -> None:
    bench = Bench(secrets=("very-secret-canary",))
    kind, message = await bench.fails(action="put", data={"a": "x very-secret-canary y"}, compress=True)
    assert kind == "storage_access"
    assert "canary" not in message


# --- files -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def folders(tmp_path: Path) -> AsyncIterator[tuple[Bench, Path, Path]]:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    yield Bench(root), root, outside


@asynchronous
async def test_files_below_a_root_are_read_and_written(tmp_path: Path) -> None:
    async with folders(tmp_path) as (bench, root, _):
        put = await bench.run(action="put", uri=f"file://{root}/a%20b/c.json", data={"n": 1})
        assert put == {"uri": f"file://{root}/a%20b/c.json", "size_bytes": 7, "content_type": "application/json"}
        assert (root / "a b" / "c.json").read_text() == '{"n":1}'
        assert [path.name for path in (root / "a b").iterdir()] == ["c.json"]
        got = await bench.run(uri=f"file://localhost{root}/a%20b/c.json")
        assert (got["n"], got["data"], got["size_bytes"]) == (1, {"n": 1}, 7)
        await bench.run(action="put", uri=f"file://{root}/rows.csv.gz", data="a,b\n", compress=True)
        assert gzip.decompress((root / "rows.csv.gz").read_bytes()) == b"a,b\n"
        assert (await bench.run(uri=f"file://{root}/rows.csv.gz"))["data"] == "a,b\n"
        (root / "raw").write_bytes(b"\xff\x00")
        assert await bench.run(uri=f"file://{root}/raw") == {
            "data": "/wA=",
            "uri": f"file://{root}/raw",
            "size_bytes": 2,
            "content_type": "application/octet-stream",
        }
        (root / "broken.json").write_text("{nope")
        assert (await bench.run(uri=f"file://{root}/broken.json"))["data"] == "{nope"


@asynchronous
async def test_nothing_outside_the_roots_is_touched(tmp_path: Path) -> None:
    async with folders(tmp_path) as (bench, root, outside):
        (outside / "secret").write_text("canary")
        (root / "link").symlink_to(outside / "secret")
        (root / "folder").symlink_to(outside)
        for path in (
            f"{outside}/secret",
            f"{root}/../outside/secret",
            f"{root}/link",
            f"{root}/folder/secret",
            "/etc/passwd",
        ):
            kind, message = await bench.fails(uri=f"file://{path}")
            assert (kind, "canary" in message) == ("storage_access", False), path
            if "link" not in path:
                kind, _ = await bench.fails(action="put", uri=f"file://{path}", data="x")
                assert kind == "storage_access", path
        # A link at the place itself is replaced, and what it points to stays.
        await bench.run(action="put", uri=f"file://{root}/link", data="x")
        assert (outside / "secret").read_text() == "canary"
        assert sorted(path.name for path in outside.iterdir()) == ["secret"]
        assert (await bench.fails(uri=f"file://{root}/absent"))[0] == "not_found"
        assert (await bench.fails(uri=f"file://{root}"))[0] == "storage_access"
        assert (await bench.fails(uri="file://host/x"))[0] == "config"
        assert (await Bench().fails(uri=f"file://{root}/link"))[0] == "storage_access"


def test_the_roots_are_a_setting(tmp_path: Path) -> None:
    assert read_settings({}).artifact_roots == ()
    assert read_settings({"NOETL_ARTIFACT_ROOTS": f"{tmp_path}:/data/x"}).artifact_roots == (tmp_path, Path("/data/x"))


@asynchronous
async def test_bytes_that_only_begin_like_a_table_are_bytes() -> None:
    bench = Bench()
    kept = await bench.store.keep(b"\xff\xff\xff\xff and no table", media_type="application/zip", compression=None)
    assert (await bench.run(result_ref=kept["uri"]))["data"] == "/////yBhbmQgbm8gdGFibGU="


@asynchronous
async def test_rows_become_the_file_that_the_name_promises(tmp_path: Path) -> None:
    rows = [{"id": 1, "name": 'a "b", c', "ok": True}, {"id": 2, "tags": ["x"], "name": None}]
    bench = Bench(tmp_path)
    kept = await bench.run(action="put", uri=f"file://{tmp_path}/rows.csv", data=rows)
    assert kept["content_type"] == "text/csv; charset=utf-8"
    assert (tmp_path / "rows.csv").read_text() == 'id,name,ok,tags\n1,"a ""b"", c",true,\n2,,,"[""x""]"\n'
    kept = await bench.run(action="put", uri=f"file://{tmp_path}/rows.parquet", data=rows)
    assert kept["size_bytes"] == (tmp_path / "rows.parquet").stat().st_size
    expected = [
        {"id": 1, "name": 'a "b", c', "ok": True, "tags": None},
        {"id": 2, "name": None, "ok": None, "tags": ["x"]},
    ]
    assert parquet.read_table(tmp_path / "rows.parquet").to_pylist() == expected
    await bench.run(action="put", uri=f"file://{tmp_path}/rows.arrow", data=rows)
    assert ipc.open_stream((tmp_path / "rows.arrow").read_bytes()).read_all().to_pylist() == expected
    # What is no rows is what it is, whatever the name says.
    await bench.run(action="put", uri=f"file://{tmp_path}/text.csv", data="a,b\n1,2\n")
    assert (tmp_path / "text.csv").read_text() == "a,b\n1,2\n"
    await bench.run(action="put", uri=f"file://{tmp_path}/rows.json", data=rows)
    assert json.loads((tmp_path / "rows.json").read_text()) == rows
    kind, message = await bench.fails(action="put", uri=f"file://{tmp_path}/x.parquet", data=[{"a": 1}, {"a": "x"}])
    assert (kind, "'a'" in message) == ("config", True)


# --- other work goes on ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["store", "file"])
@pytest.mark.parametrize("is_compressed", [True, False])
@asynchronous
async def test_large_data_is_packed_and_read_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, is_compressed: bool
) -> None:
    threads: set[int] = set()

    def noting(original: Any) -> Any:
        def called(*given: Any, **named: Any) -> Any:
            threads.add(threading.get_ident())
            return original(*given, **named)

        return called

    monkeypatch.setattr("noetl.tools.artifact.tool.packed", noting(contents.packed))
    monkeypatch.setattr("noetl.tools.artifact.tool.value_of", noting(contents.value_of))
    monkeypatch.setattr("gzip.compress", noting(gzip.compress))
    bench = Bench(tmp_path)
    data = {"text": "x" * 200_000}
    options: dict[str, object] = {"compression": "gzip"} if is_compressed else {}
    if place == "file":
        options["uri"] = f"file://{tmp_path}/data.json"
    kept = await bench.run(action="put", data=data, **options)
    asked = {"uri": options["uri"]} if place == "file" else {"result_ref": kept["ref"]}
    found = await bench.run(action="get", **asked, **({"compression": "gzip"} if is_compressed else {}))
    assert found["data"] == data
    assert threads
    assert threading.get_ident() not in threads
