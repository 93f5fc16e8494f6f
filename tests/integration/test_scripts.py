"""Scripts through the real engine: pinned when an execution begins, fetched when a task runs."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from noetl.core import kinds
from noetl.core.codec import sha256_hex
from noetl.core.errors import PlaybookInvalid
from noetl.core.execution.evolve import fold_all
from noetl.core.execution.state import Status
from noetl.core.reference import reference_from_json
from tests.support.aio import asynchronous
from tests.support.databases import fresh_database
from tests.support.engine import OWNER, Told, _Owner, running_engine
from tests.support.postgres import shared_server
from tests.support.web import web_server

MAIN = "def main(n, who='nobody'):\n    return {'n': n + 1, 'who': who, 'file': __file__}\n"


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    return folder


def scripts_recorded(told: Told, event_type: str = kinds.COMMAND_COMPLETED) -> dict[str, Any]:
    return {name: one for event in told.of_type(event_type) for name, one in event.meta.get("scripts", {}).items()}  # type: ignore[attr-defined]


def error_of(told: Told) -> dict[str, Any]:
    assert told.state.result is not None
    context: Any = told.state.result["context"]
    return dict(context["error"])


@asynchronous
async def test_a_script_is_called_with_its_input_and_the_context(address: str, tmp_path: Path, scripts: Path) -> None:
    (scripts / "lib").mkdir()
    (scripts / "lib" / "add.py").write_text(MAIN)
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workload: {who: Ada, unused: 5}
        workflow:
          - step: start
            tool: {kind: python, script: lib/add.py, input: {n: 1}}
        """)
    assert told.result == {"n": 2, "who": "Ada", "file": "lib/add.py"}
    reference: Any = told.events[0].meta["scripts"]
    assert reference["lib/add.py"]["sha256"] == sha256_hex(MAIN.encode())
    assert told.events[0].meta["script_names"] == {"lib/add.py": ["n", "who"]}
    # It came by reference with the first event; nothing was fetched.
    assert scripts_recorded(told) == {}
    assert fold_all(told.events) == told.state


@asynchronous
async def test_an_execution_keeps_the_script_that_it_began_with(address: str, tmp_path: Path, scripts: Path) -> None:
    file = scripts / "job.py"
    file.write_text("import pathlib\ndef main(mark, n):\n    pathlib.Path(mark).touch()\n    return n\n")
    mark, go = tmp_path / "began", tmp_path / "go"
    async with running_engine(address, tmp_path) as engine:
        execution_id = await engine.start(f"""
        workflow:
          - step: start
            tool:
              kind: python
              code: |
                import pathlib, time
                pathlib.Path({str(mark)!r}).touch()
                while not pathlib.Path({str(go)!r}).exists():
                    time.sleep(0.01)
            next: {{arcs: [{{step: work}}]}}
          - step: work
            tool: {{kind: python, script: job.py, input: {{mark: {str(tmp_path / "x")!r}, n: 1}}}}
        """)
        while not mark.exists():
            await asyncio.sleep(0.01)
        file.write_text("def main(mark, n):\n    return 'changed'\n")
        go.touch()
        told = await engine.finish(execution_id)
        assert told.result == 1
        file.unlink()
        with pytest.raises(PlaybookInvalid, match=r"step 'start', task 'start_task'.*'job\.py'"):
            await engine.start("workflow: [{step: start, tool: {kind: python, script: job.py}}]")


@asynchronous
async def test_a_retry_runs_the_pinned_script_after_the_file_has_changed(
    address: str, tmp_path: Path, scripts: Path
) -> None:
    file = scripts / "flaky.py"
    file.write_text(
        "import pathlib\n"
        "def main(file):\n"
        "    path = pathlib.Path(file)\n"
        "    if path.read_text() != 'changed':\n"
        "        path.write_text('changed')\n"
        "        raise ConnectionError('once')\n"
        "    return 'the first text'\n"
    )
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(f"""
        workflow:
          - step: start
            tool:
              kind: python
              script: {{uri: flaky.py}}
              input: {{file: {str(file)!r}}}
              spec:
                policy: {{rules: [{{when: "{{{{ output.status == 'error' }}}}", then: {{do: retry, attempts: 2}}}}]}}
        """)
    assert told.result == "the first text"


