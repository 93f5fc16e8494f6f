"""Frames by request: the pull form of the same claim, for workers that choose their stage themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from noetl.core.errors import ExecutionClosed, ExecutionUnknown, StageUnknown
from noetl.core.execution.context import command_body
from noetl.core.execution.state import Command, CommandStatus, ExecutionState, Stage
from noetl.engine.control.facts import abandoned, attempts_max, is_draining
from noetl.engine.control.inputs import Turn, cause_of
from noetl.engine.control.states import Held
from noetl.ports.session import CommandMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameClaimInput:
    """Frames of one stage that nobody holds, for a session that asks for them.  `found` is the answer; `free` are the
    commands that wait in the queue, with their attempts: what sessions of other servers hold does not.  `unlisted` says
    that a frame was left out because the queue did not show it: held elsewhere, or issued after the look."""

    execution_id: int
    stage_id: str
    session_id: int
    count: int
    tenant_id: str
    organization_id: str
    free: Mapping[str, int] | None = None
    found: list[CommandMessage] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)

    def apply(self, turn: Turn, held: Held | None) -> None:
        self.found.clear()
        self.unlisted.clear()
        if held is None or (held.state.tenant_id, held.state.organization_id) != (self.tenant_id, self.organization_id):
            raise ExecutionUnknown(f"there is no execution {self.execution_id}")
        if held.state.is_terminal or held.state.cancelling is not None:
            raise ExecutionClosed(f"execution {self.execution_id} gives out nothing more")
        for command in self._waiting(turn, held.state)[: self.count]:
            if not turn.sessions.reserve_of(self.session_id):
                break
            held = self._claim(turn, held, command)

    def _waiting(self, turn: Turn, state: ExecutionState) -> list[Command]:
        stage = self._stage(state)
        frames = [
            command
            for command in state.commands.values()
            # The rows of a cursor are claimed by whoever has its driver, and a request says nothing about that.
            if command.frame is not None
            and command.frame.slot is None
            and command.step == stage.step
            and command.status is not CommandStatus.WAITING
            and not turn.sessions.holds(self.execution_id, command.command_id, command.attempt)
            and command.attempt < attempts_max(state, command)
            and not is_draining(state, command)
        ]
        listed = [command for command in frames if self._is_free(command)]
        self.unlisted.extend(command.command_id for command in frames if not self._is_free(command))
        return sorted(listed, key=lambda command: command.frame.number if command.frame else 0)

    def _is_free(self, command: Command) -> bool:
        return self.free is None or self.free.get(command.command_id, -1) >= command.attempt

    def _stage(self, state: ExecutionState) -> Stage:
        for stage in state.loop_state.values():
            if stage.stage_id == self.stage_id:
                return stage
        raise StageUnknown(f"execution {self.execution_id} has no open stage {self.stage_id!r}")

    def _claim(self, turn: Turn, held: Held, command: Command) -> Held:
        for draft in abandoned(held.state, command):
            held, _ = turn.record(held, draft, event_time=turn.now, causation_id=held.state.last_event_id)
        cause, attempt = cause_of(held, turn.now), command.attempt + 1
        body = command_body(held.state, turn.playbook, command)
        state, position = turn.claim(held.state, cause, command, attempt=attempt, session_id=self.session_id, body=body)
        turn.batch.queue.append(turn.row(cause, command, attempt, self.session_id, body))
        turn.batch.keep(state, held.shard_id, position)
        self.found.append(turn.batch.deliveries[-1].message)
        return turn.batch.states[self.execution_id]
