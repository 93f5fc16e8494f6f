"""Results that are larger than the memory one would give to a worker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import empty_database
from tests.support.postgres import shared_server

MIB = 1024 * 1024
ROWS = """SELECT g AS id, g::int8 * 7 AS big, (g % 1000) / 100.0 AS amount, 'customer ' || g AS name,
    timestamptz '2024-01-01Z' + g * interval '1 s' AS at, date '2024-01-01' + g % 365 AS day, g * 0.5::float8 AS half,
    g % 2 = 0 AS flag, md5(g::text) AS hash, md5((g % 50)::text)::uuid AS tag FROM generate_series(1, {count}) AS g"""
# A few of them are as large as a batch may be.
WIDE = (
    "SELECT g, repeat('x', CASE WHEN g % 100 = 0 THEN 1000000 ELSE 1000 END) AS t FROM generate_series(1, {count}) AS g"
)


@pytest.fixture(scope="module")
def database() -> str:
    return empty_database().split("/")[3].split("?")[0]


def read(database: str, folder: Path, statement: str, *, seconds: float = 120) -> dict[str, Any]:
    address = shared_server().address
    command = [sys.executable, "-m", "tests.support.row_reader", str(address.socket_dir), str(address.port), database]
    done = subprocess.run(
        [*command, str(folder), statement], capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_many_rows_take_no_memory(database: str, tmp_path: Path) -> None:
    told = read(database, tmp_path, ROWS.format(count=100_000))
    assert told["reference"]["row_count"] == 100_000
    assert told["grown"] < 64 * MIB


def test_wide_rows_take_little_memory(database: str, tmp_path: Path) -> None:
    told = read(database, tmp_path, WIDE.format(count=20_000))
    assert told["reference"]["row_count"] == 20_000
    assert told["grown"] < 128 * MIB


@pytest.mark.long
def test_a_million_rows_take_no_more_memory_than_a_hundred_thousand(database: str, tmp_path: Path) -> None:
    told = read(database, tmp_path, ROWS.format(count=1_000_000), seconds=600)
    assert told["reference"]["row_count"] == 1_000_000
    assert told["grown"] < 64 * MIB
