"""Results over a real server and by the command line: every format is read back and compared row by row."""

from __future__ import annotations

import csv
import http.client
import io
import json
import os
import pty
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from tests.support.cli import Cli, cli
from tests.support.server import Answer, Place, running_server
from tests.support.yaml import playbook

COUNT = 30_000
BOOK = playbook(f"""
workflow:
  - step: listed
    tool:
      kind: python
      code: |
        rows = [{{"n": i, "t": "é%d" % i, "x": None if i % 3 else i / 8, "l": [{{"k": i}}]}} for i in range({COUNT})]
        result = {{"rows": rows}}
    next: [{{step: columns}}]
  - step: columns
    tool:
      kind: python
      code: |
        import decimal
        import pyarrow as pa
        prices = [decimal.Decimal(i).scaleb(-2) for i in range({COUNT})]
        result = pa.table({{"n": pa.array(range({COUNT}), pa.int32()), "d": pa.array(prices, pa.decimal128(12, 2))}})
    next: [{{step: piped}}]
  - step: piped
    tool:
      - {{name: a, kind: python, code: 'result = {{"k": 1, "rows": [{{"q": 1}}, {{"q": 2}}]}}'}}
      - {{name: b, kind: python, code: 'result = {{"done": True}}'}}
    next: [{{step: each}}]
  - step: each
    loop: {{in: "{{{{ listed.rows[:500] }}}}", iterator: row, spec: {{mode: parallel, max_in_flight: 50}}}}
    tool: {{kind: noop, result: {{n: "{{{{ row.n }}}}"}}}}
    next: [{{step: odd name/here}}]
  - step: odd name/here
    tool: {{kind: python, code: 'result = [{{"a": 1}}, {{"a": "text"}}]'}}
    next: [{{step: number}}]
  - step: number
    tool: {{kind: noop, result: 7}}
    next: [{{step: broken}}]
  - step: broken
    tool:
      - {{name: before, kind: python, code: 'result = {{"n": 5}}'}}
      - {{name: boom, kind: python, code: 'raise ValueError("no")'}}
""")
LISTED: list[dict[str, Any]] = [
    {"n": i, "t": f"é{i}", "x": None if i % 3 else i / 8, "l": [{"k": i}]} for i in range(COUNT)
]


@pytest.fixture(scope="module")
def server() -> Iterator[Place]:
    with running_server(workers=1) as found:
        yield found


@pytest.fixture(scope="module")
def ended(server: Place) -> str:
    execution_id = server.submit(BOOK)
    assert server.finish(execution_id)["status"] == "FAILED", server.logs()
    return execution_id


def ask(server: Place, ended: str, step: str, headers: dict[str, str] | None = None, **query: object) -> Answer:
    place = f"/api/executions/{ended}/results/{quote(step, safe='')}"
    return server.request("GET", f"{place}?{urlencode(query)}", headers=headers)


def problem(answer: Answer) -> tuple[int, str, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.content[:200]
    return answer.status, answer.json["code"], answer.json["detail"]


# --- formats ---------------------------------------------------------------------------------------------


def test_json_is_the_default_and_is_the_plain_result(server: Place, ended: str) -> None:
    answer = ask(server, ended, "listed")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json == {"rows": LISTED}
    assert ask(server, ended, "piped").json == {
        **{"k": 1, "rows": [{"q": 1}, {"q": 2}], "done": True, "a": {"k": 1, "rows": [{"q": 1}, {"q": 2}]}},
        **{"b": {"done": True}, "results": {"a": {"k": 1, "rows": [{"q": 1}, {"q": 2}]}, "b": {"done": True}}},
        "_prev": {"done": True},
    }
    assert ask(server, ended, "number").json == 7
    failed = ask(server, ended, "broken").json
    assert (failed["status"], failed["n"], failed["error"]["kind"]) == ("error", 5, "python")


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("ndjson", "application/x-ndjson"),
        ("csv", "text/csv"),
        ("arrow", "application/vnd.apache.arrow.stream"),
        ("parquet", "application/vnd.apache.parquet"),
    ],
)
def test_every_format_reads_back_row_by_row(server: Place, ended: str, name: str, media_type: str) -> None:
    named, accepted = ask(server, ended, "listed", format=name), ask(server, ended, "listed", {"Accept": media_type})
    assert named.status == accepted.status == 200, named.content[:500]
    assert named.content == accepted.content
    assert named.headers["content-type"].startswith(media_type)
    assert named.headers["noetl-total-rows"] == str(COUNT)
    if name == "csv":
        rows = list(csv.DictReader(io.StringIO(named.content.decode(), newline="")))
        assert [
            {"n": int(row["n"]), "t": row["t"], "x": float(row["x"]) if row["x"] else None, "l": json.loads(row["l"])}
            for row in rows
        ] == LISTED
    elif name == "ndjson":
        assert [json.loads(line) for line in named.content.splitlines()] == LISTED
    else:
        assert _table(named.content, name).to_pylist() == LISTED


