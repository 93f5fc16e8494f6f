"""kill -9 at every point between the bytes of a result and the event that names them: bytes that nobody names may stay
behind, a name without its bytes never."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, cli, wait_until
from tests.support.mortal_host import POINTS
from tests.support.yaml import write

ROOT = Path(__file__).parents[2]
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: payloads}
workflow:
  - step: table
    tool:
      kind: python
      code: |
        import pyarrow as pa
        result = {"rows": pa.table({"n": range(300000), "t": [str(i * 7919) for i in range(300000)]}), "k": 1}
    next: [{step: plain}]
  - step: plain
    tool: {kind: python, code: 'result = [{"n": i, "t": "x" * 40} for i in range(40000)]'}
    next: [{step: each}]
  - step: each
    loop: {in: "{{ [1, 2] }}", iterator: n, spec: {mode: parallel}}
    tool:
      kind: python
      input: {n: "{{ n }}"}
      code: "import pyarrow as pa; result = pa.table({'n': range(n * 50000)})"
    next: [{step: use}]
  - step: use
    tool:
      kind: python
      tables: arrow
      input: {rows: "{{ table.rows }}", plain: "{{ plain[39999].n }}", each: "{{ each.results }}"}
      code: "result = [rows.num_rows, plain, [one.num_rows for one in each]]"
"""


def references(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if {"sha256", "uri", "store", "bytes"} <= value.keys():
            yield value
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def check_references(home: Path, events: list[dict[str, Any]]) -> int:
    """Every large payload that an event names lies in its file, whole; how many there were."""
    named = {one["sha256"]: one for one in references(events) if one["store"] == "file"}
    indexes = {one["index"]["sha256"] for one in named.values() if one.get("index")}
    for digest in (*named, *indexes):
        (found,) = [path for path in (home / "payloads").rglob(f"*{digest}*") if path.is_file()]
        assert hashlib.sha256(found.read_bytes()).hexdigest() == digest
    return len(named)


def is_over(noetl: Cli, execution_id: str) -> bool:
    done = noetl("status", execution_id, "--json")
    return done.code == 0 and done.json["status"] != "RUNNING"


def run_killed(noetl: Cli, folder: Path, point: str, times: int) -> None:
    playbook = write(folder, PLAYBOOK)
    words = (sys.executable, "-m", "tests.support.mortal_host", point, str(times), "run", playbook)
    victim = subprocess.Popen(words, cwd=ROOT, env=noetl.environment(), stderr=subprocess.PIPE, text=True)
    assert victim.stderr is not None
    execution_id = victim.stderr.readline().split()[1]
    victim.communicate(timeout=60)
    assert victim.returncode == -9, f"it came to {point} fewer than {times} times"
    again = noetl.spawn("up", "--foreground")
    try:
        wait_until(lambda: is_over(noetl, execution_id), seconds=60, what=f"the end after a kill at {point}")
        final = noetl("status", execution_id, "--json").json
        assert final["status"] == "COMPLETED", final
        assert final["result"] == [300_000, 39_999, [50_000, 100_000]]
        assert check_references(noetl.home, noetl.events(execution_id)) >= 1
    finally:
        noetl("down")
        again.communicate(timeout=30)
    # The collector follows every name, also those in payloads, and says which of them lead nowhere.
    report = noetl("gc", "--dry-run", "--json").json
    assert (report["missing"], report["damaged"]) == (0, []), report


@pytest.mark.parametrize("point", ["stored", "told"])
def test_a_kill_leaves_no_name_without_its_bytes(tmp_path: Path, point: str) -> None:
    with cli() as noetl:
        run_killed(noetl, tmp_path, point, 1)


@pytest.mark.long
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
def test_later_kills_leave_none_either(tmp_path: Path, point: str, times: int) -> None:
    with cli() as noetl:
        run_killed(noetl, tmp_path, point, times)
