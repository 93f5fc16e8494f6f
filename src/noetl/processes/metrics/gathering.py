"""Asking everything that counts, when somebody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress

from noetl.ports.data.counters import Counted, Refreshed
from noetl.processes.metrics.text import exposition

REFRESH_SECONDS_MAX = 2.0


async def gathered(sources: Iterable[Counted], labels: Mapping[str, str]) -> str:
    """What all sources count.  One that must ask first gets a moment, and then shows what it has."""
    known = list(sources)
    for source in known:
        if isinstance(source, Refreshed):
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS_MAX):
                    await source.refresh()
    return exposition(known, labels)
