"""Frames by request: the pull form of the same claim, for workers that choose their stage themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from noetl.core.errors import ExecutionClosed, ExecutionUnknown, StageUnknown
from noetl.core.execution.placing.places import NO_PLACES
from noetl.core.execution.state import Command, CommandStatus, ExecutionState, Stage
from noetl.core.locator.locality import NOWHERE, Distance, Place, distance_between
from noetl.engine.control.facts import abandoned, attempts_max, is_draining
from noetl.engine.control.inputs import Turn, Work, cause_of
from noetl.engine.control.sessions import demand_of
from noetl.engine.control.states import Held
from noetl.engine.placing.connected import Connected
from noetl.engine.placing.nearness import Nearness
from noetl.ports.session import CommandMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameClaimInput:
    """Frames of one stage that nobody holds, for a session that asks for them.  `found` is the answer; `free` are the
    commands that wait in the queue, with their attempts: what sessions of other servers hold does not.  `unlisted` says
    that a frame was left out because the queue did not show it: held elsewhere, or issued after the look.

    `preferred` is near which data it wants frames, and `max_distance` how far from theirs it takes them while somebody
    nearer can."""

    execution_id: int
    stage_id: str
    session_id: int
    count: int
    tenant_id: str
    organization_id: str
    free: Mapping[str, int] | None = None
    preferred: Place = NOWHERE
    max_distance: Distance | None = None
    found: list[CommandMessage] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)

    def apply(self, turn: Turn, held: Held | None) -> None:
        self.found.clear()
        self.unlisted.clear()
        if held is None or (held.state.tenant_id, held.state.organization_id) != (self.tenant_id, self.organization_id):
            raise ExecutionUnknown(f"there is no execution {self.execution_id}")
        if held.state.is_terminal or held.state.cancelling is not None:
            raise ExecutionClosed(f"execution {self.execution_id} gives out nothing more")
        for work in self._nearest(turn, held.state):
            if len(self.found) >= self.count or not turn.sessions.reserve_of(self.session_id):
                break
            held = self._claim(turn, held, work)

    def _nearest(self, turn: Turn, state: ExecutionState) -> list[Work]:
        """The frames that wait, the nearest first, without those that are left to somebody nearer."""
        waiting = self._waiting(turn, state)
        if state.places is NO_PLACES:
            return [turn.work(state, command) for command in waiting[: self.count]]
        session = turn.sessions.connected.get(self.session_id)
        here = NOWHERE if session is None else session.place
        here = replace(here, node=self.preferred.node or here.node, zone=self.preferred.zone or here.zone)
        works = [self._wished(turn.sessions.nearness, turn.work(state, command)) for command in waiting]
        if session is not None:
            works = [work for work in works if not self._is_left(turn, session, work)]
        return sorted(works, key=lambda work: _distance(here, work))

    def _wished(self, nearness: Nearness, work: Work) -> Work:
        if work.wish is None or self.max_distance is None:
            return work
        most = min(nearness.allowed(work.wish), self.max_distance)
        return work._replace(wish=work.wish._replace(max_distance=most))

    def _is_left(self, turn: Turn, session: Connected, work: Work) -> bool:
        if work.wish is None:
            return False
        demand = demand_of(work.command, turn.playbook)
        nearness = turn.sessions.nearness
        if not nearness.is_too_far(session, work.wish, demand.kinds):
            return False
        nearness.wait(session.pool, work.wish.key)
        return True

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

    def _claim(self, turn: Turn, held: Held, work: Work) -> Held:
        command = work.command
        for draft in abandoned(held.state, command):
            held, _ = turn.record(held, draft, event_time=turn.now, causation_id=held.state.last_event_id)
        cause, attempt = cause_of(held, turn.now), command.attempt + 1
        # What was lost with an earlier attempt is in the body only now, and how far this session would go is no wish
        # of the command's.
        now = turn.work(held.state, command)
        taken = now._replace(wish=work.wish)
        state, position = turn.claim(held.state, cause, taken, attempt=attempt, session_id=self.session_id)
        turn.batch.queue.append(turn.row(cause, now, attempt=attempt, session_id=self.session_id))
        turn.batch.keep(state, held.shard_id, position)
        self.found.append(turn.batch.deliveries[-1].message)
        return turn.batch.states[self.execution_id]


def _distance(here: Place, work: Work) -> Distance:
    return Distance.ANY if work.wish is None else distance_between(here, work.wish.source)