@asynchronous
async def test_a_registered_version_keeps_its_scripts(address: str, tmp_path: Path, scripts: Path) -> None:
    file = scripts / "number.py"
    body = "workflow: [{step: start, tool: {kind: python, script: number.py}}]"
    async with running_engine(address, tmp_path) as engine:
        for number in (1, 2):
            file.write_text(f"result = {number}")
            assert (await engine.register("lib/number", body)).version == number
        file.unlink()
        results = [
            (await engine.finish(await engine.start_version("lib/number", version))).result for version in (1, 2, None)
        ]
        assert results == [1, 2, 2]
        told = await engine.run("""
        workflow:
          - step: start
            tool:
              - {name: old, kind: playbook, path: lib/number, version: 1}
              - {name: new, kind: playbook, path: lib/number}
        """)
        assert (told.result["old"]["data"], told.result["new"]["data"]) == (1, 2)
        # The script of a child is pinned with the child.
        child_id = int(str(told.of_type(kinds.CHILD_STARTED)[0].meta["child_execution_id"]))
        child = await engine.finish(child_id)
        assert list(child.events[0].meta["scripts"]) == ["number.py"]  # type: ignore[call-overload]
        assert child.events[0].meta["catalog"] == told.of_type(kinds.CHILD_STARTED)[0].meta["catalog"]
        assert "scripts" not in told.events[0].meta


