"""Rows of databases and large answers through whole playbooks: what later steps see of them, and what is stored."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from noetl.core import kinds
from noetl.core.reference import MEDIA_ARROW
from noetl.processes.server.owners import Owner
from tests.support.aio import asynchronous
from tests.support.databases import empty_database
from tests.support.engine import OWNER, Running, completed, running_engine
from tests.support.standin import standin_process
from tests.support.work import Work, work_database


@pytest.fixture(scope="module")
def address() -> str:
    return empty_database()


@pytest.fixture(scope="module")
def work() -> Work:
    return work_database()


@pytest.fixture(scope="module")
def standin() -> Iterator[str]:
    with standin_process() as found:
        yield found


@asynccontextmanager
async def engine_with(address: str, home: Path, work: Work) -> AsyncIterator[Running]:
    async with running_engine(address, home) as engine:
        await engine.engine.credentials.put("pg", type="postgres", data=work.login, owner=Owner(**OWNER))
        yield engine


def largest(home: Path) -> list[int]:
    """The sizes of the payloads that are files, the large ones first."""
    return sorted((path.stat().st_size for path in home.rglob("payloads/**/*") if path.is_file()), reverse=True)


QUERY = """
workflow:
  - step: load
    tool:
      kind: postgres
      auth: pg
      command: |
        SELECT 1 AS only;
        SELECT g AS id, g * 1.50 AS amount, date '2024-01-01' + g % 30 AS day, 'row ' || g AS name
        FROM generate_series(1, {{{{ workload.count | default(20) }}}}) AS g ORDER BY g
    next: [{{step: see, when: "{{{{ load.row_count > 0 and load.rows[2].id == 3 }}}}"}}]
  - step: see
    tool:
      kind: python
      input:
        rows: "{{{{ load.rows }}}}"
        same: "{{{{ load.command_1.rows[1] }}}}"
        only: "{{{{ load.command_0.rows }}}}"
        last: "{{{{ load.rows[-1].amount }}}}"
        length: "{{{{ load.rows | length }}}}"
        whole: "{{{{ load }}}}"
        text: "{{{{ load.rows[0].amount }}}} on {{{{ load.rows[0].day }}}}"
        reference: "{{{{ load._ref }}}}"
      code: |
        result = {{
            "first": rows[0], "same": same, "only": only, "last": last, "length": length, "text": text,
            "keys": sorted(whole), "equal": whole["rows"] == whole["command_1"]["rows"] == rows,
        }}
"""


@pytest.mark.parametrize("count", [20, 30_000])
@asynchronous
async def test_rows_are_plain_data_for_whoever_looks(address: str, work: Work, tmp_path: Path, count: int) -> None:
    async with engine_with(address, tmp_path, work) as engine:
        told = await engine.run(QUERY.format(), {"count": count})
    result = completed(told)
    assert result == {
        "first": {"id": 1, "amount": 1.5, "day": "2024-01-02", "name": "row 1"},
        "same": {"id": 2, "amount": 3.0, "day": "2024-01-03", "name": "row 2"},
        "only": [{"only": 1}],
        "last": count * 1.5,
        "length": count,
        "text": "1.5 on 2024-01-02",
        "keys": ["columns", "command_0", "command_1", "row_count", "rows", "statement_count", "status"],
        "equal": True,
    }
    assert all(len(str(event.result)) < 4_000 for event in told.events)


LOOP = """
workflow:
  - step: each
    loop: {in: "{{ range(3) | list }}", iterator: n}
    tool:
      kind: postgres
      auth: pg
      command: SELECT g, {{ n }} AS n FROM generate_series(1, {{ workload.count }}) AS g
    next: [{step: see}]
  - step: see
    tool:
      kind: noop
      result:
        counts: ["{{ each.results[0].row_count }}", "{{ each.results[2].rows | length }}"]
        last: "{{ each.results[2].rows[-1] }}"
        first: "{{ each.results[1].command_0.rows[0] }}"
