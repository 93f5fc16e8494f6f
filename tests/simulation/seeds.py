"""The kinds of runs that a seed can stand for, each with its checks.

A run that fails prints the command that repeats it; its line then goes into `regressions.txt`, which is run always."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.simulation.cluster import in_peace, intruded, scattered, simulate_cluster
from tests.simulation.families import simulate_family
from tests.simulation.faults import Weather
from tests.simulation.world import Setting, setting_of, simulate, simulate_fair

REGRESSIONS = Path(__file__).with_name("regressions.txt")
STORM = Weather(seconds_max=0.3, trouble=0.15, crash=0.02, crashes_max=4, duplicate=0.3, drop_derived=0.5)


def loops_of(seed: int) -> Setting:
    """Playbooks of hardly anything but loops, in bad weather."""
    chance = random.Random(f"loops {seed}")
    weather = Weather(
        seconds_max=chance.choice((0.3, 1.0)),
        trouble=chance.choice((0.0, 0.05, 0.15)),
        crash=0.01,
        crashes_max=chance.randint(2, 7),
        duplicate=0.3,
        drop_derived=0.5,
    )
    return Setting(
        shards=chance.choice((1, 2)),
        slots=chance.choice((1, 2, 4, 8)),
        batch_inputs_max=chance.choice((1, 2, 128)),
        weather=weather,
        loops=0.9,
    )


def _same(seed: int, setting: Setting) -> Counter[str]:
    """With and without faults the outcome is the same."""
    outcome = simulate(seed, setting)
    assert outcome.results == simulate_fair(seed, setting).results
    return Counter(outcome.seen)


def _server(seed: int) -> Counter[str]:
    return _same(seed, setting_of(seed))


def _loops(seed: int) -> Counter[str]:
    return _same(seed, loops_of(seed))


def _family(seed: int) -> Counter[str]:
    return simulate_family(seed)[1]


def _cluster(seed: int) -> Counter[str]:
    outcome = simulate_cluster(seed)
    assert outcome.results == in_peace(seed).results
    return Counter(outcome.seen)


def _intruder(seed: int) -> Counter[str]:
    outcome = simulate_cluster(seed, intruded(seed))
    assert outcome.results == in_peace(seed, intruded(seed)).results
    return Counter(outcome.seen)


def _spread(seed: int) -> Counter[str]:
    outcome = simulate_cluster(seed, scattered(seed))
    assert outcome.results == in_peace(seed, scattered(seed)).results
    return Counter(outcome.seen)


RUNS: dict[str, Callable[[int], Counter[str]]] = {
    "server": _server,
    "loops": _loops,
    "family": _family,
    "cluster": _cluster,
    "intruder": _intruder,
    "spread": _spread,
}


def check_seed(kind: str, seed: int) -> Counter[str]:
    """One run with all its checks; returns what happened in it."""
    try:
        return RUNS[kind](seed)
    except BaseException:
        print(f"repeat it:  .venv/bin/python -m tests.simulation.seeds {kind} {seed}", file=sys.stderr)
        raise


def regressions() -> Iterator[tuple[str, int]]:
    """Runs that once failed: a kind, a seed and, behind `#`, what was wrong."""
    for line in REGRESSIONS.read_text(encoding="utf-8").splitlines():
        words = line.partition("#")[0].split()
        if words:
            yield words[0], int(words[1])


if __name__ == "__main__":
    print(dict(check_seed(sys.argv[1], int(sys.argv[2]))))
