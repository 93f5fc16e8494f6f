"""Events to append: the story of one real execution, told again for any number of others.

A made-up story would be refused by the fold; a recorded one costs its readers what a real one costs them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from noetl.adapters.system.ids import SnowflakeIds
from noetl.core.event import Event, seal
from noetl.core.ids import ExecutionId
from noetl.core.shards import shard_of
from noetl.ports.ledger import Offer

CALL_EVENTS = 64
"""Events of one call; the last call of a story has fewer than twice as many."""


def told_again(story: Sequence[Event], ids: SnowflakeIds, *, shard_count: int) -> Iterator[Offer]:
    """The calls that append the same story for a new execution, one after the other."""
    execution_id = ids.next_id()
    shard_id = shard_of(ExecutionId(execution_id), shard_count)
    names = {event.event_id: ids.next_id() for event in story}
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    sealed = [
        seal(
            event._replace(
                execution_id=execution_id,
                event_id=names[event.event_id],
                event_time=now,
                correlation_id=str(execution_id),
                causation_id=names.get(event.causation_id or 0),
                parent_event_id=names.get(event.parent_event_id or 0),
                idempotency_key=None,
            )
        )
        for event in story
    ]
    while sealed:
        size = CALL_EVENTS if len(sealed) >= 2 * CALL_EVENTS else len(sealed)
        yield Offer(shard_id=shard_id, events=sealed[:size])
        sealed = sealed[size:]