"""


@pytest.mark.parametrize("count", [2, 5_000])
@asynchronous
async def test_rows_in_a_loop(address: str, work: Work, tmp_path: Path, count: int) -> None:
    async with engine_with(address, tmp_path, work) as engine:
        result = completed(await engine.run(LOOP, {"count": count}))
    assert result == {"counts": [count, count], "last": {"g": count, "n": 2}, "first": {"g": 1, "n": 1}}


ARTIFACT = """
workflow:
  - step: load
    output: {inline_max_bytes: 0}
    tool: {kind: postgres, auth: pg, command: "SELECT g AS id, g / 4.0 AS part FROM generate_series(1, 3000) AS g"}
    next: [{step: get}]
  - step: get
    tool:
      - {name: whole, kind: artifact, result_ref: "{{ load._ref }}"}
      - {name: address, kind: artifact, result_ref: "{{ load._ref.uri }}"}
    next: [{step: see}]
  - step: see
    tool:
      kind: noop
      result:
        beside: "{{ get.whole.rows[1] }}"
        below: "{{ get.whole.data.rows | length }}"
        count: "{{ get.whole.row_count }}"
        address: "{{ get.address.data.command_0.rows[2999] }}"
"""


@asynchronous
async def test_the_artifact_tool_gives_rows(address: str, work: Work, tmp_path: Path) -> None:
    async with engine_with(address, tmp_path, work) as engine:
        result = completed(await engine.run(ARTIFACT))
    assert result == {
        "beside": {"id": 2, "part": 0.5},
        "below": 3000,
        "count": 3000,
        "address": {"id": 3000, "part": 750.0},
    }


@asynchronous
async def test_a_table_by_itself_is_given_by_the_artifact_tool(address: str, work: Work, tmp_path: Path) -> None:
    playbook = """
    workflow:
      - step: get
        tool: {kind: artifact, result_ref: "{{ workload.table }}"}
        next: [{step: see}]
      - step: see
        tool: {kind: noop, result: {last: "{{ get.data[-1] }}", type: "{{ get.content_type }}"}}
    """
    async with engine_with(address, tmp_path, work) as engine:
        told = await engine.run(QUERY.format(), {"count": 100_000})
        reference = await _table(engine, told)
        found = completed(await engine.run(playbook, {"table": reference}))
        by_address = completed(await engine.run(playbook, {"table": reference["uri"]}))
    assert found == by_address
    assert found["type"] == MEDIA_ARROW
    assert found["last"]["id"] == 100_000


async def _table(engine: Running, told: Any) -> dict[str, Any]:
    """The reference of the rows of the first step."""
    results = [event.result for event in told.of_type(kinds.COMMAND_COMPLETED) if event.result is not None]
    reference: Any = results[0]["reference"]
    content = await engine.engine.payloads.read_json(reference, **OWNER)
    (found,) = [one for place, one in content["parts"] if place == ["rows"]]
    assert [one for place, one in content["parts"] if place == ["command_1", "rows"]] == [found]
    return dict(found)


HTTP = """
workflow:
  - step: ask
    tool: {kind: http, url: "{{ workload.url }}"}
    next: [{step: see, when: "{{ ask.data.end and output.data.rows[7].id == 7 }}"}]
  - step: see
    tool:
      kind: python
      input:
        last: "{{ ask.rows[-1] }}"
        body: "{{ ask.body.rows | length }}"
        whole: "{{ ask }}"
      code: |
        result = {"last": last, "body": body, "keys": sorted(whole), "equal": whole["data"] == whole["body"]}
"""


@asynchronous
async def test_a_large_answer_is_stored_once_and_seen_under_all_its_names(
    address: str, work: Work, standin: str, tmp_path: Path
) -> None:
    async with engine_with(address, tmp_path, work) as engine:
        told = await engine.run(HTTP, {"url": f"{standin}/api/v1/large?bytes=5000000&format=json"})
    result = completed(told)
    assert result["keys"] == ["body", "data", "elapsed", "headers", "status_code", "url"]
    assert result["equal"] is True
    assert result["last"]["id"] == result["body"] - 1
    sizes = largest(tmp_path)
    assert 4_500_000 < sizes[0] < 5_100_000
    assert sizes[1] < 2_000_000


@asynchronous
async def test_a_long_text_is_a_text_for_whoever_looks(address: str, work: Work, standin: str, tmp_path: Path) -> None:
    playbook = """
    workflow:
      - step: ask
        tool: {kind: http, url: "{{ workload.url }}", response_type: text}
        next: [{step: see}]
      - step: see
        tool:
          kind: noop
          result: {length: "{{ ask.data | length }}", start: "{{ ask.body[:4] }}", is_text: "{{ ask.data is string }}"}
    """
    async with engine_with(address, tmp_path, work) as engine:
        told = await engine.run(playbook, {"url": f"{standin}/api/v1/large?bytes=3000000&format=text"})
    result = completed(told)
    assert (result["length"], result["is_text"], len(result["start"])) == (3_000_000, True, 4)
    assert [size for size in largest(tmp_path) if size > 1_000_000] == [3_000_002]
    json.dumps(result)
