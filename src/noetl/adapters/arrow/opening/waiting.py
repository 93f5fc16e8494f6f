"""Waiting in a thread for what an event loop fetches."""

from __future__ import annotations

import asyncio
import concurrent.futures
from contextlib import suppress
from math import ceil
from typing import TypeVar

from noetl.core.limits import TABLE_FETCH_SECONDS_MAX

T = TypeVar("T")
_LOOP_CHECK_SECONDS = 1.0


def awaited(found: concurrent.futures.Future[T], loop: asyncio.AbstractEventLoop, uri: str) -> T:
    """In steps: a loop that ended fetches nothing any more, and its process must be able to end too."""
    for _ in range(ceil(TABLE_FETCH_SECONDS_MAX / _LOOP_CHECK_SECONDS)):
        with suppress(TimeoutError):
            return found.result(_LOOP_CHECK_SECONDS)
        if found.done():
            return found.result()  # done meanwhile, or its own end was a TimeoutError
        if loop.is_closed():
            raise RuntimeError(f"{uri}: the event loop that fetches this table has ended")
    raise TimeoutError(f"{uri}: a part was not fetched within {TABLE_FETCH_SECONDS_MAX} seconds")


def check_thread() -> None:
    """Raises RuntimeError in an event loop, which would wait for itself."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("a table that is elsewhere is read in a thread, so that its event loop can fetch it")
