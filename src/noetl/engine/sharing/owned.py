"""The shards that are owned here, and how far each of them is known."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from noetl.engine.control.states import States
from noetl.ports.ledger import Ledger, ShardHead

log = logging.getLogger("noetl.decider")


class Owned:
    def __init__(self, ledger: Ledger, states: States) -> None:
        self._ledger = ledger
        self._states = states
        self.heads: dict[int, ShardHead] = {}

    def take(self, heads: Iterable[ShardHead]) -> None:
        taken = {head.shard_id: head for head in heads}
        # Whoever looked at an execution of theirs left a state here that others have moved on from.
        self._states.drop_shards(taken)
        self.heads.update(taken)

    def let_go(self, shards: Collection[int]) -> None:
        for shard_id in shards:
            self.heads.pop(shard_id, None)
        self._states.drop_shards(shards)

    async def look_again(self, shards: Collection[int]) -> dict[int, ShardHead]:
        """Read the heads of these; returns those that have grown as they were known before."""
        return self.look_at(await self._ledger.heads(), shards)

    def look_at(self, heads: Iterable[ShardHead], shards: Collection[int]) -> dict[int, ShardHead]:
        """Whoever looks decides what is behind a head, for it counts as seen.  A shard whose epoch has risen belongs to
        somebody else; a head that was read before our own last commit says nothing."""
        grown = {}
        lost = []
        for head in heads:
            known = self.heads.get(head.shard_id)
            if known is None or head.shard_id not in shards:
                continue
            if known.epoch < head.epoch:
                lost.append(head.shard_id)
                continue
            if known.next_position < head.next_position:
                grown[head.shard_id] = known
                self.heads[head.shard_id] = head
        if lost:
            log.warning("shards lost", extra={"event": "shards.lost", "reason": ", ".join(map(str, lost))})
            self.let_go(lost)
        return grown