def _table(content: bytes, name: str) -> pa.Table:
    return ipc.open_stream(content).read_all() if name == "arrow" else pq.read_table(io.BytesIO(content))


def test_a_table_keeps_its_exact_types(server: Place, ended: str) -> None:
    whole = pa.table(
        {
            "n": pa.array(range(COUNT), pa.int32()),
            "d": pa.array([Decimal(i).scaleb(-2) for i in range(COUNT)], pa.decimal128(12, 2)),
        }
    )
    for name in ("arrow", "parquet"):
        assert _table(ask(server, ended, "columns", format=name).content, name).equals(whole), name
        part = ask(server, ended, "columns", format=name, offset=29_000, limit=5, columns="d")
        assert _table(part.content, name).equals(whole.slice(29_000, 5).select(["d"])), name
    text = ask(server, ended, "columns", format="csv", offset=149, limit=2).content.decode()
    assert text == '"n","d"\n149,1.49\n150,1.50\n'
    assert ask(server, ended, "columns", offset=7, limit=1).json == [{"n": 7, "d": 0.07}]


def test_a_readable_table(server: Place, ended: str) -> None:
    answer = ask(server, ended, "piped", {"Accept": "text/plain"})
    assert answer.content.decode() == "q\n-\n1\n2\n"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


# --- parts and pages -------------------------------------------------------------------------------------


def test_paths_lead_to_parts(server: Place, ended: str) -> None:
    assert ask(server, ended, "piped", path="a.rows[1].q").json == 2
    assert ask(server, ended, "listed", path="rows[29999].t").json == "é29999"
    assert ask(server, ended, "each", path="results[3]").json == {"n": 3}
    assert ask(server, ended, "piped", format="csv", path="results.a.rows").content == b'"q"\n1\n2\n'
    assert problem(ask(server, ended, "piped", path="a.row"))[:2] == (404, "result_unknown")


@pytest.mark.parametrize(("step", "total"), [("listed", COUNT), ("columns", COUNT), ("each", 500)])
def test_following_the_next_link_gives_every_row_once(server: Place, ended: str, step: str, total: int) -> None:
    place = f"/api/executions/{ended}/results/{step}?format=ndjson&columns=n&limit={total // 4 + 1}"
    found: list[Any] = []
    pages = 0
    while place:
        answer = server.request("GET", place)
        assert answer.status == 200, answer.content
        assert answer.headers["noetl-total-rows"] == str(total)
        found += [json.loads(line)["n"] for line in answer.content.splitlines()]
        pages += 1
        links = re.findall(r'<([^>]*)>; rel="next"', answer.headers.get("link", ""))
        place = links[0] if links else ""
    assert (found, pages) == (list(range(total)), 4)


def test_beyond_the_end_there_are_no_rows(server: Place, ended: str) -> None:
    answer = ask(server, ended, "each", offset=10**9)
    assert (answer.status, answer.json, answer.headers["noetl-total-rows"]) == (200, [], "500")
    assert ask(server, ended, "each", limit=0, format="csv").content == b""
    assert "link" not in answer.headers


# --- the stored bytes ------------------------------------------------------------------------------------


