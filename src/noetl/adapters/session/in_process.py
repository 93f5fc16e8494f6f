"""A session inside one process: the same claims, attempts and facts as over a network, without the network."""

from __future__ import annotations

import asyncio

from noetl.ports.session import CommandMessage, ControlPlane, Fact


class InProcessSession:
    """Both ends of a session.  The control plane delivers; the worker takes and reports."""

    def __init__(self, *, session_id: int, slots: int, control: ControlPlane) -> None:
        self._session_id = session_id
        self._slots = slots
        self._control = control
        # Bounded by the slots: a command is only delivered for a free one.
        self._commands: asyncio.Queue[CommandMessage] = asyncio.Queue()

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def slots(self) -> int:
        return self._slots

    def deliver(self, message: CommandMessage) -> None:
        self._commands.put_nowait(message)

    async def next_command(self) -> CommandMessage:
        return await self._commands.get()

    async def report(self, fact: Fact) -> None:
        await self._control.report(self._session_id, fact)
