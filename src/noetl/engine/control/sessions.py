"""The sessions of connected workers: who has a free slot, who holds what."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from noetl.ports.session import CommandMessage, CommandSink


@dataclass(slots=True)
class _Held:
    sink: CommandSink
    free: int
    holds: dict[tuple[int, str], int] = field(default_factory=dict)


class Sessions:
    """Slots are reserved while a batch is decided, and taken when its commit succeeded."""

    def __init__(self) -> None:
        self._sessions: dict[int, _Held] = {}
        self._has_free = asyncio.Event()

    @property
    def has_free(self) -> asyncio.Event:
        """Set while a slot is free."""
        return self._has_free

    def connect(self, sink: CommandSink) -> None:
        self._sessions[sink.session_id] = _Held(sink, 0)
        self._free(self._sessions[sink.session_id], sink.slots)

    def _free(self, held: _Held, slots: int = 1) -> None:
        held.free += slots
        self._has_free.set()

    @property
    def ids(self) -> list[int]:
        return list(self._sessions)

    @property
    def free_slots(self) -> int:
        return sum(held.free for held in self._sessions.values())

    def reserve(self) -> int | None:
        """The session with the most free slots, one slot less; None when all are busy."""
        best = max(self._sessions.values(), key=lambda held: held.free, default=None)
        if best is None or best.free <= 0:
            return None
        best.free -= 1
        if best.free == 0 and self.free_slots == 0:
            self._has_free.clear()
        return best.sink.session_id

    def unreserve(self, session_id: int) -> None:
        if session_id in self._sessions:
            self._free(self._sessions[session_id])

    def announce(self, session_id: int, message: CommandMessage) -> None:
        held = self._sessions.get(session_id)
        if held is not None:
            held.sink.announce(message)

    def withdraw(self, session_id: int, message: CommandMessage) -> None:
        """A claim was not committed: the slot is free again."""
        held = self._sessions.get(session_id)
        if held is not None:
            self._free(held)
            held.sink.withdraw(message)

    def deliver(self, session_id: int, message: CommandMessage) -> None:
        held = self._sessions.get(session_id)
        if held is not None:
            held.holds[message.execution_id, message.command_id] = message.attempt
            held.sink.deliver(message)

    def finish(self, session_id: int, execution_id: int, command_id: str, attempt: int) -> None:
        """A fact arrived.  A late word about an earlier attempt does not free the slot of the present one."""
        held = self._sessions.get(session_id)
        if held is not None and held.holds.get((execution_id, command_id)) == attempt:
            del held.holds[execution_id, command_id]
            self._free(held)

    def holds(self, execution_id: int, command_id: str, attempt: int) -> bool:
        return any(h.holds.get((execution_id, command_id)) == attempt for h in self._sessions.values())
