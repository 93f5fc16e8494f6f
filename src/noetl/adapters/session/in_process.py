"""A session inside one process: the same claims, attempts and facts as over a network, without the network."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from noetl.ports.serving.permits import PermitGrant, PermitUse
from noetl.ports.session import ClaimWithdrawn, CommandMessage, ControlPlane, Fact, Stop


class InProcessSession:
    """Both ends of a session.  The control plane delivers; the worker takes and reports."""

    def __init__(self, *, session_id: int, slots: int, control: ControlPlane) -> None:
        self._session_id = session_id
        self._slots = slots
        self._control = control
        # Both bounded by the slots: a command is only announced for a reserved one.
        self._commands: asyncio.Queue[CommandMessage] = asyncio.Queue()
        # One gate per announcement, not per claim: a commit that is tried again announces the same claim again, and
        # whoever prepares the withdrawn one must not see, or take away, the gate of the next.
        self._gates: dict[int, asyncio.Future[bool]] = {}
        self._stops: asyncio.Queue[Stop] = asyncio.Queue()

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def slots(self) -> int:
        return self._slots

    def announce(self, message: CommandMessage) -> None:
        self._gates[id(message)] = asyncio.get_running_loop().create_future()
        self._commands.put_nowait(message)

    def deliver(self, message: CommandMessage) -> None:
        if id(message) not in self._gates:
            self.announce(message)
        self._gates[id(message)].set_result(True)

    def withdraw(self, message: CommandMessage) -> None:
        self._gates[id(message)].set_result(False)

    def stop(self, stop: Stop) -> None:
        self._stops.put_nowait(stop)

    async def next_stop(self) -> Stop:
        return await self._stops.get()

    async def next_command(self) -> CommandMessage:
        return await self._commands.get()

    async def confirmed(self, message: CommandMessage) -> None:
        gate = self._gates.get(id(message))
        if gate is None:  # confirmed before; a withdrawn one is never asked about again
            return
        is_claimed = await gate
        self._gates.pop(id(message), None)
        if not is_claimed:
            raise ClaimWithdrawn(message.command_id)

    async def report(self, fact: Fact) -> None:
        await self._control.report(self._session_id, fact)


class Desk(Protocol):
    """Where permits are asked for in the name of a session."""

    async def ask(
        self, session_id: int, turn: int, uses: Sequence[PermitUse], *, wait_seconds: float
    ) -> list[PermitGrant]: ...


class InProcessPermits:
    """Permits of shared limits for one session."""

    def __init__(self, desk: Desk, session_id: int) -> None:
        self._desk = desk
        self._session_id = session_id

    async def ask(self, turn: int, uses: Sequence[PermitUse], *, wait_seconds: float) -> Sequence[PermitGrant]:
        return await self._desk.ask(self._session_id, turn, uses, wait_seconds=wait_seconds)