def test_stored_bytes_have_ranges_and_validators(server: Place, ended: str) -> None:
    whole = ask(server, ended, "columns", raw="true")
    digest = whole.headers["etag"]
    assert whole.headers["content-type"] == "application/vnd.apache.arrow.stream"
    assert whole.headers["content-length"] == str(len(whole.content))
    assert ask(server, ended, "columns", {"Accept": "application/vnd.apache.arrow.stream"}).content == whole.content
    assert ask(server, ended, "columns", {"If-None-Match": digest}, raw="true").status == 304
    part = ask(server, ended, "columns", {"Range": "bytes=10-19"}, raw="true")
    assert (part.status, part.content) == (206, whole.content[10:20])
    assert part.headers["content-range"] == f"bytes 10-19/{len(whole.content)}"
    last = ask(server, ended, "columns", {"Range": "bytes=-7", "If-Range": digest}, raw="true")
    assert (last.status, last.content) == (206, whole.content[-7:])
    changed = ask(server, ended, "columns", {"Range": "bytes=0-1", "If-Range": '"other"'}, raw="true")
    assert (changed.status, changed.content) == (200, whole.content)
    beyond = ask(server, ended, "columns", {"Range": f"bytes={10**9}-"}, raw="true")
    assert problem(beyond)[:2] == (416, "range_not_satisfiable")
    assert beyond.headers["content-range"] == f"bytes */{len(whole.content)}"
    own = ask(server, ended, "piped", {"Accept": "application/vnd.noetl.pipeline+json"})
    assert set(own.json) == {"order", "results"}
    assert problem(ask(server, ended, "columns", raw="true", path="rows"))[:2] == (422, "request_invalid")


def test_what_was_read_before_is_not_sent_again(server: Place, ended: str) -> None:
    first = ask(server, ended, "listed", format="csv", limit=3)
    again = ask(server, ended, "listed", {"If-None-Match": first.headers["etag"]}, format="csv", limit=3)
    assert (again.status, again.content) == (304, b"")
    other = ask(server, ended, "listed", {"If-None-Match": first.headers["etag"]}, format="csv", limit=4)
    assert other.status == 200


def test_a_head_is_the_answer_without_its_bytes(server: Place, ended: str) -> None:
    for query in ("raw=true", "format=csv&limit=3", "", "format=parquet"):
        place = f"/api/executions/{ended}/results/columns?{query}"
        whole, head = server.request("GET", place), server.request("HEAD", place, headers={"Range": "bytes=0-3"})
        assert (head.status, head.content) == (200, b"")
        for name in ("etag", "content-type", "content-length", "noetl-total-rows", "link"):
            assert head.headers.get(name) == whole.headers.get(name), name
        assert server.request("HEAD", place, headers={"If-None-Match": head.headers["etag"]}).status == 304
    assert server.request("HEAD", f"/api/executions/{ended}/results/nowhere").status == 404


# --- what cannot be given --------------------------------------------------------------------------------


def test_what_cannot_be_given_says_what_can(server: Place, ended: str) -> None:
    status, code, detail = problem(ask(server, ended, "number", format="csv"))
    assert (status, code) == (406, "result_not_tabular")
    assert "ask for json" in detail
    status, code, detail = problem(ask(server, ended, "odd name/here", format="parquet"))
    assert (status, code) == (406, "result_not_tabular")
    assert "column 'a' is text in row 1 and a whole number in a row before it: ask for json or ndjson" in detail
    assert ask(server, ended, "odd name/here", format="csv").content == b'"a"\n"1"\n"text"\n'
    assert problem(ask(server, ended, "listed", {"Accept": "image/png"}))[:2] == (406, "not_acceptable")
    assert problem(ask(server, ended, "columns", columns="n,zzz"))[:2] == (422, "request_invalid")
    assert problem(ask(server, ended, "listed", colums="n"))[:2] == (422, "request_invalid")
    assert problem(ask(server, ended, "number", raw="true", offset=1))[:2] == (422, "request_invalid")


def test_what_is_not_there_is_said(server: Place, ended: str) -> None:
    status, code, detail = problem(ask(server, ended, "listd"))
    assert (status, code) == (404, "result_unknown")
    assert "'listed', 'columns', 'piped'" in detail
    assert problem(server.request("GET", "/api/executions/1/results/listed"))[:2] == (404, "execution_unknown")
    assert problem(server.request("GET", "/api/executions/1/results"))[:2] == (404, "execution_unknown")
    foreign = {"Noetl-Tenant": "other"}
    assert problem(ask(server, ended, "listed", foreign))[:2] == (404, "execution_unknown")
    assert problem(server.request("GET", f"/api/executions/{ended}/results/listed", token="worker_token"))[0] == 403
    assert problem(server.request("GET", f"/api/executions/{ended}/results/listed", token=None))[0] == 401


def test_a_step_that_runs_is_not_ready(server: Place) -> None:
    waiting = playbook("""
    workflow:
      - step: slow
        tool: {kind: python, code: "import time; time.sleep(60)"}
    """)
    execution_id = server.submit(waiting)
    status, code, detail = problem(ask(server, execution_id, "slow"))
    assert (status, code) == (409, "result_unfinished")
    assert f"GET /api/executions/{execution_id}?wait=terminal" in detail
    assert server.request("POST", f"/api/executions/{execution_id}/cancel").status == 202
    server.finish(execution_id)
    assert ask(server, execution_id, "slow").json["error"]["kind"] == "cancelled"


