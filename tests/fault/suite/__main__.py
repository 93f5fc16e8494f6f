"""All faults, one after the other, and the page that tells what came of them."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from tests.fault.suite.cluster import Shape
from tests.fault.suite.faults import kills, loops, shards, surroundings
from tests.fault.suite.report import told, write
from tests.fault.suite.stage import Outcome

W0 = Shape(servers=3, workers=4, projectors=2)
SMALL = Shape(servers=2, workers=2, projectors=1)
Fault = Callable[[int], Awaitable[Outcome]]
FAULTS: dict[str, Fault] = {
    "F1": lambda seed: kills.at_random(seed, W0, kills=100),
    "F2": lambda seed: kills.at_points(seed, SMALL),
    "F2r": lambda seed: kills.at_points(seed, SMALL, names=("server.advanced", "worker.answered"), action="lose"),
    "F3": lambda seed: loops.half_of_a_loop(seed, SMALL, items=1_000, victims=("worker", "server", "all")),
    "F4": lambda seed: kills.standing_still(seed, SMALL, times=20),
    "F5": lambda seed: surroundings.postgres_restarts(seed, SMALL, times=10, pause=(5.0, 15.0)),
    "F6": lambda seed: surroundings.postgres_away(seed, SMALL, seconds=60.0),
    "F8": lambda seed: surroundings.lost_answers(seed, SMALL, seconds=60.0),
    "F11": lambda seed: surroundings.wrong_clocks(seed, SMALL, seconds=45.0),
    "F14": lambda seed: loops.deadly_frames(seed, SMALL, frames=100),
    "F14p": lambda seed: loops.poison(seed, SMALL, events=100),
    "F16": lambda seed: shards.overload(seed, SMALL, seconds=60.0, clients=400),
    "F18": lambda seed: surroundings.intruders(seed, SMALL, times=5),
    "F20": lambda seed: shards.rebalance(seed, SMALL, more_shards=32),
}


async def run(names: list[str], seed: int) -> int:
    outcomes = []
    begun = time.monotonic()
    for name in names:
        print(f"{name} with seed {seed} …", flush=True)
        outcome = await FAULTS[name](seed)
        outcomes.append(outcome)
        print(told(outcome), flush=True)
    seconds = time.monotonic() - begun
    if names == list(FAULTS):
        write(outcomes, seed=seed, seconds=seconds)
    good = all(outcome.is_good for outcome in outcomes)
    print(f"{'all good' if good else 'FAILED'}: {len(outcomes)} faults of the list in {seconds:.0f} s, seed {seed}")
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.suite", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="FAULT", help=f"some of {', '.join(FAULTS)}; without any, all")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(FAULTS)
    if unknown:
        parser.error(f"there is no fault {min(unknown)}")
    return asyncio.run(run(arguments.names or list(FAULTS), arguments.seed))


if __name__ == "__main__":
    sys.exit(main())
