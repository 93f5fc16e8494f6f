"""Retries of executions that ended by luck, while everything goes wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.retries import simulate_retries

SEEDS, LONG_SEEDS = 20, 300


def simulated(seeds: range) -> Counter[str]:
    marks: Counter[str] = Counter()
    for seed in seeds:
        try:
            _, seen = simulate_retries(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        marks += seen
    return marks


def test_retries_run_what_failed_and_nothing_that_was_kept() -> None:
    marks = simulated(range(SEEDS))
    for name in ("retried", "nothing", "rows again", "rows kept"):
        assert marks[name], marks


@pytest.mark.long
def test_many_retries_run_what_failed_and_nothing_that_was_kept() -> None:
    simulated(range(SEEDS, LONG_SEEDS))


def test_the_same_seed_is_the_same_run() -> None:
    assert simulate_retries(3)[0] == simulate_retries(3)[0]
