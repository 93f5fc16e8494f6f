"""Ids of new executions whose shard this process owns: then their first decision is made where they are started."""

from __future__ import annotations

from collections.abc import Callable, Collection

from noetl.core.errors import ShardMoved
from noetl.core.ids import ExecutionId
from noetl.core.shards import shard_of
from noetl.ports.clock import IdSource


class OwnIds:
    """Draws until one fits; the shard is the hash of the id and nothing else."""

    def __init__(self, ids: IdSource, *, owned: Callable[[], Collection[int]], shard_count: int) -> None:
        self._ids = ids
        self._owned = owned
        self._shard_count = shard_count

    def next_id(self) -> int:
        owned = self._owned()
        if len(owned) >= self._shard_count:
            return self._ids.next_id()
        if not any(shard < self._shard_count for shard in owned):
            raise ShardMoved("this server owns no shard yet: try again in a moment, or another server")
        while True:
            execution_id = self._ids.next_id()
            if shard_of(ExecutionId(execution_id), self._shard_count) in owned:
                return execution_id
