"""Processes that are killed while they keep datasets: what was said to be kept is there, and nothing half-kept has a
name."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from noetl.adapters.objects.filesystem import INCOMING, FilePayloads
from noetl.core.dataset import manifest_from
from noetl.core.reference import reference_from_json
from tests.support.aio import asynchronous
from tests.support.arrow import OWNER
from tests.support.dataset_writer import PARTS, table_of
from tests.support.datasets import over, rows_of


def killed(folder: Path, seed: int, seconds: float) -> list[Any]:
    """What a writer said before it was killed, so long after its first word."""
    command = [sys.executable, "-m", "tests.support.dataset_writer", str(folder), str(seed)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    said = [writer.stdout.readline()]
    time.sleep(seconds)
    writer.send_signal(signal.SIGKILL)
    said += writer.stdout.readlines()
    writer.stdout.close()
    assert writer.wait(10) == -signal.SIGKILL
    return [json.loads(line) for line in said if line.endswith("\n")]


@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.long)])
@asynchronous
async def test_a_killed_writer_leaves_whole_datasets_and_nameless_parts(tmp_path: Path, rounds: int) -> None:
    chance = random.Random(5)
    said = [one for seed in range(rounds) for one in killed(tmp_path, seed, chance.uniform(0.0, 0.2))]
    assert len(said) >= rounds
    store = FilePayloads(tmp_path / "store")
    datasets, tables = over(store, tmp_path / "spill")
    for one in said:
        reference = reference_from_json(one["reference"])
        assert await rows_of(tables, reference, **OWNER) == table_of(one["seed"]).to_pylist()
        assert len((await datasets.manifest(reference, **OWNER)).parts) == PARTS
    named = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and path.parent.name != INCOMING]
    digests = set()
    for path in named:
        content = path.read_bytes()
        assert hashlib.sha256(content).hexdigest() == path.name
        digests.add(path.name)
    # A manifest is stored behind its parts, also by one who died before saying so.
    for path in named:
        if path.read_bytes()[:1] == b"{":
            assert {part.reference.sha256 for part in manifest_from(path.read_bytes()).parts} <= digests
