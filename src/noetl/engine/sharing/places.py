"""Which shard an input is about: known with it, by the execution's state, or asked once."""

from __future__ import annotations

from collections import OrderedDict

from noetl.engine.control.inputs import Input
from noetl.engine.control.states import States
from noetl.engine.sharing.waiting import patiently
from noetl.ports.ledger import Ledger

SHARDS_KNOWN_MAX = 10_000


class ShardsOf:
    """An execution stays in its shard, so what was asked once is true for ever."""

    def __init__(self, ledger: Ledger, states: States) -> None:
        self._ledger = ledger
        self._states = states
        self._known: OrderedDict[int, int] = OrderedDict()

    async def find(self, one: Input) -> int | None:
        """None when there is no such execution."""
        shard_id: int | None = getattr(one, "shard_id", None)
        if shard_id is not None:
            return shard_id
        held = self._states.cached(one.execution_id)
        if held is not None:
            return held.shard_id
        shard_id = self._known.get(one.execution_id)
        if shard_id is None:
            shard_id = await patiently(self._ledger.shard_of, one.execution_id)
            if shard_id is not None:
                self._known[one.execution_id] = shard_id
                if len(self._known) > SHARDS_KNOWN_MAX:
                    self._known.popitem(last=False)
        return shard_id
