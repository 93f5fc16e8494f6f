"""The collector beside producers that use payloads again: no event ever names what is gone."""

from __future__ import annotations

from collections import Counter

import pytest

from noetl.adapters.memory.collecting import TimedPayloads
from noetl.core.collection.plan import Policy
from tests.simulation.collecting import GRACE, NONE, REAL, Careless, Dangling, Opaque, Stale, simulate

SEEDS, PUTS = range(6), 500
SEEDS_LONG, PUTS_LONG = range(100, 200), 1_000


def test_with_the_real_protocol_nothing_dangles() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        seen += simulate(seed, puts=PUTS)
    # A run in which nothing is collected, or nothing is used again, proves nothing.
    assert seen["reused"] > 1_000, seen
    assert seen["deleted"] > 300, seen
    assert seen["renewed"] > 0, seen


@pytest.mark.long
def test_a_hundred_thousand_racing_puts_leave_nothing_dangling() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS_LONG:
        seen += simulate(seed, puts=PUTS_LONG)
    assert seen["reused"] > 100_000, seen
    assert seen["deleted"] > 10_000, seen


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate(3, puts=200) == simulate(3, puts=200)


def caught(seeds: range, *, policy: Policy = REAL, store: type[TimedPayloads] = TimedPayloads) -> int:
    """In how many runs the judge found something."""
    count = 0
    for seed in seeds:
        try:
            simulate(seed, puts=300, policy=policy, store=store)
        except* Dangling:
            count += 1
    return count


def test_a_collector_without_grace_is_caught() -> None:
    assert caught(range(4), policy=NONE) == 4


@pytest.mark.parametrize("store", [Stale, Opaque, Careless], ids=lambda store: store.__name__)
def test_a_store_that_breaks_its_word_is_caught(store: type[TimedPayloads]) -> None:
    assert caught(range(4), store=store) > 0


def test_a_grace_shorter_than_a_transaction_is_caught() -> None:
    short = Policy(grace_seconds=GRACE / 20, margin_seconds=0.0, ttl_seconds=GRACE)
    assert caught(range(4), policy=short) > 0