def test_steps_with_results_are_listed(server: Place, ended: str) -> None:
    answer = server.request("GET", f"/api/executions/{ended}/results")
    found = {one["step"]: one for one in answer.json["results"]}
    assert list(found) == ["listed", "columns", "piped", "each", "odd name/here", "number", "broken"]
    assert (found["listed"]["rows"], found["listed"]["columns"]) == (COUNT, ["n", "t", "x", "l"])
    assert (found["columns"]["rows"], found["columns"]["columns"]) == (COUNT, ["n", "d"])
    assert found["columns"]["media_type"] == "application/vnd.apache.arrow.stream"
    assert (found["each"]["rows"], found["number"]["rows"], found["broken"]["status"]) == (500, None, "error")
    page = server.request("GET", f"/api/executions/{ended}/results", offset=1, limit=2).json
    assert ([one["step"] for one in page["results"]], page["total"], page["next_offset"]) == (
        ["columns", "piped"],
        7,
        3,
    )


def test_missing_and_damaged_payloads_are_problems_and_no_failure_of_ours(server: Place) -> None:
    execution_id = server.submit(BOOK.replace('"é%d"', '"w%d"'))
    server.finish(execution_id)
    payloads = server.home / "payloads"
    sizes = {
        one["step"]: one for one in server.request("GET", f"/api/executions/{execution_id}/results").json["results"]
    }
    digest = ask(server, execution_id, "listed", raw="true").headers["etag"].strip('"')
    file = next(payloads.rglob(digest))
    content = file.read_bytes()
    file.write_bytes(content[:-100] + b"#" * 100)
    status, code, _ = problem(ask(server, execution_id, "listed", format="csv"))
    assert (status, code) == (409, "payload_corrupt")
    assert sizes["listed"]["problem"] is None
    assert not _is_whole(server, f"/api/executions/{execution_id}/results/listed")
    assert _is_whole(server, f"/api/executions/{execution_id}/results/columns?raw=true")
    file.unlink()
    for query in ({"format": "csv"}, {}, {"raw": "true"}, {"path": "rows[29999]"}):
        assert problem(ask(server, execution_id, "listed", **query))[:2] == (404, "payload_missing"), query
    assert server.request("GET", "/readyz", token=None).status == 200


def _is_whole(server: Place, path: str) -> bool:
    """Whether an answer came to its end."""
    connection = server.connect()
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {server.tokens['token']}"})
        response = connection.getresponse()
        assert response.status == 200
        return len(response.read()) == int(response.headers["Content-Length"])
    except (http.client.IncompleteRead, ConnectionError):
        return False
    finally:
        connection.close()


def test_a_reader_that_leaves_takes_nothing_with_it(server: Place, ended: str) -> None:
    parts = urlsplit(server.url)
    for _ in range(5):
        with socket.create_connection((parts.hostname, parts.port)) as reader:
            reader.sendall(
                f"GET /api/executions/{ended}/results/listed?format=ndjson HTTP/1.1\r\nHost: x\r\n"
                f"Authorization: Bearer {server.tokens['token']}\r\n\r\n".encode()
            )
            assert reader.recv(1_000).startswith(b"HTTP/1.1 200")
    assert ask(server, ended, "listed", limit=1).status == 200
    assert "request.defect" not in server.logs()
    assert "Traceback" not in server.logs()


# --- the command line ------------------------------------------------------------------------------------


def test_the_command_line_writes_every_format(server: Place, ended: str, tmp_path: Path) -> None:
    run = server.cli()
    piped = run("result", ended, "listed")
    assert (piped.code, piped.json) == (0, {"rows": LISTED}), piped.stderr
    for name in ("json", "ndjson", "csv", "arrow", "parquet"):
        file = tmp_path / f"rows.{name}"
        done = run("result", ended, "columns", "-o", str(file))
        assert done.code == 0, done.stderr
        assert file.read_bytes() == ask(server, ended, "columns", format=name).content, name
    text = run("result", ended, "piped", "--format", "table")
    assert text.stdout == "q\n-\n1\n2\n"
    assert run(
        "result", ended, "listed", "--path", "rows", "--offset", "5", "--limit", "1", "--columns", "t,n"
    ).json == [{"t": "é5", "n": 5}]
    assert sorted(tmp_path.iterdir()) == sorted(
        tmp_path / f"rows.{name}" for name in ("json", "ndjson", "csv", "arrow", "parquet")
    )


