"""Tables that a child writes: to the shared place while it has room, else whole to the worker's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from noetl.tools.python.child.landing import Landing
from tests.support.arrow import numbers
from tests.support.small_disk import small_file_system

ROWS = 20_000
OFFSET = 4096
PLENTY = 10**9
TABLE = numbers(ROWS)


def once(during: Callable[[int], None] = lambda _: None) -> Any:
    """A source of rows that can be read only once."""

    def batches() -> Iterator[Any]:
        for number, batch in enumerate(TABLE.to_batches(max_chunksize=1000)):
            during(number)
            yield batch

    return pa.RecordBatchReader.from_batches(TABLE.schema, batches())


class Worker:
    """The folders of a worker, and what a child leaves in them."""

    def __init__(self, root: Path) -> None:
        self.private, self.shared = root / "private", root / "shared"
        self.private.mkdir()
        self.shared.mkdir()

    def landing(self, bytes_max: int = PLENTY) -> Landing:
        return Landing(str(self.private), (str(self.shared), "new.me.", OFFSET, bytes_max))

    def table(self, entry: dict[str, Any]) -> Any:
        folder, offset = (self.shared, OFFSET) if entry["is_shared"] else (self.private, 0)
        return ipc.open_stream((folder / entry["file"]).read_bytes()[offset:]).read_all()

    def files(self) -> list[Path]:
        folders = [folder for folder in (self.private, self.shared) if folder.exists()]
        return [path for folder in folders for path in folder.iterdir()]


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


def test_a_table_lands_in_the_shared_place_while_it_has_room(worker: Worker) -> None:
    landing = worker.landing()
    assert landing.without_tables({"rows": once()}) == {"rows": None}
    (entry,) = landing.landed
    assert (entry["is_shared"], entry["place"]) == (True, ["rows"])
    assert worker.table(entry).equals(TABLE)
    assert len(worker.files()) == 1


@pytest.mark.parametrize("bytes_max", [0, OFFSET, OFFSET + 1000, OFFSET + 200_000])
def test_what_is_more_than_there_is_room_for_lands_whole_in_the_folder(worker: Worker, bytes_max: int) -> None:
    landing = worker.landing(bytes_max)
    landing.without_tables(once())
    (entry,) = landing.landed
    assert entry["is_shared"] is False
    assert worker.table(entry).equals(TABLE)
    assert [path.parent for path in worker.files()] == [worker.private]


def test_the_room_is_for_all_tables_of_an_answer(worker: Worker) -> None:
    landing = worker.landing(OFFSET + 700_000)
    landing.without_tables({"a": once(), "b": once()})
    assert [entry["is_shared"] for entry in landing.landed] == [True, False]
    assert all(worker.table(entry).equals(TABLE) for entry in landing.landed)
    landing.drop()
    assert worker.files() == []


def test_a_shared_place_that_is_gone_is_done_without(worker: Worker) -> None:
    worker.shared.rmdir()
    landing = worker.landing()
    landing.without_tables(once())
    (entry,) = landing.landed
    assert entry["is_shared"] is False
    assert worker.table(entry).equals(TABLE)


def test_a_shared_file_that_goes_while_it_is_written_is_written_elsewhere(worker: Worker) -> None:
    def during(number: int) -> None:
        if number == 7:
            for path in worker.shared.iterdir():
                path.unlink()
            worker.shared.rmdir()

    landing = worker.landing()
    landing.without_tables(once(during))
    (entry,) = landing.landed
    assert entry["is_shared"] is False
    assert worker.table(entry).equals(TABLE)


@pytest.mark.parametrize("bytes_max", [PLENTY, OFFSET + 100_000])
def test_a_source_that_fails_leaves_nothing_behind(worker: Worker, bytes_max: int) -> None:
    def during(number: int) -> None:
        if number == 10:
            raise ValueError("no more rows")

    open_before = len(os.listdir("/proc/self/fd"))
    landing = worker.landing(bytes_max)
    with pytest.raises(ValueError, match="no more rows"):
        landing.without_tables(once(during))
    landing.drop()
    assert worker.files() == []
    assert landing.landed == []
    assert len(os.listdir("/proc/self/fd")) <= open_before


FULL = """
import asyncio, sys
from pathlib import Path
from pyarrow import ipc
from noetl.tools.python.child.landing import Landing
from tests.support.arrow import numbers, segments_in, tables_in

home, mounted = Path(sys.argv[1]), Path(sys.argv[2])
place = asyncio.run(tables_in(home, segments_in(mounted / "segments", budget_bytes=64 * 2**20)).landing_place())
assert place.bytes_max < 4 * 2**20, place.bytes_max
table = numbers(250_000)
# Somebody else may take what was free a moment ago.
landing = Landing(str(home), (str(place.folder), place.prefix, place.offset, 10**9))
landing.without_tables(table)
(entry,) = landing.landed
assert entry["is_shared"] is False
assert ipc.open_stream((home / entry["file"]).read_bytes()).read_all().equals(table)
assert not list(place.folder.glob("new.*"))
print("done")
"""


def test_a_shared_place_that_is_full_is_done_without(tmp_path: Path) -> None:
    home, mounted = tmp_path / "home", tmp_path / "mounted"
    home.mkdir()
    mounted.mkdir()
    words = (*small_file_system(mounted), sys.executable, "-c", FULL, str(home), str(mounted))
    told = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert told.stdout == "done\n", told.stderr
