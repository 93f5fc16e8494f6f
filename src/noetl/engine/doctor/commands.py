"""Commands about which ledger and queue disagree.  The ledger is right."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from noetl.core.errors import NoetlError, Transient
from noetl.core.execution.state import CommandStatus
from noetl.engine.control.inputs import Input, RestoreInput, Turn
from noetl.engine.control.states import Held
from noetl.engine.doctor.finding import COMMAND_LOST, COMMAND_OVER, Finding, Thresholds
from noetl.ports.durability.examination import Examination
from noetl.ports.durability.leftovers import QueueLeftovers
from noetl.ports.ledger import ShardHead
from noetl.ports.queue import Executions, Queue

_FIX = "`noetl doctor --fix`"


class Folding(Protocol):
    async def fold(self, execution_id: int) -> Held: ...


class Owner(Protocol):
    """The decider of this process."""

    @property
    def heads(self) -> Mapping[int, ShardHead]: ...

    async def tell(self, one: Input) -> None: ...


Elsewhere = Callable[[Collection[int]], Awaitable[Mapping[int, frozenset[tuple[str, int]]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearInput:
    """Rows of the queue whose commands the ledger does not have open: whoever owns the shard takes them out."""

    execution_id: int
    commands: tuple[str, ...]

    def apply(self, turn: Turn, held: Held | None) -> None:
        if held is None:
            return
        over = [one for one in self.commands if held.state.is_terminal or one not in held.state.commands]
        if over:
            turn.batch.keep(*held)
            turn.batch.touched_shards.add(held.shard_id)
            turn.batch.dequeue.extend((self.execution_id, command_id) for command_id in over)


class _Odd(NamedTuple):
    """A command that is open and not queued, or queued and not open."""

    code: str
    execution_id: int
    command_id: str
    shard_id: int


class EndedRows:
    """Rows of executions that are closed."""

    def __init__(self, examination: Examination, leftovers: QueueLeftovers, thresholds: Thresholds) -> None:
        self._examination = examination
        self._leftovers = leftovers
        self._thresholds = thresholds

    async def look(self) -> list[Finding]:
        return [
            Finding(
                code=COMMAND_OVER,
                what=f"execution {row.execution_id} has ended, and its command {row.command_id} is still queued",
                where=f"execution {row.execution_id} command {row.command_id}",
                do=f"the reaper of a running server takes it out; {_FIX} does so now",
                can_fix=True,
            )
            for row in await self._examination.queued_after_the_end(limit=self._thresholds.rows_max)
        ]

    async def fix(self, _findings: Sequence[Finding]) -> None:
        await self._leftovers.drop_ended()


class StuckCommands:
    """Open executions, folded and compared with the queue.  What one look finds may be on its way; what two find in
    the same place is not."""

    def __init__(
        self,
        folding: Folding,
        *,
        queue: Queue,
        executions: Executions,
        owner: Owner | None,
        elsewhere: Elsewhere | None,
        thresholds: Thresholds,
    ) -> None:
        """`owner` is None in a process that decides nothing."""
        self._folding = folding
        self._queue = queue
        self._executions = executions
        self._owner = owner
        self._elsewhere = elsewhere
        self._thresholds = thresholds

    async def look(self) -> list[Finding]:
        open_ids = (await self._executions.open_ids())[: self._thresholds.executions_max]
        odd = await self._odd(open_ids)
        if not odd:
            return []
        await asyncio.sleep(self._thresholds.settle_seconds)
        again = await self._odd(sorted({one.execution_id for one in odd}))
        return [self._finding(one) for one in sorted(odd & again)[: self._thresholds.rows_max]]

    async def fix(self, findings: Sequence[Finding]) -> None:
        assert self._owner is not None
        lost: dict[int, int] = {}
        over: dict[int, list[str]] = {}
        for finding in findings:
            odd = _Odd(*finding.subject)  # type: ignore[arg-type]
            if odd.code == COMMAND_LOST:
                lost[odd.execution_id] = odd.shard_id
            else:
                over.setdefault(odd.execution_id, []).append(odd.command_id)
        for execution_id, commands in over.items():
            await self._owner.tell(ClearInput(execution_id=execution_id, commands=tuple(commands)))
        away = await self._elsewhere(set(lost.values())) if lost and self._elsewhere is not None else {}
        for execution_id in lost:
            held = away.get(execution_id, frozenset())
            await self._owner.tell(RestoreInput(execution_id=execution_id, elsewhere=held))

    async def _odd(self, execution_ids: Sequence[int]) -> set[_Odd]:
        found: set[_Odd] = set()
        for execution_id in execution_ids:
            try:
                held = await self._folding.fold(execution_id)
            except Transient:
                raise
            except NoetlError:
                continue  # it is quarantined, or will be: that is told elsewhere
            rows = {row.command_id for row in await self._queue.commands_of(execution_id)}
            state = held.state
            commands = {} if state.is_terminal else state.commands
            lost = {
                command.command_id
                for command in commands.values()
                if command.status is not CommandStatus.WAITING and command.command_id not in rows
            }
            found |= {_Odd(COMMAND_LOST, execution_id, one, held.shard_id) for one in lost}
            found |= {_Odd(COMMAND_OVER, execution_id, one, held.shard_id) for one in rows - commands.keys()}
        return found

    def _finding(self, odd: _Odd) -> Finding:
        is_own = self._owner is not None and odd.shard_id in self._owner.heads
        if odd.code == COMMAND_LOST:
            what = f"command {odd.command_id} is open and not in the queue: nobody will take it"
        else:
            what = f"command {odd.command_id} has ended and is still in the queue"
        away = (
            f"run {_FIX} with --server at the owner of shard {odd.shard_id}: `noetl_shard_owner` in /metrics names it"
        )
        return Finding(
            code=odd.code,
            what=what,
            where=f"execution {odd.execution_id} command {odd.command_id}",
            do=f"{_FIX} puts queue and ledger together" if is_own else away,
            can_fix=is_own,
            subject=tuple(odd),
        )
