"""Several servers on one ledger, in all weathers: one outcome, no shard with two owners, nothing lost and nothing shown
that is not so.  A failing seed says how to repeat it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from noetl.adapters.memory.database import MemoryDatabase
from noetl.ports.ledger import Fence
from tests.simulation.cluster import ClusterSetting, cluster_of, simulate_cluster
from tests.simulation.faults import Weather
from tests.simulation.seeds import check_seed

SEEDS, LONG_SEEDS, PART = 100, 400, 100
INTRUDED_SEEDS = 10
SPREAD_SEEDS = 20
STORM = Weather(
    seconds_max=0.3,
    trouble=0.1,
    crash=0.01,
    crashes_max=6,
    duplicate=0.3,
    stop=0.7,
    skew_seconds_max=30.0,
)


def stormy(seed: int) -> ClusterSetting:
    chosen = cluster_of(seed)
    return replace(chosen, servers=3, one=replace(chosen.one, shards=2, weather=STORM))


@pytest.mark.parametrize("seed", [4, 7])
def test_the_same_seed_gives_the_same_ledger_to_the_last_byte(seed: int) -> None:
    one, other = simulate_cluster(seed, stormy(seed)), simulate_cluster(seed, stormy(seed))
    assert one.seen["crash"] > 0
    assert (one.digest, one.seen, one.lives) == (other.digest, other.seen, other.lives)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_becomes_of_the_servers_the_outcome_is_the_same(seed: int) -> None:
    check_seed("cluster", seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + LONG_SEEDS, PART))
def test_whatever_becomes_of_the_servers_the_outcome_is_the_same_in_a_long_run(first: int) -> None:
    seen = sum((check_seed("cluster", seed) for seed in range(first, first + PART)), Counter[str]())
    # Marks: servers died, came back from the dead and handed over, and facts were recorded in the shards of others.
    weather = ("crash", "zombies", "handed over", "advance commits late", "advance reply lost", "append reply lost")
    for mark in weather:
        assert seen[mark] > 0, f"{PART} seeds without {mark!r}"


@pytest.mark.parametrize("seed", range(INTRUDED_SEEDS))
def test_a_lock_on_a_shard_delays_what_is_in_it_and_changes_nothing(seed: int) -> None:
    check_seed("intruder", seed)


@pytest.mark.parametrize("seed", range(SPREAD_SEEDS))
def test_workers_in_different_places_change_who_runs_something_and_not_what_comes_of_it(seed: int) -> None:
    check_seed("spread", seed)


@pytest.mark.long
def test_workers_in_different_places_change_nothing_in_a_long_run() -> None:
    for seed in range(SPREAD_SEEDS, SPREAD_SEEDS + PART):
        check_seed("spread", seed)


@pytest.mark.long
def test_locks_on_shards_change_nothing_in_a_long_run() -> None:
    for seed in range(INTRUDED_SEEDS, INTRUDED_SEEDS + PART):
        check_seed("intruder", seed)


# --- the test of the test: take a guard away, and the checks must notice -------------------------------------------


class WithoutFence(MemoryDatabase):
    """Whoever once owned a shard may write for ever."""

    def holds(self, fence: Fence) -> bool:
        return self.tables.heads[fence.shard_id].next_position == fence.next_position


class WithoutCommitOrder(MemoryDatabase):
    """An owner that missed what others recorded is not told."""

    def holds(self, fence: Fence) -> bool:
        return self.tables.heads[fence.shard_id].epoch == fence.epoch


@pytest.mark.parametrize("database", [WithoutFence, WithoutCommitOrder])
def test_a_ledger_without_its_fence_is_caught(database: type[MemoryDatabase]) -> None:
    for seed in range(40):
        caught = 0
        try:
            simulate_cluster(seed, stormy(seed), database)
        except* AssertionError:
            caught += 1
        if caught:
            return
    raise AssertionError("forty seeds without a fence, and nobody noticed")
