"""A small HTTP client: of the host of this home over its Unix socket, or of a server over TCP with a token."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from noetl.core.errors import HostUnavailable, NoetlError

REQUEST_SECONDS_MAX = 60.0
RETRY_SECONDS_MAX = 60.0
PIECE_BYTES = 256 * 1024


class Refused(NoetlError):
    """The host answered with a problem."""

    def __init__(self, status: int, body: dict[str, Any], retry_after: str | None = None) -> None:
        self.status = status
        self.body = body
        told = float(retry_after) if retry_after is not None and retry_after.isdecimal() else 1.0
        self.retry_seconds = min(told, RETRY_SECONDS_MAX)
        """When to ask again, if it is refused for now."""
        super().__init__(str(body.get("detail", body)))


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _connection(place: Path | str) -> http.client.HTTPConnection:
    if isinstance(place, Path):
        return _UnixConnection(place, REQUEST_SECONDS_MAX)
    parts = urlsplit(place)
    assert parts.hostname is not None
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=REQUEST_SECONDS_MAX)


class Download:
    """An answer that is read piece by piece; one that ends too early is HostUnavailable."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def header(self, name: str) -> str | None:
        return self._response.getheader(name)

    def pieces(self) -> Iterator[bytes]:
        told = self.header("Content-Length")
        left = None if told is None else int(told)
        try:
            while piece := self._response.read(PIECE_BYTES):
                left = None if left is None else left - len(piece)
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise HostUnavailable(f"the answer broke off, and is not complete: {error}") from error
        if left:
            raise HostUnavailable(f"the answer broke off: {left:,} bytes are missing")


class Client:
    """One kept connection.  Every failure to get an answer is HostUnavailable."""

    def __init__(self, place: Path | str, *, token: str | None = None, owner: tuple[str, str] | None = None) -> None:
        self._connection = _connection(place)
        self._headers = {"Noetl-Client": str(os.getpid())}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        if owner is not None:
            names = (quote(name, safe="") for name in owner)
            self._headers |= dict(zip(("Noetl-Tenant", "Noetl-Organization"), names, strict=True))

    def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        idempotency_key: str | None = None,
        **query: object,
    ) -> dict[str, Any]:
        chosen = {name: value for name, value in query.items() if value is not None}
        target = f"{path}?{urlencode(chosen)}" if chosen else path
        headers = dict(self._headers)
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        content = None if body is None else json.dumps(body).encode()
        try:
            self._connection.request(method, target, body=content, headers=headers)
            response = self._connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            raise HostUnavailable(f"the host does not answer: {error}") from error
        if response.status >= 400:
            raise Refused(response.status, answer, response.getheader("Retry-After"))
        result: dict[str, Any] = answer
        return result

    def download(self, place: str, /, **query: object) -> Download:
        """An answer of any size, to be read before the next request.  Raises Refused and HostUnavailable."""
        chosen = {name: value for name, value in query.items() if value is not None}
        target = f"{place}?{urlencode(chosen)}" if chosen else place
        try:
            self._connection.request("GET", target, headers=self._headers)
            response = self._connection.getresponse()
            if response.status >= 400:
                raise Refused(response.status, json.loads(response.read()))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            raise HostUnavailable(f"the host does not answer: {error}") from error
        return Download(response)

    def health(self) -> dict[str, Any]:
        return self.request("GET", "/api/health")

    def start(self, text: str, *, file: str, payload: dict[str, Any], idempotency_key: str) -> dict[str, Any]:
        return self.submit({"playbook": text, "file": file, "payload": payload}, idempotency_key=idempotency_key)

    def submit(self, body: dict[str, Any], *, idempotency_key: str) -> dict[str, Any]:
        return self.request("POST", "/api/executions", body=body, idempotency_key=idempotency_key)

    def execution(self, execution_id: str, *, wait: bool = False) -> dict[str, Any]:
        return self.request("GET", f"/api/executions/{execution_id}", wait="terminal" if wait else None)

    def events(self, execution_id: str, *, after_position: int = 0, wait_s: float = 0) -> list[dict[str, Any]]:
        answer = self.request(
            "GET", f"/api/executions/{execution_id}/events", after_position=after_position, wait_s=wait_s
        )
        events: list[dict[str, Any]] = answer["events"]
        return events

    def list(self, *, limit: int, status: str | None = None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.request("GET", "/api/executions", limit=limit, status=status)["executions"]
        return rows

    def stop(self) -> None:
        self.request("POST", "/api/host/stop")

    def close(self) -> None:
        self._connection.close()
