"""Tier 1: tables that this process has open or had open lately, up to so many bytes."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from noetl.adapters.arrow.opening.opened import Content

Key = tuple[str, str, str]
"""Tenant, organization, digest."""
FILES_MAX = 128
"""So many mapped files at most: each takes a descriptor, however small it is, and a process may have about a thousand
of them for everything it does."""


class HeldTables:
    """The least recently used one goes first.  Who still has it open is not disturbed: memory and mapping live as long
    as anybody refers to them."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: OrderedDict[Key, Content] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def bytes_in_use(self) -> int:
        return self._bytes

    def get(self, key: Key) -> Content | None:
        with self._lock:
            content = self._held.get(key)
            if content is not None:
                self._held.move_to_end(key)
            return content

    def add(self, key: Key, content: Content) -> None:
        """One that would fill most of the room alone is not worth what it would push out."""
        if content.size > self._bytes_max // 2:
            return
        with self._lock:
            self._forget(key)
            self._held[key] = content
            self._bytes += content.size
            while self._bytes > self._bytes_max:
                self._forget(next(iter(self._held)))
            mapped = [one for one, held in self._held.items() if held.holds_files]
            for one in mapped[: max(len(mapped) - FILES_MAX, 0)]:
                self._forget(one)

    def forget(self, key: Key) -> None:
        with self._lock:
            self._forget(key)

    def forget_expired(self, now_us: int) -> None:
        """Let go of segments whose lease ended: their room belongs to the whole node."""
        with self._lock:
            for key in [key for key, one in self._held.items() if one.until_us is not None and one.until_us < now_us]:
                self._forget(key)

    def _forget(self, key: Key) -> None:
        content = self._held.pop(key, None)
        if content is not None:
            self._bytes -= content.size
