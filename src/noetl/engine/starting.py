"""Preparing an execution: its workload rendered, its inputs and its playbook's text as payloads, its first event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from noetl.core import kinds, limits
from noetl.core.codec import canonical_bytes
from noetl.core.credential_keys import credential_at
from noetl.core.errors import (
    EnvelopeInvalid,
    PlaybookInvalid,
    Problem,
    RequestInvalid,
    TemplateFailed,
    TemplateInvalid,
)
from noetl.core.event import Draft
from noetl.core.execution.state import Entry
from noetl.core.expression import normalise, render_value
from noetl.core.limits import (
    TEMPLATE_SECONDS_MAX,
    WARNINGS_MAX,
)
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.playbook.workload import merge, request_payload
from noetl.core.reference import MEDIA_JSON, MEDIA_PLAYBOOK, Payload
from noetl.engine.payloads import Payloads
from noetl.engine.pinning.pinner import Pinner
from noetl.engine.pinning.pins import Pins, Source
from noetl.ports.clock import Clock, IdSource
from noetl.ports.owner import Owner
from noetl.ports.tool import Renderer

# Names of the request itself: a key of the workload does not hide them (dsl §1.3).
_REQUEST_NAMES = frozenset(("payload", "input", "execution_id", "job", "env"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An execution that can be started.  `reference` is that of its playbook's text, `pins` are what it is bound to."""

    execution_id: int
    playbook: CompiledPlaybook
    reference: Mapping[str, object]
    draft: Draft
    payloads: tuple[Payload, ...]
    pins: Pins


class Starter:
    def __init__(
        self,
        *,
        payloads: Payloads,
        renderer: Renderer,
        pinner: Pinner,
        ids: IdSource,
        clock: Clock,
        env: Mapping[str, str] | None = None,
        roots: IdSource | None = None,
    ) -> None:
        """`env` are the variables of this server that playbooks may read; `roots` makes the ids of executions that no
        other one starts."""
        self._roots = roots or ids
        self._env = env or {}
        self._payloads = payloads
        self._pinner = pinner
        self._renderer = renderer
        self._ids = ids
        self._clock = clock

    async def prepare(
        self,
        playbook: CompiledPlaybook,
        source: Source,
        payload: Mapping[str, object],
        *,
        owner: Owner,
        is_child: bool = False,
        caller: Mapping[str, object] | None = None,
    ) -> Prepared:
        """Raises PlaybookInvalid when a script cannot be had or the workload not be rendered, RequestInvalid when it
        cannot be stored.  `caller` is the iteration that a child is started from."""
        pins = await self._pinner.pin(playbook, source, owner, looks=not is_child)
        execution_id = (self._ids if is_child else self._roots).next_id()
        content = await self._payloads.keep(
            source.text.encode("utf-8"),
            tenant_id=owner.tenant_id,
            organization_id=owner.organization_id,
            media_type=MEDIA_PLAYBOOK,
        )
        workload = await self._workload(playbook, request_payload(payload), execution_id, file=source.file, owner=owner)
        entries, payloads = await self._entries(workload, owner)
        reference = content.reference.to_json()
        draft = Draft(
            event_type=kinds.PLAYBOOK_INITIALIZED,
            transition_key=kinds.INITIALIZED_KEY,
            meta={
                "path": playbook.playbook.path,
                "playbook": reference,
                "entry": playbook.playbook.entry,
                "workload": {name: entry.to_json() for name, entry in entries.items()},
                **pins.to_meta(WARNINGS_MAX),
                **({"env": self._env} if self._env else {}),
                **({"iter": caller} if caller is not None else {}),
            },
        )
        return Prepared(
            execution_id=execution_id,
            playbook=playbook,
            reference=reference,
            draft=draft,
            payloads=(content, *payloads, *pins.payloads),
            pins=pins,
        )

    async def _workload(
        self, playbook: CompiledPlaybook, payload: Mapping[str, object], execution_id: int, *, file: str, owner: Owner
    ) -> dict[str, object]:
        """Defaults rendered once, in document order, under the payload, which is data and never rendered."""
        identity = str(execution_id)
        names: dict[str, object] = {
            **payload,
            "payload": payload,
            "input": payload,
            "execution_id": identity,
            "job": {"uuid": identity, "id": identity, "execution_id": identity},
            "env": dict(self._env),
        }
        rendered: dict[str, object] = {}
        for key, compiled in playbook.workload.items():
            try:
                now = self._clock.now()
                if compiled.needs_child:
                    chosen = {root: names[root] for root in compiled.roots if root in names}
                    rendered[key] = await self._renderer.render(
                        compiled.source,
                        chosen,
                        now=now,
                        timeout_seconds=TEMPLATE_SECONDS_MAX,
                        tenant=owner.tenant_id,
                        organization=owner.organization_id,
                    )
                else:
                    rendered[key] = render_value(compiled, names, now=now)
            except (TemplateInvalid, TemplateFailed) as error:
                problem = Problem(error.code, f"workload.{key}: {error}", file, field=f"workload.{key}")
                raise PlaybookInvalid([problem]) from error
            if key not in _REQUEST_NAMES:
                # Later templates read what the workload will hold, of a mapping also what the payload leaves out.
                names[key] = merge({key: rendered[key]}, payload)[key]
        merged = merge(rendered, payload)
        normal = normalise(merged)
        assert isinstance(normal, dict)
        return normal

    async def _entries(self, workload: Mapping[str, object], owner: Owner) -> tuple[dict[str, Entry], list[Payload]]:
        """Small values inline; the others, and what looks like a credential, as places in one payload that holds the
        whole workload."""
        entries: dict[str, Entry] = {}
        payloads: list[Payload] = []
        used = 0
        for key, value in workload.items():
            try:
                size = len(canonical_bytes(value))
            except EnvelopeInvalid as error:
                raise RequestInvalid(f"workload value {key!r} cannot be stored: {error}") from error
            is_hidden = credential_at(value, (key,)) is not None
            if (
                not is_hidden
                and size <= limits.CONTEXT_ENTRY_BYTES_MAX
                and used + size <= limits.CONTEXT_INLINE_BYTES_MAX
            ):
                entries[key] = Entry(value)
                used += size
                continue
            if not payloads:
                payloads.append(
                    await self._payloads.keep_json(
                        dict(workload),
                        tenant_id=owner.tenant_id,
                        organization_id=owner.organization_id,
                        media_type=MEDIA_JSON,
                    )
                )
            entries[key] = Entry(None, payloads[0].reference.to_json(), (key,))
        return entries, payloads
