"""Wherever a process dies, the next one finishes what it began, and the outcome is that of a day in peace.

A failing await fails again: `pytest -k every_await` prints `crashed_at(<story>, <number>)`."""

from __future__ import annotations

import random

import pytest

from tests.simulation.awaits import STORIES, clean, crashed_at, crashed_pair


def check_await(story: str, number: int) -> None:
    peace, _ = clean(story)
    try:
        outcome, _ = crashed_at(story, number)
        assert outcome.seen.get("crash") == 1, "nobody died"
        assert outcome.lives <= 2
        assert outcome.results == peace.results
    except BaseException:
        print(f"crashed_at({story!r}, {number})")
        raise


@pytest.mark.parametrize("story", STORIES)
def test_a_crash_at_some_awaits_changes_nothing(story: str) -> None:
    _, awaits = clean(story)
    for number in random.Random(f"awaits {story}").sample(range(1, awaits + 1), k=15):
        check_await(story, number)


@pytest.mark.long
@pytest.mark.parametrize("story", STORIES)
def test_a_crash_at_every_await_changes_nothing(story: str) -> None:
    _, awaits = clean(story)
    for number in range(1, awaits + 1):
        check_await(story, number)


def check_pair(story: str, number: int) -> None:
    peace, _ = clean(story)
    try:
        outcome, _ = crashed_pair(story, number)
        assert outcome.results == peace.results
    except BaseException:
        print(f"crashed_pair({story!r}, {number})")
        raise


@pytest.mark.parametrize("story", ["fork", "loop", "retry"])
def test_a_crash_of_one_of_two_servers_changes_nothing(story: str) -> None:
    _, awaits = crashed_pair(story, None)
    for number in random.Random(f"awaits {story}").sample(range(1, awaits + 1), k=10):
        check_pair(story, number)


@pytest.mark.long
@pytest.mark.parametrize("story", ["fork", "loop", "retry"])
def test_a_crash_of_one_of_two_servers_at_any_await_changes_nothing(story: str) -> None:
    _, awaits = crashed_pair(story, None)
    for number in range(1, awaits + 1, max(1, awaits // 150)):
        check_pair(story, number)
