"""The shard of an execution is a contract: these numbers must never change."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.ids import ExecutionId
from noetl.core.shards import SHARD_COUNT_DEFAULT, SHARD_COUNT_MAX, mix, shard_of

# Published outputs of splitmix64 for the seeds 0 and 1234567; the others were computed once and kept.
HASHES = {
    0: 0xE220A8397B1DCDAF,
    1_234_567: 6_457_827_717_110_365_317,
    1: 0x910A2DEC89025CC1,
    2**63 - 1: 0x2A67D7552E039EA7,
    2**64 - 1: 0xE4D971771B652C20,
}
SHARDS = {1: 1, 2: 14, 4_194_304: 11, 307_445_734_561_825_860: 15, 2**62: 11}


@pytest.mark.parametrize(("value", "hashed"), HASHES.items())
def test_the_hash_is_that_of_splitmix64(value: int, hashed: int) -> None:
    assert mix(value) == hashed


@pytest.mark.parametrize(("execution_id", "shard"), SHARDS.items())
def test_the_shard_of_an_execution_never_changes(execution_id: int, shard: int) -> None:
    assert shard_of(ExecutionId(execution_id), SHARD_COUNT_DEFAULT) == shard


@given(st.integers(0, 2**63 - 1), st.integers(1, SHARD_COUNT_MAX))
def test_a_shard_is_within_the_count(execution_id: int, shard_count: int) -> None:
    assert 0 <= shard_of(ExecutionId(execution_id), shard_count) < shard_count


@pytest.mark.parametrize("step", [1, 4_096, 1 << 22, 1_000 << 22])
def test_neighbours_in_time_are_spread_evenly(step: int) -> None:
    count = 16_000
    ids = range(1 << 60, (1 << 60) + count * step, step)
    hits = Counter(shard_of(ExecutionId(one), SHARD_COUNT_DEFAULT) for one in ids)
    # 1000 are expected per shard; five standard deviations are 153.
    assert len(hits) == SHARD_COUNT_DEFAULT
    assert all(847 < number < 1_153 for number in hits.values())


@pytest.mark.parametrize("shard_count", [0, -1, SHARD_COUNT_MAX + 1])
def test_a_shard_count_out_of_range_is_a_defect(shard_count: int) -> None:
    with pytest.raises(AssertionError, match="shard count"):
        shard_of(ExecutionId(1), shard_count)
