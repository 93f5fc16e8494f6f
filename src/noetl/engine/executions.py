"""Starting and cancelling executions, and reading what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from noetl.core.codec import canonical_bytes, sha256_hex
from noetl.core.errors import ExecutionUnknown, NoetlError, Problem, ShardMoved
from noetl.core.event import Event
from noetl.core.execution.lifecycle import REQUEST
from noetl.core.execution.state import Command, CommandStatus, ExecutionState, Status
from noetl.core.playbook.compiling.pools import POOL_DEFAULT
from noetl.core.playbook.scripts import scripts_digest, version_digest
from noetl.engine.beginning import STARTS_MAX, Beginning, Beginnings
from noetl.engine.control.decider import Decider
from noetl.engine.control.inputs import CancelInput
from noetl.engine.control.parts import ControlParts
from noetl.engine.control.sessions import demand_of
from noetl.engine.control.states import Held
from noetl.engine.payloads import Payloads
from noetl.engine.pinning.pins import Source
from noetl.engine.placing.connected import Demand
from noetl.engine.results import read_result
from noetl.engine.starting import Starter
from noetl.ports.catalog import CatalogEntry
from noetl.ports.ledger import ExecutionRow
from noetl.ports.queue import Executions
from noetl.ports.serving.roster import Roster, SessionRow

LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    text: str
    file: str
    payload: Mapping[str, object]
    tenant_id: str
    organization_id: str
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a text comes from.  `scripts` came along with it, by path.  When it is that of a version of the catalog,
    `entry` is that version and `asked` what the caller said: the same request again is the same execution, whatever is
    newest then."""

    scripts: Mapping[str, str] = field(default_factory=dict)
    entry: CatalogEntry | None = None
    asked: Sequence[object] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    execution_id: int
    warnings: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Unserved:
    """A step with a command that no connected worker takes: it waits until one comes."""

    step: str
    demand: Demand
    is_pool_empty: bool

    @property
    def message(self) -> str:
        pool, kinds = self.demand.pool, ", ".join(sorted(self.demand.kinds))
        start = "noetl worker" if pool == POOL_DEFAULT else f"noetl worker --pool {pool}"
        if self.is_pool_empty:
            return f"no worker of pool {pool!r} is connected: start one with `{start}`"
        return f"no connected worker of pool {pool!r} runs {kinds}: start one that does with `{start}`"

    def to_json(self) -> dict[str, object]:
        demand = self.demand
        return {"step": self.step, "pool": demand.pool, "kinds": sorted(demand.kinds), "message": self.message}


class _Identity(Protocol):
    """Which execution it is, and whose."""

    @property
    def execution_id(self) -> int: ...

    @property
    def tenant_id(self) -> str: ...

    @property
    def organization_id(self) -> str: ...


