"""A worker written from docs/reference/worker-protocol.md alone: the standard library and nothing of NoETL.

It completes steps of kind `noop` with a greeting.  Usage: foreign_worker.py URL TOKEN"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import sys
import threading
from typing import Any
from urllib.parse import quote, urlsplit


class Server:
    def __init__(self, url: str, token: str) -> None:
        self._place = urlsplit(url)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def open(self, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(str(self._place.hostname), self._place.port, timeout=30)
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, path, body=content, headers=self._headers)
        return connection.getresponse()

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        response = self.open(method, path, body)
        answer: dict[str, Any] = json.loads(response.read())
        if response.status >= 300:
            raise SystemExit(f"{method} {path}: {answer['code']}: {answer['detail']}")
        return answer


def beat(server: Server, session: dict[str, Any], stop: threading.Event) -> None:
    while not stop.wait(session["heartbeat_seconds"]):
        server.ask("POST", f"/api/worker/sessions/{session['session_id']}/heartbeat")


def completed(command: dict[str, Any], value: object) -> dict[str, Any]:
    """The fact that a command ended well, with its result as a payload."""
    content = json.dumps(value).encode()
    digest = hashlib.sha256(content).hexdigest()
    tenant, organization = quote(command["tenant_id"], safe=""), quote(command["organization_id"], safe="")
    reference = {
        "kind": "payload",
        "uri": f"noetl://tenant/{tenant}/org/{organization}/payloads/sha256/{digest}",
        "sha256": digest,
        "media_type": "application/json",
        "bytes": len(content),
        "store": "db",
    }
    return {
        "fact_id": f"{command['execution_id']}/{command['command_id']}/{command['attempt']}",
        "execution_id": command["execution_id"],
        "command_id": command["command_id"],
        "attempt": command["attempt"],
        "event_type": "command.completed",
        "result": {"status": "ok", "reference": reference, "parent_ref": None, "context": {}},
        "payloads": [{"media_type": "application/json", "content": base64.b64encode(content).decode()}],
    }


def main(url: str, token: str) -> None:
    server, stop = Server(url, token), threading.Event()
    session = server.ask("POST", "/api/worker/sessions", {"worker_id": "foreign", "slots": 4, "kinds": ["noop"]})
    session_id = session["session_id"]
    threading.Thread(target=beat, args=(server, session, stop), daemon=True).start()
    seen: set[tuple[str, str, int]] = set()
    for line in server.open("GET", f"/api/worker/sessions/{session_id}/commands"):
        word = json.loads(line)
        if "end" in word:
            break
        command = word.get("command")
        if command is None:
            continue
        key = (command["execution_id"], command["command_id"], command["attempt"])
        if key in seen:
            continue
        seen.add(key)
        fact = completed(command, {"hello": command["body"]["step"], "attempt": command["attempt"]})
        answers = server.ask("POST", "/api/events/batch", {"session_id": session_id, "facts": [fact]})
        print(command["command_id"], answers["answers"][0]["status"], flush=True)
    stop.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
