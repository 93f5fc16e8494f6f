"""kill -9 of everything at any moment of a run, then `noetl up`: it goes on, and every transition is there once."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, cli, descendants, kill_all, wait_until
from tests.support.yaml import slow_chain, write

STEPS = 12


def postgres_pids(noetl: Cli) -> list[int]:
    try:
        return descendants(int((noetl.home / "postgres" / "data" / "postmaster.pid").read_text().split()[0]))
    except (OSError, ValueError, IndexError):
        return []


def check_ledger(events: list[dict[str, Any]], steps: int) -> None:
    assert [event["stream_version"] for event in events] == list(range(1, len(events) + 1))
    keys = [event["transition_key"] for event in events]
    assert len(keys) == len(set(keys))
    issued = [event["command_id"] for event in events if event["event_type"] == "command.issued"]
    ended = [event["command_id"] for event in events if event["transition_key"].startswith("command.terminal/")]
    assert issued == ended == [f"s{number}#1" for number in range(steps)]
    attempts: dict[str, int] = {}
    for event in events:
        if event["event_type"] == "command.claimed":
            assert event["meta"]["attempt"] == attempts.get(event["command_id"], 0) + 1
            attempts[event["command_id"]] = event["meta"]["attempt"]


def run_with_kills(noetl: Cli, folder: Path, seed: int, *, kills: int) -> None:
    chance = random.Random(seed)
    victim = noetl.spawn("run", write(folder, slow_chain(STEPS, seconds=0.03)))
    assert victim.stderr is not None
    execution_id = victim.stderr.readline().split()[1]
    for _ in range(kills):
        time.sleep(chance.uniform(0.0, 0.5))
        kill_all([*descendants(victim.pid), *(postgres_pids(noetl) if chance.random() < 0.5 else [])])
        victim.communicate()
        victim = noetl.spawn("up", "--foreground")
        if chance.random() < 0.7:
            wait_until((noetl.home / "host.sock").exists, seconds=60, what="the host is up again")
    try:
        wait_until(lambda: is_over(noetl, execution_id), seconds=60, what=f"the end with seed {seed}")
        final = noetl("status", execution_id, "--json").json
        assert final["status"] == "COMPLETED", (seed, final)
        assert final["result"] == {"n": STEPS}
        check_ledger(noetl.events(execution_id), STEPS)
    finally:
        noetl("down")
        victim.communicate(timeout=30)


def is_over(noetl: Cli, execution_id: str) -> bool:
    done = noetl("status", execution_id, "--json")
    return done.code == 0 and done.json["status"] != "RUNNING"


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments_a_run_finishes(tmp_path: Path, seed: int) -> None:
    with cli() as noetl:
        run_with_kills(noetl, tmp_path, seed, kills=2)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_killed_again_and_again_a_run_finishes(tmp_path: Path, seed: int) -> None:
    with cli() as noetl:
        run_with_kills(noetl, tmp_path, seed, kills=4)
