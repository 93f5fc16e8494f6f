"""One registration of a worker: what it holds, and whether it may still be trusted."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass, field

from noetl.adapters.session.http_stream_heart import Heart
from noetl.core.errors import NoetlError, Transient

# An attempt of a command: execution, command, attempt.
Key = tuple[int, str, int]
AGAIN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0)
WARN_EVERY = 30
log = logging.getLogger("noetl.worker")


@dataclass(slots=True, eq=False)
class Lease:
    """What it holds it holds until a fact was answered or the lease is lost."""

    session_id: str
    beat_seconds: float
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    holds: set[Key] = field(default_factory=set)
    heart: Heart | None = None

    @property
    def is_good(self) -> bool:
        return not self.lost.is_set() and self.heart is not None and self.heart.is_trusted


async def pause(failures: int, message: str, event: str, error: NoetlError) -> None:
    """Wait before the next try, as long as the server asked for.  Said the first time, and now and then: a server that
    is away for an hour is one story and not thousands."""
    if failures % WARN_EVERY == 0:
        log.warning(message, extra={"event": event, "reason": str(error)})
    seconds = AGAIN_SECONDS[min(failures, len(AGAIN_SECONDS) - 1)]
    if isinstance(error, Transient) and error.retry_after_seconds is not None:
        # Those that were refused together must not come back together.
        seconds = max(seconds, error.retry_after_seconds * (1 + secrets.randbelow(500) / 1000))
    await asyncio.sleep(seconds)
