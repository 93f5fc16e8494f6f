"""Running the command line as a user does: real processes with a home of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.postgres import temporary_home

COMMAND_SECONDS_MAX = 180.0
QUICK_CLASSES = {
    "NOETL_SPARK_CLASSES_DIR": str(Path(__file__).parents[2] / ".venv" / "spark-classes"),
    # As `tests/support/spark.py` says it to Spark.
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",
}
"""For homes in which a step of kind spark runs with all its own settings: the class archive of all test runs.  A home
without it builds one of its own beside the tests."""

QUICK_SPARK = {**QUICK_CLASSES, "NOETL_SPARK_MASTER": "local[2]", "NOETL_SPARK_UI": "0"}


@dataclass(slots=True)
class Finished:
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


@dataclass(slots=True)
class Cli:
    """`noetl` with one NOETL_HOME.  Whatever it starts is ended with the test."""

    home: Path
    extra: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        # A command line that compiles itself at every start is not what a user has.
        dropped = ("NOETL_", "PYTHONDONTWRITEBYTECODE")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        return {**kept, "NOETL_HOME": str(self.home), **self.extra}

    def __call__(self, *words: str, timeout: float = COMMAND_SECONDS_MAX) -> Finished:
        done = subprocess.run(
            [sys.executable, "-m", "noetl", *words],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def spawn(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "noetl", *words],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def events(self, execution_id: str) -> list[dict[str, Any]]:
        done = self("events", execution_id, "--json")
        assert done.code == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def host_pid(self) -> int | None:
        try:
            return int((self.home / "host.lock").read_text())
        except (OSError, ValueError):
            return None


@contextmanager
def cli(**extra: str) -> Iterator[Cli]:
    """A command line with an empty home, torn down whatever happened."""
    with temporary_home() as home:
        command = Cli(home, extra)
        try:
            yield command
        finally:
            command("down")


def descendants(pid: int) -> list[int]:
    """A process and everything below it, as far as it still hangs together."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        todo.extend(children.get(one, ()))
    return found


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def wait_until(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.02)
