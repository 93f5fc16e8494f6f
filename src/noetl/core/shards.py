"""Which shard an execution belongs to.  Our own hash, a contract with golden vectors: never the database's,
whose hash may change between releases.  The shard is stored when the execution is created and never computed
again."""

from __future__ import annotations

from noetl.core.ids import ExecutionId, ShardId

SHARD_COUNT_DEFAULT = 16
SHARD_COUNT_MAX = 1024
_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """The 64-bit finaliser of splitmix64: neighbours in time land on unrelated shards."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def shard_of(execution_id: ExecutionId, shard_count: int) -> ShardId:
    assert 1 <= shard_count <= SHARD_COUNT_MAX, "shard count out of range"
    return ShardId(mix(execution_id) % shard_count)
