"""The sessions of connected workers: who has a free slot, who holds what."""

from __future__ import annotations

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

    def connect(self, sink: CommandSink) -> None:
        self._sessions[sink.session_id] = _Held(sink, sink.slots)

    def disconnect(self, session_id: int) -> list[tuple[int, str]]:
        """Forget a session; returns what it held."""
        held = self._sessions.pop(session_id, None)
        return list(held.holds) if held else []

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
        return best.sink.session_id

    def unreserve(self, session_id: int) -> None:
        if session_id in self._sessions:
            self._sessions[session_id].free += 1

    def announce(self, session_id: int, message: CommandMessage) -> None:
        held = self._sessions.get(session_id)
        if held is not None:
            held.sink.announce(message)

    def withdraw(self, session_id: int, message: CommandMessage) -> None:
        """A claim was not committed: the slot is free again."""
        held = self._sessions.get(session_id)
        if held is not None:
            held.free += 1
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
            held.free += 1

    def holds(self, execution_id: int, command_id: str, attempt: int) -> bool:
        return any(h.holds.get((execution_id, command_id)) == attempt for h in self._sessions.values())
