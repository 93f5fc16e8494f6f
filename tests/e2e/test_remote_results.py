"""Large results and artifacts with a server and a worker that are processes of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server import Place, running_server
from tests.support.standin import standin_process
from tests.support.yaml import playbook

LARGE = playbook("""
workflow:
  - step: big
    tool:
      kind: python
      code: 'result = {"rows": [[i, {"x": i * 2, "text": "t" * 60}] for i in range(20000)], "row_count": 20000}'
    set: {a: {rows: "{{ big.rows }}", n: 1}, a.more: "{{ big.rows[5] }}"}
    next: [{step: each, when: "{{ big.rows[1100][0] == 1100 and big._store == 'disk' and a.rows[-1][0] == 19999 }}"}]
  - step: each
    loop: {in: "{{ a.rows }}", iterator: row, spec: {mode: parallel, max_in_flight: 16}}
    tool: {kind: noop, result: "{{ row[1].x }}"}
    next: [{step: load}]
  - step: load
    tool:
      - {name: got, kind: artifact, result_ref: "{{ big._ref }}"}
      - {name: kept, kind: artifact, action: put, data: "{{ got.rows[3] }}", compress: true}
      - {name: again, kind: artifact, result_ref: "{{ kept.ref }}"}
      - {name: last, kind: noop, result: ["{{ got.row_count }}", "{{ got.data.rows | length }}", "{{ again.data[0] }}"]}
    next: [{step: end}]
  - step: end
    tool:
      kind: noop
      result:
        - "{{ load.last }}"
        - "{{ each.results[19999] }}"
        - "{{ each.count }}"
        - "{{ a.more[0] }}"
        - "{{ big._preview[:11] }}"
""")


BODIES = playbook("""
workflow:
  - step: octets
    tool: {kind: http, url: "{{ workload.url }}?bytes=20000000"}
    next: [{step: rows, when: "{{ octets.data.bytes == 20000000 }}"}]
  - step: rows
    tool: {kind: http, url: "{{ workload.url }}?bytes=6000000&format=json"}
    next: [{step: end, when: "{{ rows.rows[-1].id > 40000 and rows.body.end }}"}]
  - step: end
    tool:
      kind: noop
      result: ["{{ rows.rows[40000].id }}", "{{ rows.data.rows[3].amount }}", "{{ octets.body.bytes }}"]
""")


@pytest.fixture(scope="module")
def server() -> Iterator[Place]:
    with running_server(workers=1) as found:
        yield found


def test_a_remote_worker_reads_no_more_of_a_result_than_it_must(server: Place) -> None:
    final = server.finish(server.submit(LARGE))
    assert final["status"] == "COMPLETED", (final.get("error"), server.logs())
    assert final["result"] == [[20000, 20000, 3], 39998, 20000, 5, '{"rows":[[0']


def test_large_bodies_come_through_a_remote_worker(server: Place) -> None:
    with standin_process() as standin:
        final = server.finish(server.submit(BODIES, {"url": f"{standin}/api/v1/large"}))
    assert final["status"] == "COMPLETED", (final.get("error"), server.logs())
    assert final["result"] == [40000, 3.25, 20_000_000]
