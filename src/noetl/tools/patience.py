"""Storing what a tool still has, again and again, while a store is away or full: the work that made it is not done
twice for that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from noetl.core.errors import Transient

ASK_AGAIN_SECONDS = 0.5
T = TypeVar("T")
log = logging.getLogger("noetl.worker")


async def patiently(store: Callable[[], Awaitable[T]]) -> T:
    """`store` starts from the beginning each time.  Ends when it does, or when the command is stopped."""
    while True:
        try:
            return await store()
        except Transient as error:
            log.warning("waiting for a payload store", extra={"event": "payload.unavailable", "reason": str(error)})
            await asyncio.sleep(ASK_AGAIN_SECONDS)