def test_a_file_is_written_whole_or_not_at_all(server: Place, ended: str, tmp_path: Path) -> None:
    run = server.cli()
    file = tmp_path / "x.parquet"
    file.write_bytes(b"before")
    done = run("result", ended, "odd name/here", "-o", str(file))
    assert (done.code, file.read_bytes()) == (2, b"before")
    assert "column 'a' is text in row 1" in done.stderr
    done = run("result", ended, "columns", "-o", str(tmp_path / "no" / "x.csv"))
    assert done.code == 2
    assert "cannot be written" in done.stderr
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_keeps_its_place_and_a_pipe_takes_the_bytes(server: Place, ended: str, tmp_path: Path) -> None:
    run = server.cli()
    content = ask(server, ended, "number").content
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    for _ in ("made", "replaced"):
        assert run("result", ended, "number", "-o", str(link)).code == 0
        assert (link.is_symlink(), target.read_bytes()) == (True, content)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        assert run("result", ended, "number", "--format", "json", "-o", str(pipe)).code == 0
        assert reader.communicate(timeout=60)[0] == content
    assert pipe.is_fifo()
    assert run("result", ended, "number", "-o", "/dev/null").code == 0
    done = run("result", ended, "number", "-o", "/dev/full")
    assert (done.code, "cannot be written" in done.stderr) == (2, True)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["far", "link.json", "pipe", "target.json"]


@pytest.mark.parametrize("name", ["", ".", "/", "{folder}", "{folder}/", "{folder}/new/"])
def test_a_name_that_is_no_file_is_refused(server: Place, ended: str, tmp_path: Path, name: str) -> None:
    done = server.cli()("result", ended, "number", "-o", name.format(folder=tmp_path))
    assert (done.code, "Traceback" in done.stderr) == (2, False)
    assert "name a file" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_mistakes_on_the_command_line_are_told(server: Place, ended: str) -> None:
    run = server.cli()
    done = run("result", ended, "listd")
    assert done.code == 2
    assert "there is no result of step 'listd'" in done.stderr
    assert run("result", "1", "listed").code == 2
    assert run("result", ended, "--format", "csv").code == 2
    listed = run("result", ended)
    assert [one["step"] for one in listed.json][:2] == ["listed", "columns"]


def on_terminal(command: Cli, *words: str) -> tuple[int, str]:
    """What a person sees."""
    outer, inner = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "noetl", *words], env=command.environment(), stdin=inner, stdout=inner, stderr=inner
    ) as process:
        os.close(inner)
        seen = b""
        while True:
            try:
                piece = os.read(outer, 65_536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            seen += piece
        code = process.wait(60)
    os.close(outer)
    return code, seen.decode().replace("\r\n", "\n")


def test_a_terminal_shows_a_few_rows_and_how_to_get_all(server: Place, ended: str) -> None:
    run = server.cli()
    code, seen = on_terminal(run, "result", ended, "columns")
    lines = seen.splitlines()
    assert (code, lines[0].split(), len(lines)) == (0, ["n", "d"], 2 + 50 + 1)
    assert lines[-1] == "50 of 30,000 rows: more with --offset and --limit, all with --format csv -o FILE"
    code, seen = on_terminal(run, "result", ended, "columns", "--format", "parquet")
    assert (code, "not for a terminal" in seen, "-o FILE" in seen) == (2, True, True)
    code, seen = on_terminal(run, "result", ended, "broken")
    assert code == 0
    assert json.loads(seen)["status"] == "error"
    code, seen = on_terminal(run, "result", ended)
    assert (code, "listed" in seen, "30,000 rows" in seen) == (0, True, True)


def test_results_are_read_with_a_host_and_without_one() -> None:
    with cli() as command:
        book = command.home / "book.yaml"
        book.write_text(playbook("workflow:\n  - step: one\n    tool: {kind: python, code: 'result = [{\"a\": 1}]'}\n"))
        ran = command("run", str(book), "--json")
        execution_id = ran.json["execution_id"]
        # Nobody hosts now: the command reads by itself.
        assert command("result", execution_id, "one", "--format", "csv").stdout == '"a"\n1\n'
        assert command("up").code == 0
        assert command("result", execution_id, "one").json == [{"a": 1}]
