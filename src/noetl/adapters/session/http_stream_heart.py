"""The heartbeat of a session, from a thread of its own: a busy event loop does not lose the lease.

It measures with the worker's own monotonic clock, from the moment a heartbeat was sent: what the server grants after
that moment is more, never less."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from noetl.adapters.session.http_stream_link import JSON_BODY, ServerPlace

# Of the lease: a worker that was not heard for so long begins nothing and lets go.
TRUSTED_SHARE = 2 / 3


class Heart:
    """`on_lost` is called once, from the thread, when the lease is lost or can no longer be trusted."""

    def __init__(
        self,
        place: ServerPlace,
        session_id: str,
        *,
        lease_seconds: float,
        beat_seconds: float,
        on_lost: Callable[[str], None],
        slots: Callable[[], int] | None = None,
    ) -> None:
        """`slots` says how many commands the worker wants under way; each heartbeat tells."""
        self._place = place
        self._path = f"/api/worker/sessions/{session_id}/heartbeat"
        self._trusted_seconds = lease_seconds * TRUSTED_SHARE
        self._beat_seconds = beat_seconds
        self._on_lost = on_lost
        self._slots = slots
        self._heard_at = time.monotonic()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="noetl-heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; it holds nothing that must be waited for."""
        self._stop.set()
        self._wake.set()

    def hurry(self) -> None:
        """Beat now: there is news."""
        self._wake.set()

    @property
    def is_trusted(self) -> bool:
        return time.monotonic() - self._heard_at < self._trusted_seconds and not self._stop.is_set()

    def _beat(self) -> None:
        connection = self._connect()
        try:
            while self._goes_on():
                begun = time.monotonic()
                reason = self._one(connection)
                if reason is None:
                    self._heard_at = begun
                elif reason or time.monotonic() - self._heard_at >= self._trusted_seconds:
                    self._stop.set()
                    self._on_lost(reason or "the server did not acknowledge a heartbeat in time")
                    return
        finally:
            connection.close()

    def _goes_on(self) -> bool:
        """Wait for the next beat; False at the end."""
        self._wake.wait(self._until_next())
        self._wake.clear()
        return not self._stop.is_set()

    def _until_next(self) -> float:
        """A beat after the last one that was heard; when that failed, sooner, but not at once."""
        due = self._heard_at + self._beat_seconds - time.monotonic()
        return min(max(due, self._beat_seconds / 5), self._beat_seconds)

    def _one(self, connection: http.client.HTTPConnection) -> str | None:
        """None when it was acknowledged, a reason when the session is gone, empty when there was no answer."""
        try:
            body = None if self._slots is None else json.dumps({"slots": self._slots()})
            connection.request("POST", self._path, body=body, headers=self._place.headers | JSON_BODY)
            response = connection.getresponse()
            content = response.read()
            if response.status == 200:
                return None
            code = json.loads(content).get("code") if response.status < 500 else None
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            connection.close()  # it is opened again by the next request
            return ""
        return f"the server says {code}" if code == "lease_lost" else ""

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._place.url)
        assert parts.hostname is not None
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname, parts.port, timeout=max(self._beat_seconds, 0.2))