class ExecutionService:
    def __init__(
        self,
        parts: ControlParts,
        *,
        decider: Decider,
        executions: Executions,
        payloads: Payloads,
        starter: Starter,
        shard_count: int,
        roster: Roster | None = None,
    ) -> None:
        self._roster = roster
        self._states = parts.states
        self._ledger = parts.ledger
        self._playbooks = parts.playbooks
        self._watchers = parts.watchers
        self._sessions = parts.sessions
        self._clock = parts.clock
        self._decider = decider
        self._executions = executions
        self._payloads = payloads
        self._starter = starter
        self.beginnings = Beginnings(decider=decider, executions=executions, shard_count=shard_count)

    # --- starting ------------------------------------------------------------------------------------------

    async def start(self, request: StartRequest, origin: Origin | None = None) -> Started:
        """Create an execution; it is durable when this returns.  The same idempotency key gives the same one."""
        origin = origin or Origin()
        playbook = await self._playbooks.compile(request.text, file=request.file)
        digest = _digest(request, origin, playbook.digest)
        known = await self.beginnings.known(request, digest)
        if known is not None:
            return Started(execution_id=known, warnings=playbook.warnings)
        source = Source(text=request.text, file=request.file, scripts=origin.scripts, entry=origin.entry)
        for _ in range(STARTS_MAX):
            prepared = await self._starter.prepare(playbook, source, request.payload, owner=request)
            try:
                beginning = Beginning(
                    execution_id=prepared.execution_id, draft=prepared.draft, payloads=prepared.payloads
                )
                execution_id = await self.beginnings.commit(request, beginning, digest)
            except ShardMoved:
                continue  # between the choice of its id and its commit
            return Started(execution_id=execution_id, warnings=prepared.pins.warnings)
        raise ShardMoved("the shards of this server are on the move: try again in a moment")

    # --- cancelling ----------------------------------------------------------------------------------------

    async def cancel(self, execution_id: int, *, reason: str, tenant_id: str, organization_id: str) -> ExecutionState:
        """Ask for the end of an execution; the request is durable when this returns, and asking again changes nothing.
        Raises ExecutionClosed when it has ended."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        await self.state(execution_id, **owner)
        words = reason.encode("utf-8", "replace").decode("utf-8").strip() or "cancelled on request"
        await self._decider.tell(CancelInput(execution_id=execution_id, reason=words, cause=REQUEST))
        return await self.state(execution_id, **owner)

    # --- reading -------------------------------------------------------------------------------------------

    async def held(self, execution_id: int, *, tenant_id: str, organization_id: str) -> Held:
        """The state as of the last committed event, with its position; other tenants' executions do not exist."""
        # Looked at, never kept: while this reads, the decider may commit, and its cache must not go back.
        held = self._states.cached(execution_id) or await self._states.fold(execution_id)
        if (held.state.tenant_id, held.state.organization_id) != (tenant_id, organization_id):
            raise ExecutionUnknown(f"there is no execution {execution_id}")
        return held

    async def state(self, execution_id: int, *, tenant_id: str, organization_id: str) -> ExecutionState:
        return (await self.held(execution_id, tenant_id=tenant_id, organization_id=organization_id)).state

    async def wait_terminal(
        self, execution_id: int, *, tenant_id: str, organization_id: str, timeout_seconds: float
    ) -> ExecutionState:
        """The state when the execution has ended, or when the time is up."""
        deadline = self._clock.monotonic() + timeout_seconds
        with self._watchers.watch(execution_id, until_end=True) as watch:
            while True:
                state = await self.state(execution_id, tenant_id=tenant_id, organization_id=organization_id)
                left = deadline - self._clock.monotonic()
                if state.is_terminal or left <= 0:
                    return state
                await watch.changed(self._patience(execution_id, left))

    async def events(
        self,
        execution_id: int,
        *,
        tenant_id: str,
        organization_id: str,
        after_position: int,
        limit: int,
        wait_seconds: float,
    ) -> list[Event]:
        """Events behind a position; waits for the first one when there is none yet."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        deadline = self._clock.monotonic() + wait_seconds
        with self._watchers.watch(execution_id) as watch:
            while True:
                is_over = await self.has_ended(execution_id, **owner)
                events = await self._ledger.read_execution(execution_id, after_position=after_position, limit=limit)
                left = deadline - self._clock.monotonic()
                if events or is_over or left <= 0:
                    return events
                await watch.changed(self._patience(execution_id, left))

    async def has_ended(self, execution_id: int, *, tenant_id: str, organization_id: str) -> bool:
        """Whether an execution is over, as far as this server knows.  Other tenants' executions do not exist."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        if self._states.cached(execution_id) is None:
            row = await self._executions.find(execution_id, **owner)
            if row is not None:
                return row.status != Status.RUNNING
        return (await self.state(execution_id, **owner)).is_terminal

    def _patience(self, execution_id: int, seconds: float) -> float:
        """How long to wait for a word: what other servers decide is told nobody here, and must be looked for."""
        return seconds if self._states.cached(execution_id) is not None else min(seconds, LOOK_SECONDS)

    async def unserved(self, state: ExecutionState) -> list[Unserved]:
        """Steps that wait for workers which are not there: whoever looks must not take that for running."""
        return [] if state.is_terminal else await self.unserved_commands(state, state.playbook, state.commands.values())

    async def unserved_commands(
        self, execution: _Identity, reference: Mapping[str, object], commands: Iterable[Command]
    ) -> list[Unserved]:
        """As above, of what is open in an execution of which no more is known."""
        sessions, found = self._sessions, dict[tuple[str, Demand], Unserved]()
        open_ = [one for one in commands if one.status is not CommandStatus.WAITING]
        if not open_:
            return []
        try:
            playbook = await self._playbooks.pinned(
                reference, tenant_id=execution.tenant_id, organization_id=execution.organization_id
            )
        except NoetlError:
            return []  # whoever looks at an execution must see it, also when nobody could go on with it
        for command in open_:
            if sessions.holds(execution.execution_id, command.command_id, command.attempt):
                continue
            demand = demand_of(command, playbook)
            if not sessions.pools.is_served(demand):
                found[command.step, demand] = Unserved(command.step, demand, demand.pool not in sessions.pools.served)
        return await self._unserved_anywhere(list(found.values()))

    async def _unserved_anywhere(self, found: list[Unserved]) -> list[Unserved]:
        """Those that workers of other servers do not take either."""
        if not found or self._roster is None:
            return found
        living = await self._roster.living()
        pools = {row.pool for row in living}
        return [
            replace(one, is_pool_empty=one.is_pool_empty and one.demand.pool not in pools)
            for one in found
            if not any(_serves(row, one.demand) for row in living)
        ]

    async def result(self, state: ExecutionState) -> object:
        """The value of a finished execution's result."""
        reference: Any = state.result["reference"] if state.result else None
        owner = {"tenant_id": state.tenant_id, "organization_id": state.organization_id}
        return await self.result_of(reference, **owner)

    async def result_of(self, reference: Mapping[str, Any] | None, *, tenant_id: str, organization_id: str) -> object:
        if reference is None:
            return None
        return await read_result(self._payloads, reference, tenant_id=tenant_id, organization_id=organization_id)

    async def newest(
        self, *, tenant_id: str, organization_id: str, limit: int, before: int | None = None, status: str | None = None
    ) -> list[ExecutionRow]:
        """The newest executions, or those that are older than one of them."""
        return await self._executions.newest(
            tenant_id=tenant_id, organization_id=organization_id, limit=limit, before=before, status=status
        )


def _serves(session: SessionRow, demand: Demand) -> bool:
    return session.pool == demand.pool and (session.kinds is None or session.kinds.issuperset(demand.kinds))


def _digest(request: StartRequest, origin: Origin, playbook_digest: str) -> str:
    """What makes two requests the same one."""
    scripts = {uri: sha256_hex(text.encode("utf-8")) for uri, text in origin.scripts.items()}
    asked = origin.asked or [version_digest(playbook_digest, scripts_digest(scripts))]
    return sha256_hex(canonical_bytes([*asked, dict(request.payload)]))
