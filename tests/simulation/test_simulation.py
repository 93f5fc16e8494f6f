"""The whole engine in one loop over memory adapters: random playbooks, random faults, virtual time.

A failing seed fails again, and says how to repeat it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from noetl.adapters.memory.database import MemoryDatabase
from noetl.ports.ledger import Fence
from tests.simulation.seeds import STORM, check_seed
from tests.simulation.world import Setting, setting_of, simulate, simulate_fair

SEEDS, LOOP_SEEDS, LONG_SEEDS = 100, 12, 500
PART = 50


@pytest.mark.parametrize("seed", [3, 14, 15])
def test_the_same_seed_gives_the_same_ledger_to_the_last_byte(seed: int) -> None:
    setting = replace(setting_of(seed), weather=STORM)
    one, other = simulate(seed, setting), simulate(seed, setting)
    assert one.seen
    assert (one.digest, one.seen, one.lives) == (other.digest, other.seen, other.lives)


def test_other_seeds_give_other_ledgers() -> None:
    assert len({simulate_fair(seed).digest for seed in range(10)}) == 10


def test_steps_of_these_playbooks_are_turned_down_and_asked_about() -> None:
    seen = sum((Counter(simulate_fair(seed).seen) for seed in range(15)), Counter[str]())
    for mark in ("skipped by admission", "skipped by guard", "asked to admit", "asked to skip"):
        assert seen[mark] > 0, f"no seed has {mark!r}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_goes_wrong_the_outcome_is_the_same(seed: int) -> None:
    check_seed("server", seed)


@pytest.mark.parametrize("seed", range(LOOP_SEEDS))
def test_whatever_goes_wrong_no_row_of_a_loop_is_lost_or_run_behind_its_outcome(seed: int) -> None:
    check_seed("loops", seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(LOOP_SEEDS, LOOP_SEEDS + LONG_SEEDS // 5, 2 * PART))
def test_whatever_goes_wrong_no_row_of_a_loop_is_lost_in_a_long_run(first: int) -> None:
    seen = sum((check_seed("loops", seed) for seed in range(first, first + 2 * PART)), Counter[str]())
    # Marks: frames were lost behind persisted rows, repeated as a whole, and drained.
    for mark in ("crash", "get not done", "rows skipped", "whole frames", "frames drained", "heartbeats", "loops torn"):
        assert seen[mark] > 0, f"{2 * PART} seeds without {mark!r}"


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + LONG_SEEDS, PART))
def test_whatever_goes_wrong_the_outcome_is_the_same_in_a_long_run(first: int) -> None:
    seen = sum((check_seed("server", seed) for seed in range(first, first + PART)), Counter[str]())
    # Marks: the rare branches were really taken.
    weather = ("crash", "advance not done", "advance reply lost", "advance commits late", "read_execution not done")
    for mark in (*weather, "skipped by admission", "skipped by guard", "asked to admit", "asked to skip"):
        assert seen[mark] > 0, f"{PART} seeds without {mark!r}"


# --- the test of the test: take a guard away, and the checks must notice -------------------------------------------


class WithoutFence(MemoryDatabase):
    """Any owner may write, whatever it has seen."""

    def holds(self, fence: Fence) -> bool:
        return fence.shard_id in self.tables.heads


class WithoutCommitOrder(MemoryDatabase):
    """A decider that missed events is not told."""

    def holds(self, fence: Fence) -> bool:
        return self.tables.heads[fence.shard_id].epoch == fence.epoch


@pytest.mark.parametrize("database", [WithoutFence, WithoutCommitOrder])
def test_a_ledger_without_its_fence_is_caught(database: type[MemoryDatabase]) -> None:
    caught = 0
    for seed in range(40):
        setting = Setting(shards=1, slots=4, batch_inputs_max=2, weather=STORM)
        try:
            simulate(seed, setting, database)
        except* AssertionError:
            caught += 1
        if caught:
            return
    raise AssertionError("forty seeds without a fence, and nobody noticed")
