"""Bodies that are larger than the memory of the process that asks for them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.standin import standin_process

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def standin() -> Iterator[str]:
    with standin_process() as address:
        yield address


def read(address: str, folder: Path, *, size: int, kind: str, seconds: float = 120) -> dict[str, Any]:
    """What a process with a gibibyte of address space tells about a body of so many bytes."""
    url = f"{address}/api/v1/large?bytes={size}&format={kind}"
    command = [sys.executable, "-m", "tests.support.body_reader", url, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", ["octets", "text"])
def test_a_large_body_takes_no_memory(standin: str, tmp_path: Path, kind: str) -> None:
    told = read(standin, tmp_path, size=200 * MIB, kind=kind)
    assert told["bytes"] == 200 * MIB
    assert told["grown"] < 32 * MIB


def test_large_json_takes_less_memory_than_it_is_long(standin: str, tmp_path: Path) -> None:
    told = read(standin, tmp_path, size=100 * MIB, kind="json")
    assert told["bytes"] >= 100 * MIB
    assert told["reference"]["index"]
    assert told["grown"] < 32 * MIB


@pytest.mark.long
def test_five_gigabytes_pass_through_one(standin: str, tmp_path: Path) -> None:
    told = read(standin, tmp_path, size=5 * 1024 * MIB, kind="octets", seconds=900)
    assert told["bytes"] == 5 * 1024 * MIB
    assert told["grown"] < 32 * MIB


@pytest.mark.long
def test_half_a_gigabyte_of_json_passes_through_one(standin: str, tmp_path: Path) -> None:
    told = read(standin, tmp_path, size=500 * MIB, kind="json", seconds=900)
    assert told["bytes"] >= 500 * MIB
    assert told["grown"] < 64 * MIB
