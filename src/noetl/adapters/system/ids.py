"""Snowflake ids made in the process, with a node number that nobody else holds."""

from __future__ import annotations

import time

from noetl.core.ids import EPOCH, following_id

_EPOCH_MS = int(EPOCH.timestamp() * 1000)


class SnowflakeIds:
    def __init__(self, *, node: int, last_id: int = 0) -> None:
        self._node = node
        self._last = last_id

    @property
    def last_id(self) -> int:
        return self._last

    def next_id(self) -> int:
        now_ms = time.time_ns() // 1_000_000 - _EPOCH_MS
        self._last = following_id(self._last, now_ms=now_ms, node=self._node)
        return self._last
