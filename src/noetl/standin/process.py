"""The stand-in as a process of its own, on a port that the kernel chooses: for demo, benchmarks and tests."""

from __future__ import annotations

import select
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

START_SECONDS_MAX = 15.0
STOP_SECONDS_MAX = 5.0


@contextmanager
def standin_process(port: int = 0, *, rate_limit: int | None = None) -> Iterator[str]:
    """The address, such as `http://127.0.0.1:40001`, of a stand-in that answers."""
    command = [sys.executable, "-m", "noetl.standin", "--port", str(port)]
    if rate_limit is not None:
        command += ["--rate-limit", str(rate_limit)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            address = _announced(process.stdout)
            if not address.startswith("http://127.0.0.1:"):
                raise RuntimeError(f"the stand-in said {address!r} (code {process.poll()})")
            with urllib.request.urlopen(f"{address}/health", timeout=START_SECONDS_MAX):  # noqa: S310 - loopback
                pass
            yield address
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


def _announced(stdout: IO[str]) -> str:
    """The one line that a listening stand-in prints; empty when it ended instead."""
    ready, _, _ = select.select([stdout], [], [], START_SECONDS_MAX)
    if not ready:
        raise RuntimeError(f"the stand-in did not listen within {START_SECONDS_MAX:g} s")
    return stdout.readline().strip()
