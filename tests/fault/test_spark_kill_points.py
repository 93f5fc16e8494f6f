"""SIGKILL at every point between a Spark job and the event that publishes its data, of the driver and of the worker:
the rows are those of a run without trouble, no part is listed twice or missing, and nothing unlisted is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import mortal_driver, mortal_spark
from tests.support.cli import Cli, cli, wait_until
from tests.support.spark import CLASSES, ROOT
from tests.support.yaml import write

ROWS = 20_000
RUN_SECONDS_MAX = 300.0
PLAYBOOK = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: spark_kill}}
workflow:
  - step: rows
    tool:
      kind: python
      code: |
        import pyarrow as pa
        result = pa.table({{"n": range({ROWS}), "k": [n % 11 for n in range({ROWS})]}})
    next: [{{step: spread}}]
  - step: spread
    tool:
      kind: spark
      inputs: {{rows: "{{{{ rows }}}}"}}
      sql: SELECT n, k, n * 3 AS m FROM rows
      partition_by: [k]
      spec:
        policy: {{rules: [{{when: "{{{{ error.retryable }}}}", then: {{do: retry, attempts: 4, delay: 0.1}}}}]}}
    next: [{{step: sums}}]
  - step: sums
    tool:
      kind: spark
      inputs: {{spread: "{{{{ spread.rows }}}}"}}
      code: |
        def main(spark, spread):
            found = spread.groupBy("k").sum("n", "m").orderBy("k").collect()
            return [[int(row[0]), row[1], row[2]] for row in found]
      spec:
        policy: {{rules: [{{when: "{{{{ error.retryable }}}}", then: {{do: retry, attempts: 4, delay: 0.1}}}}]}}
"""
EXPECTED = [[k, sum(range(k, ROWS, 11)), 3 * sum(range(k, ROWS, 11))] for k in range(11)]


def spark_cli() -> Any:
    return cli(NOETL_SPARK_CLASSES_DIR=str(CLASSES), NOETL_SPARK_MASTER="local[2]", NOETL_SPARK_UI="0")


def start(noetl: Cli, folder: Path, side: str, point: str) -> tuple[subprocess.Popen[str], str]:
    playbook, mark = write(folder, PLAYBOOK), str(folder / "mark")
    words = (sys.executable, "-m", "tests.support.mortal_spark", side, point, mark, "run", playbook)
    victim = subprocess.Popen(
        words, cwd=ROOT, env=noetl.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert victim.stderr is not None
    return victim, victim.stderr.readline().split()[1]


def check(noetl: Cli, folder: Path, execution_id: str) -> None:
    assert (folder / "mark").exists(), "the point was never reached"
    final = noetl("status", execution_id, "--json").json
    assert final["status"] == "COMPLETED", final
    assert final["result"] == EXPECTED
    events = noetl.events(execution_id)
    ended = [event for event in events if event["event_type"] == "command.completed"]
    assert len(ended) == 3, "each step is published once"
    report = noetl("gc", "--dry-run", "--json").json
    assert (report["missing"], report["damaged"]) == (0, []), report
    jobs = noetl.home / "spark" / "jobs"
    assert not jobs.exists() or list(jobs.iterdir()) == []


def kill_driver(folder: Path, point: str) -> None:
    with spark_cli() as noetl:
        victim, execution_id = start(noetl, folder, "driver", point)
        _, err = victim.communicate(timeout=RUN_SECONDS_MAX)
        assert victim.returncode == 0, err
        check(noetl, folder, execution_id)


def kill_worker(folder: Path, point: str) -> None:
    with spark_cli() as noetl:
        victim, execution_id = start(noetl, folder, "worker", point)
        victim.communicate(timeout=RUN_SECONDS_MAX)
        assert victim.returncode == -9, f"it never came to {point}"
        again = noetl.spawn("up", "--foreground")
        try:
            wait_until(
                lambda: noetl("status", execution_id, "--json").json["status"] != "RUNNING",
                seconds=RUN_SECONDS_MAX,
                what=f"the end after a kill at {point}",
            )
        finally:
            noetl("down")
            again.communicate(timeout=30)
        check(noetl, folder, execution_id)


@pytest.mark.long
@pytest.mark.parametrize("point", [*mortal_driver.POINTS, "after_event"])
def test_a_driver_that_dies_changes_no_row(tmp_path: Path, point: str) -> None:
    kill_driver(tmp_path, point)


@pytest.mark.long
@pytest.mark.parametrize("point", mortal_spark.WORKER_POINTS)
def test_a_worker_that_dies_changes_no_row(tmp_path: Path, point: str) -> None:
    kill_worker(tmp_path, point)