@asynchronous
async def test_a_computed_path_is_read_when_the_task_runs_and_recorded(
    address: str, tmp_path: Path, scripts: Path
) -> None:
    (scripts / "two.py").write_text("result = 2")
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        workload: {which: two}
        workflow: [{step: start, tool: {kind: python, script: "{{ workload.which }}.py"}}]
        """)
        assert told.result == 2
        assert "scripts" not in told.events[0].meta
        recorded = scripts_recorded(told)
        assert recorded["two.py"]["sha256"] == sha256_hex(b"result = 2")
        content = await engine.engine.payloads.read(reference_from_json(recorded["two.py"]), **OWNER)
        assert content == b"result = 2"
        for which, said in (("absent", "no such file"), ("../credential", "outside of every root")):
            told = await engine.run(
                "workflow: [{step: start, tool: {kind: python, script: '{{ workload.which }}.py'}}]", {"which": which}
            )
            error = error_of(told)
            assert (told.state.status, error["kind"], error["code"]) == (Status.FAILED, "config", "SCRIPT_UNAVAILABLE")
            assert said in error["message"]
            assert str(scripts) in error["message"]


@asynchronous
async def test_a_script_from_an_address_is_fetched_through_the_http_tool(address: str, tmp_path: Path) -> None:
    asked = []

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        asked.append((request.method, request.rel_url.path, request.headers.get("X-Key")))
        if request.rel_url.path == "/absent.py":
            return web.Response(status=404)
        return web.Response(text="def main(n):\n    return n * 2\n", content_type="text/x-python")

    async with web_server(serve) as port, running_engine(address, tmp_path) as engine:
        host = f"http://127.0.0.1:{port}"
        told = await engine.run(f"""
        workload: {{host: "{host}"}}
        workflow:
          - step: start
            loop: {{in: [1, 2, 3], iterator: n, spec: {{mode: parallel, max_in_flight: 3, frame: {{max_rows: 3}}}}}}
            tool:
              kind: python
              script: {{uri: double.py, source: {{type: http, endpoint: "{{{{ host }}}}/double.py?token=hidden",
                        headers: {{X-Key: k}}, timeout: 5}}}}
              input: {{n: "{{{{ iter.n }}}}"}}
        """)
        assert told.result["results"] == [2, 4, 6]
        # Once for a frame, not once for a row; what may be secret in an address is not recorded.
        assert asked == [("GET", "/double.py", "k")]
        assert list(scripts_recorded(told, kinds.FRAME_COMMITTED)) == [f"{host}/double.py"]
        assert "hidden" not in str([event.meta for event in told.events[1:]])
        told = await engine.run(f"workflow: [{{step: start, tool: {{kind: python, script: '{host}/absent.py'}}}}]")
        error = error_of(told)
        assert (error["kind"], error["status"]) == ("not_found", 404)
        assert f"script '{host}/absent.py'" in error["message"]
        # The address policy is that of the http tool.
        told = await engine.run(
            "workflow: [{step: start, tool: {kind: python, script: 'http://169.254.169.254/latest'}}]"
        )
        assert told.state.status is Status.FAILED
        assert "169.254.169.254" in error_of(told)["message"]


@asynchronous
async def test_what_no_driver_can_read_is_unsupported(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as engine:
        for uri in ("gs://bucket/x.py", "s3://bucket/x.py"):
            told = await engine.run(f"workflow: [{{step: start, tool: {{kind: python, script: '{uri}'}}}}]")
            assert error_of(told)["kind"] == "unsupported"


@asynchronous
async def test_sql_scripts_are_templates_and_python_scripts_are_not(
    address: str, tmp_path: Path, scripts: Path
) -> None:
    (scripts / "rows.sql").write_text("-- it's {{ workload.who }}\nSELECT {{ load.n }} AS n, '{{ who }}' AS who;\n")
    (scripts / "braces.py").write_text("who = 'Ada'\nresult = f'{{{who}}} {{ who }}'\n")
    async with running_engine(address, tmp_path) as engine:
        await engine.engine.credentials.put("pg", type="postgres", data=login(address), owner=_Owner())
        told = await engine.run("""
        workload: {who: Bob}
        workflow:
          - {step: load, tool: {kind: python, code: "result = {'n': 7}"}, next: [{step: read}]}
          - {step: read, tool: {kind: postgres, auth: pg, script: rows.sql}, next: [{step: text}]}
          - step: text
            tool: {kind: python, script: braces.py}
            next: [{step: end}]
          - {step: end, tool: {kind: python, input: {a: "{{ read.rows }}", b: "{{ text }}"}, code: "result = [a, b]"}}
        """)
    assert told.state.failure is None, told.state.failure
    assert told.result == [[{"n": 7, "who": "Bob"}], "{Ada} { who }"]
    names: Any = told.events[0].meta["script_names"]
    assert names == {"rows.sql": ["load", "who"], "braces.py": []}


def login(address: str) -> dict[str, object]:
    server = shared_server().address
    database = urlsplit(address).path.strip("/")
    return {"db_host": str(server.socket_dir), "db_port": server.port, "db_user": "noetl", "db_name": database}


@asynchronous
async def test_code_b64_is_code_and_sees_the_context(address: str, tmp_path: Path) -> None:
    encoded = base64.b64encode(b"def main(x, context):\n    return [x, context['y'], __name__ != '']").decode()
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run(f"""
        workload: {{x: 1, y: 2}}
        workflow: [{{step: start, tool: {{kind: python, code: "result = 'lost'", code_b64: {encoded}}}}}]
        """)
    assert told.result == [1, 2, True]


@asynchronous
async def test_the_error_of_a_script_names_its_file_and_line(address: str, tmp_path: Path, scripts: Path) -> None:
    (scripts / "bad.py").write_text("def main():\n    return 1 / 0\n")
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("workflow: [{step: start, tool: {kind: python, script: bad.py}}]")
        [failed] = told.of_type(kinds.COMMAND_FAILED)
        reference: Any = failed.meta["traceback"]
        text = (await engine.engine.payloads.read(reference_from_json(reference), **OWNER)).decode()
    assert 'File "bad.py", line 2, in main' in text


@asynchronous
async def test_warnings_stand_on_the_first_event_and_stay_with_the_state(
    address: str, tmp_path: Path, scripts: Path
) -> None:
    (scripts / "bad.py").write_text("def main(:\n")
    async with running_engine(address, tmp_path) as engine:
        told = await engine.run("""
        surprise: 1
        workflow:
          - {step: start, tool: {kind: noop}}
          - {step: never, tool: {kind: python, script: bad.py}}
          - {step: child, tool: {kind: playbook, path: no/such}}
          - {step: sql, tool: {kind: postgres, auth: no_such_credential, command: SELECT 1}}
        """)
    codes = [warning["code"] for warning in told.state.warnings]
    for code in ("unknown_root_key", "unreachable_step", "script_syntax", "missing_playbook", "missing_credential"):
        assert code in codes
    assert all(warning["line"] for warning in told.state.warnings)
    assert list(told.state.warnings) == told.events[0].meta["warnings"]
