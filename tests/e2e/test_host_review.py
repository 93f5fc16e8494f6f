"""What once ended a host, or lied about it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from noetl.cli.run import read_payload
from tests.support.cli import cli, descendants, wait_until
from tests.support.yaml import slow_chain, write


def test_a_host_outlives_its_postgres_and_says_so(tmp_path: Path) -> None:
    with cli() as noetl:
        run = noetl.spawn("run", write(tmp_path, slow_chain(20, seconds=0.4)), "--json")
        pid_file = noetl.home / "postgres" / "data" / "postmaster.pid"
        wait_until((noetl.home / "host.sock").exists, seconds=60, what="the host is up")
        time.sleep(0.4)
        os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
        stdout, stderr = run.communicate(timeout=120)
        assert run.returncode == 0, stderr
        assert '"status": "COMPLETED"' in stdout
        assert "Postgres ended, starting it again postgres.ended" in stderr
        assert "Attempt to overwrite" not in stderr
        assert len(descendants(run.pid)) == 1


def test_an_interrupted_run_says_how_to_go_on_and_nothing_else(tmp_path: Path) -> None:
    with cli() as noetl:
        run = noetl.spawn("run", write(tmp_path, slow_chain(60, seconds=0.5)))
        assert run.stderr is not None
        assert run.stderr.readline().startswith("execution ")
        time.sleep(0.3)
        run.send_signal(signal.SIGINT)
        _, stderr = run.communicate(timeout=60)
        assert run.returncode == 130
        assert "stays open" in stderr
        assert "Traceback" not in stderr


def test_what_is_no_json_is_text_in_set() -> None:
    assert read_payload(None, ["a=NaN", "b=-Infinity", "c=1"]) == {"a": "NaN", "b": "-Infinity", "c": 1}
