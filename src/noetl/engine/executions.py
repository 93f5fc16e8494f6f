"""Starting executions and reading what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from noetl.core import kinds
from noetl.core.codec import canonical_bytes, sha256_hex
from noetl.core.errors import (
    EnvelopeInvalid,
    ExecutionUnknown,
    PlaybookInvalid,
    Problem,
    RequestInvalid,
    TemplateFailed,
    TemplateInvalid,
    TransitionConflict,
)
from noetl.core.event import Draft, Event
from noetl.core.execution.state import Entry, ExecutionState
from noetl.core.expression import compile_value, normalise, render_value
from noetl.core.ids import ExecutionId
from noetl.core.limits import CONTEXT_ENTRY_BYTES_MAX, CONTEXT_INLINE_BYTES_MAX, TEMPLATE_SECONDS_MAX
from noetl.core.playbook.compile import CompiledPlaybook
from noetl.core.playbook.workload import merge, request_payload
from noetl.core.reference import MEDIA_JSON, MEDIA_PLAYBOOK, Payload
from noetl.core.shards import shard_of
from noetl.engine.control.decider import Decider
from noetl.engine.control.inputs import StartInput
from noetl.engine.control.parts import ControlParts
from noetl.engine.payloads import Payloads
from noetl.engine.work.names import stored_value
from noetl.ports.ledger import ExecutionRow, IdempotencyRow
from noetl.ports.queue import Executions
from noetl.ports.tool import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    text: str
    file: str
    payload: Mapping[str, object]
    tenant_id: str
    organization_id: str
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    execution_id: int
    warnings: tuple[Problem, ...]


class ExecutionService:
    def __init__(
        self,
        parts: ControlParts,
        *,
        decider: Decider,
        executions: Executions,
        payloads: Payloads,
        renderer: Renderer,
        shard_count: int,
    ) -> None:
        self._states = parts.states
        self._ledger = parts.ledger
        self._playbooks = parts.playbooks
        self._watchers = parts.watchers
        self._ids = parts.ids
        self._clock = parts.clock
        self._decider = decider
        self._executions = executions
        self._payloads = payloads
        self._renderer = renderer
        self._shard_count = shard_count

    # --- starting ------------------------------------------------------------------------------------------

    async def start(self, request: StartRequest) -> Started:
        """Create an execution; it is durable when this returns.  The same idempotency key gives the same one."""
        playbook = self._playbooks.compile(request.text, file=request.file)
        digest = sha256_hex(canonical_bytes([playbook.digest, dict(request.payload)]))
        known = await self._known(request, digest)
        if known is not None:
            return Started(execution_id=known, warnings=playbook.warnings)
        execution_id = self._ids.next_id()
        content = await self._payloads.keep(
            request.text.encode("utf-8"),
            tenant_id=request.tenant_id,
            organization_id=request.organization_id,
            media_type=MEDIA_PLAYBOOK,
        )
        workload = await self._workload(request, playbook, execution_id)
        entries, payloads = await self._entries(request, workload)
        draft = Draft(
            event_type=kinds.PLAYBOOK_INITIALIZED,
            transition_key=kinds.INITIALIZED_KEY,
            meta={
                "path": playbook.playbook.path,
                "playbook": content.reference.to_json(),
                "entry": playbook.playbook.entry,
                "workload": {name: entry.to_json() for name, entry in entries.items()},
            },
        )
        start = StartInput(
            execution_id=execution_id,
            shard_id=shard_of(ExecutionId(execution_id), self._shard_count),
            tenant_id=request.tenant_id,
            organization_id=request.organization_id,
            draft=draft,
            payloads=(content, *payloads),
            idempotency=_idempotency(request, digest, execution_id),
        )
        try:
            await self._decider.tell(start)
        except TransitionConflict:
            # Another request with the same key was faster.
            known = await self._known(request, digest)
            if known is None:
                raise
            execution_id = known
        return Started(execution_id=execution_id, warnings=playbook.warnings)

    async def _known(self, request: StartRequest, digest: str) -> int | None:
        if request.idempotency_key is None:
            return None
        row = await self._executions.idempotent(
            tenant_id=request.tenant_id,
            organization_id=request.organization_id,
            idempotency_key=request.idempotency_key,
        )
        if row is None:
            return None
        if row.request_digest != digest:
            raise RequestInvalid("this idempotency key was used for another request")
        return row.execution_id

    async def _workload(
        self, request: StartRequest, playbook: CompiledPlaybook, execution_id: int
    ) -> dict[str, object]:
        """Defaults rendered once, in document order, under the payload, which is data and never rendered."""
        payload = request_payload(request.payload)
        identity = str(execution_id)
        names: dict[str, object] = {
            **payload,
            "payload": payload,
            "input": payload,
            "execution_id": identity,
            "job": {"uuid": identity, "id": identity, "execution_id": identity},
            "env": {},
        }
        rendered: dict[str, object] = {}
        for key, value in playbook.playbook.workload.items():
            try:
                compiled = compile_value(value)
                now = self._clock.now()
                if compiled.needs_child:
                    chosen = {root: names[root] for root in compiled.roots if root in names}
                    rendered[key] = await self._renderer.render(
                        value,
                        chosen,
                        now=now,
                        timeout_seconds=TEMPLATE_SECONDS_MAX,
                        tenant=request.tenant_id,
                        organization=request.organization_id,
                    )
                else:
                    rendered[key] = render_value(compiled, names, now=now)
            except (TemplateInvalid, TemplateFailed) as error:
                problem = Problem(error.code, f"workload.{key}: {error}", request.file, field=f"workload.{key}")
                raise PlaybookInvalid([problem]) from error
            names.setdefault(key, rendered[key])
        merged = merge(rendered, payload)
        normal = normalise(merged)
        assert isinstance(normal, dict)
        return normal

    async def _entries(
        self, request: StartRequest, workload: Mapping[str, object]
    ) -> tuple[dict[str, Entry], list[Payload]]:
        """Small values inline, the others as places in one payload that holds the whole workload."""
        entries: dict[str, Entry] = {}
        payloads: list[Payload] = []
        used = 0
        for key, value in workload.items():
            try:
                size = len(canonical_bytes(value))
            except EnvelopeInvalid as error:
                raise RequestInvalid(f"workload value {key!r} cannot be stored: {error}") from error
            if size <= CONTEXT_ENTRY_BYTES_MAX and used + size <= CONTEXT_INLINE_BYTES_MAX:
                entries[key] = Entry(value)
                used += size
                continue
            if not payloads:
                payloads.append(
                    await self._payloads.keep_json(
                        dict(workload),
                        tenant_id=request.tenant_id,
                        organization_id=request.organization_id,
                        media_type=MEDIA_JSON,
                    )
                )
            entries[key] = Entry(None, payloads[0].reference.to_json(), (key,))
        return entries, payloads

    # --- reading -------------------------------------------------------------------------------------------

    async def state(self, execution_id: int, *, tenant_id: str, organization_id: str) -> ExecutionState:
        """The state as of the last committed event; other tenants' executions do not exist."""
        # Looked at, never kept: while this reads, the decider may commit, and its cache must not go back.
        held = self._states.cached(execution_id) or await self._states.fold(execution_id)
        if (held.state.tenant_id, held.state.organization_id) != (tenant_id, organization_id):
            raise ExecutionUnknown(f"there is no execution {execution_id}")
        return held.state

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
                await watch.changed(left)

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
        with self._watchers.watch(execution_id) as watch:
            state = await self.state(execution_id, tenant_id=tenant_id, organization_id=organization_id)
            events = await self._ledger.read_execution(execution_id, after_position=after_position, limit=limit)
            if events or state.is_terminal or wait_seconds <= 0:
                return events
            await watch.changed(wait_seconds)
        return await self._ledger.read_execution(execution_id, after_position=after_position, limit=limit)

    async def result(self, state: ExecutionState) -> object:
        """The value of a finished execution's result."""
        reference: Any = state.result["reference"] if state.result else None
        if reference is None:
            return None
        document = await self._payloads.read_json(
            reference, tenant_id=state.tenant_id, organization_id=state.organization_id
        )
        return stored_value(document, reference.get("media_type"))

    async def newest(self, *, tenant_id: str, organization_id: str, limit: int) -> list[ExecutionRow]:
        return await self._executions.newest(tenant_id=tenant_id, organization_id=organization_id, limit=limit)


def _idempotency(request: StartRequest, digest: str, execution_id: int) -> IdempotencyRow | None:
    if request.idempotency_key is None:
        return None
    return IdempotencyRow(
        tenant_id=request.tenant_id,
        organization_id=request.organization_id,
        idempotency_key=request.idempotency_key,
        request_digest=digest,
        execution_id=execution_id,
    )
