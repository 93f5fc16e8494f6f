"""The command line's client: a refusal for now says when to ask again, and the client remembers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from noetl.cli.client import Client, Refused


@contextmanager
def refusing(retry_after: str | None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = b'{"code": "append_overloaded", "detail": "wait"}'
            self.send_response(503)
            self.send_header("Content-Length", str(len(content)))
            if retry_after is not None:
                self.send_header("Retry-After", retry_after)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("7", 7.0), ("0", 0.0), (None, 1.0), ("86400", 60.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 1.0)],
)
def test_a_refusal_for_now_says_when_to_ask_again(told: str | None, seconds: float) -> None:
    with refusing(told) as url:
        client = Client(url)
        with pytest.raises(Refused) as refused:
            client.health()
        client.close()
    assert (refused.value.status, refused.value.retry_seconds) == (503, seconds)
