"""A real server and real workers, each a process of its own, on a fresh database of the shared Postgres."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from noetl.processes.server.tokens import read_token_file
from tests.support.cli import Cli, wait_until
from tests.support.databases import fresh_database

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


@dataclass(slots=True)
class Process:
    """One of our processes with its log.  Ended with the test, whatever happened to it."""

    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def wait(self, seconds: float = STOP_SECONDS_MAX) -> int:
        return self.popen.wait(seconds)

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.terminate()
            try:
                self.popen.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()

    def text(self) -> str:
        return self.log.read_text(errors="replace")


@dataclass(slots=True)
class Place:
    """A home, a database, a server at a fixed port, and its workers."""

    home: Path
    environment: dict[str, str]
    url: str = ""
    processes: list[Process] = field(default_factory=list)

    def start(self, *words: str, program: str = "noetl", **extra: str) -> Process:
        number = len(self.processes)
        log = self.home / f"{number}-{words[0]}.log"
        with log.open("wb") as file:
            popen = subprocess.Popen(
                [sys.executable, "-m", program, *words],
                env={**self.environment, **extra},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        process = Process(popen, log)
        self.processes.append(process)
        return process

    def start_server(self, *words: str, **extra: str) -> Process:
        """The port of the first start is kept for the next ones: workers know one address."""
        port = str(urlsplit(self.url).port) if self.url else "0"
        process = self.start("server", *words, NOETL_PORT=port, **extra)
        wait_until(lambda: self._is_up(process), seconds=START_SECONDS_MAX, what="the server is up")
        return process

    def _is_up(self, process: Process) -> bool:
        text = process.text()
        assert process.popen.poll() is None, text
        for line in text.splitlines():
            if line.startswith("listening on "):
                self.url = line.split()[-1]
                return True
        return False

    def start_worker(self, *words: str, **extra: str) -> Process:
        before = self.sessions()
        process = self.start("worker", "--server", self.url, *words, **extra)
        wait_until(lambda: self.sessions() > before, seconds=START_SECONDS_MAX, what="the worker is registered")
        return process

    def sessions(self) -> int:
        return int(self.request("GET", "/api/health").json["worker_sessions"])

    @property
    def tokens(self) -> dict[str, str]:
        return read_token_file(self.home)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = "token",
        headers: Mapping[str, str] | None = None,
        **query: object,
    ) -> Answer:
        """`token` is the name of one of the server's tokens, or a token itself, or None."""
        connection = self.connect()
        try:
            sent = dict(headers or {})
            if token is not None:
                sent.setdefault("Authorization", f"Bearer {self.tokens.get(token, token)}")
            content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, f"{path}?{urlencode(query)}" if query else path, body=content, headers=sent)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)

    def submit(self, text: str, payload: Mapping[str, object] | None = None, **headers: str) -> str:
        answer = self.request("POST", "/api/executions", {"playbook": text, "payload": payload}, headers=headers)
        assert answer.status == 201, answer.content
        return str(answer.json["execution_id"])

    def finish(self, execution_id: str, *, seconds: float = 60.0) -> Any:
        """The execution at its end."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = self.request("GET", f"/api/executions/{execution_id}", wait="terminal", timeout_s=5)
            assert answer.status == 200, answer.content
            if answer.json["status"] != "RUNNING":
                return answer.json
        raise AssertionError(f"execution {execution_id} did not end: {answer.json}\n{self.logs()}")

    def events(self, execution_id: str) -> list[dict[str, Any]]:
        answer = self.request("GET", f"/api/executions/{execution_id}/events")
        assert answer.status == 200, answer.content
        found: list[dict[str, Any]] = answer.json["events"]
        return found

    def cli(self) -> Cli:
        extra = {
            key: value for key, value in self.environment.items() if key.startswith("NOETL_") and key != "NOETL_HOME"
        }
        return Cli(self.home, {**extra, "NOETL_SERVER_URL": self.url})

    def logs(self) -> str:
        return "\n".join(f"--- {process.log.name}\n{process.text()}" for process in self.processes)


@contextmanager
def place(**extra: str) -> Iterator[Place]:
    """A place without a server yet."""
    dropped = ("NOETL_", "PYTHONDONTWRITEBYTECODE")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    with tempfile.TemporaryDirectory(prefix="noetl-server-") as folder:
        home = Path(folder)
        settings = {"NOETL_HOME": str(home), "NOETL_POSTGRES_DSN": fresh_database(), **extra}
        found = Place(home, {**kept, **settings})
        try:
            yield found
        finally:
            for process in reversed(found.processes):
                process.end()


@contextmanager
def running_server(*, workers: int = 1, **extra: str) -> Iterator[Place]:
    with place(**extra) as found:
        found.start_server()
        for _ in range(workers):
            found.start_worker()
        yield found
