"""Events for tests: well formed, with rising ids, told apart by their transition key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from noetl.core import kinds
from noetl.core.event import Event, Sealed, seal
from noetl.core.reference import Payload, Result, address
from noetl.ports.clock import Clock, IdSource
from noetl.ports.ledger import Advance, Fence, Offer, ShardHead

TENANT, ORGANIZATION = "acme", "sales"
OK = Result(status="ok").to_json()


@dataclass(slots=True, kw_only=True)
class EventMaker:
    ids: IdSource
    clock: Clock
    tenant_id: str = TENANT
    organization_id: str = ORGANIZATION

    def execution_id(self) -> int:
        return self.ids.next_id()

    def event(self, execution_id: int, event_type: str, transition_key: str, **fields: Any) -> Event:
        return Event(
            execution_id=execution_id,
            event_id=self.ids.next_id(),
            tenant_id=self.tenant_id,
            organization_id=self.organization_id,
            event_type=event_type,
            event_time=self.clock.now(),
            producer="noetl://tenant/acme/org/sales/test/maker",
            transition_key=transition_key,
            correlation_id=str(execution_id),
            **fields,
        )

    def initialized(self, execution_id: int, **fields: Any) -> Event:
        return self.event(execution_id, kinds.PLAYBOOK_INITIALIZED, kinds.INITIALIZED_KEY, **fields)

    def issued(self, execution_id: int, command_id: str = "start#1", **fields: Any) -> Event:
        step, _, run = command_id.partition("#")
        meta = {"step": step, "run": int(run), "kind": "step", "parents": []}
        return self.event(
            execution_id,
            kinds.COMMAND_ISSUED,
            kinds.issued_key(command_id),
            command_id=command_id,
            **{"meta": meta, **fields},
        )

    def completed(self, execution_id: int, command_id: str = "start#1", **fields: Any) -> Event:
        return self.event(
            execution_id,
            kinds.COMMAND_COMPLETED,
            kinds.terminal_key(command_id),
            command_id=command_id,
            **{"result": OK, **fields},
        )

    def ended(self, execution_id: int) -> Event:
        return self.event(execution_id, kinds.PLAYBOOK_COMPLETED, kinds.EXECUTION_TERMINAL_KEY, result=OK, meta={})

    def payload(self, content: bytes, *, media_type: str = "text/plain") -> Payload:
        return address(
            content,
            media_type=media_type,
            store="db",
            tenant_id=self.tenant_id,
            organization_id=self.organization_id,
        )


def offer(shard_id: int, *events: Event, **fields: Any) -> Offer:
    return Offer(shard_id=shard_id, events=[seal(event) for event in events], **fields)


def unchecked(event: Event, *, result: str) -> Sealed:
    """An event with a result that `seal` refuses: what the database must refuse by itself."""
    good = seal(event._replace(result=None))
    return good._replace(text=f'{good.text[:-1]},"result":{result}}}')


def decision(heads: Sequence[ShardHead], *events: Event, **parts: Any) -> Advance:
    """An advance over the shards of these heads.  Events get the next positions of their shard."""
    following = {head.shard_id: head.next_position for head in heads}
    sealed = []
    for event in events:
        placed = event._replace(position=following[event.shard_id])
        following[event.shard_id] += 1
        sealed.append(seal(placed))
    fences = [
        Fence(
            shard_id=head.shard_id,
            epoch=head.epoch,
            next_position=head.next_position,
            decided_position=following[head.shard_id] - 1,
        )
        for head in heads
    ]
    return Advance(fences=fences, events=sealed, **parts)
