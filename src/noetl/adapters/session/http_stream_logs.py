"""Logs of a worker on their way up: chunks of many commands in one request."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

from noetl.adapters.session.http_stream_lease import Key
from noetl.adapters.session.http_stream_link import ServerLink
from noetl.ports.data.logs import LogChunk

SessionOf = Callable[[Key], str | None]


class HttpLogs:
    """The sink of a worker.  What belongs to a lost session is dropped: its command runs elsewhere now."""

    def __init__(self, link: ServerLink, session_of: SessionOf) -> None:
        self._link = link
        self._session_of = session_of

    async def write(self, chunks: Sequence[LogChunk]) -> None:
        by_session: dict[str, list[dict[str, object]]] = {}
        for chunk in chunks:
            session_id = self._session_of((chunk.execution_id, chunk.command_id, chunk.attempt))
            if session_id is not None:
                by_session.setdefault(session_id, []).append(_document(chunk))
        for session_id, documents in by_session.items():
            await self._link.ask("POST", "/api/worker/logs", body={"session_id": session_id, "chunks": documents})


def _document(chunk: LogChunk) -> dict[str, object]:
    """Tenant, organization and step are the server's to say: it knows whose command it is."""
    return {
        "execution_id": str(chunk.execution_id),
        "command_id": chunk.command_id,
        "attempt": chunk.attempt,
        "seq": chunk.seq,
        "first_at_ms": chunk.first_at_ms,
        "last_at_ms": chunk.last_at_ms,
        "lines": chunk.lines,
        "bytes": chunk.size_bytes,
        "content": None if chunk.content is None else base64.b64encode(chunk.content).decode("ascii"),
        "reference": chunk.reference,
    }
