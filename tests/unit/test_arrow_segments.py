"""Segments: what a reader believes, and who may use which bytes of a node's shared memory."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from noetl.adapters.arrow.codec import schema_digest
from noetl.adapters.arrow.opening.opened import TableContent
from noetl.adapters.arrow.rows import rows_of
from noetl.adapters.arrow.segments.attach import SegmentMiss, Wanted, attach
from noetl.adapters.arrow.segments.folder import SegmentFolder, SegmentRefused
from noetl.adapters.arrow.segments.header import HEADER_BYTES, packed, unpacked
from noetl.adapters.arrow.segments.owners import is_dead, own_token
from noetl.adapters.arrow.segments.shared import Segments, open_segments, payload_key
from noetl.adapters.arrow.segments.writer import Published, SegmentIdentity, SegmentWriter, has_no_writer
from noetl.core.reference import MEDIA_ARROW, Reference
from tests.support.arrow import NODE, OWNER, numbers, segments_in

SHA = "ab" * 32
KEY = payload_key(**OWNER, sha256=SHA)
TABLE = numbers(2_000)


def reference(sha256: str = SHA, **facts: Any) -> Reference:
    return Reference(
        kind="payload", uri="noetl://x", sha256=sha256, media_type=MEDIA_ARROW, bytes=1, store="file", **facts
    )


def identity(sha256: str = SHA, table: Any = TABLE) -> SegmentIdentity:
    return SegmentIdentity(
        key=payload_key(**OWNER, sha256=sha256),
        sha256=sha256,
        schema_digest=schema_digest(table.schema),
        row_count=table.num_rows,
    )


def published(
    folder: SegmentFolder, sha256: str = SHA, *, lease_seconds: float = 60.0, table: Any = TABLE
) -> Published:
    writer = SegmentWriter(folder)
    writer.begin(table.schema)
    for batch in table.to_batches():
        writer.write(batch)
    found = writer.publish(identity(sha256, table), lease_seconds=lease_seconds)
    assert found is not None, writer.refusal
    return found


def rows(content: TableContent) -> list[dict[str, object]]:
    return [row for batch in content.batches for row in rows_of(batch)]


def miss(folder: SegmentFolder, name: str, wanted: Wanted | None = None) -> str:
    with pytest.raises(SegmentMiss) as caught:
        attach(folder, name, wanted or Wanted(key=KEY, reference=reference()))
    return caught.value.reason


@pytest.fixture
def folder(tmp_path: Path) -> SegmentFolder:
    return segments_in(tmp_path / "segments").folder


# --- what a reader believes ------------------------------------------------------------------------------


def test_a_segment_is_read_as_it_was_written_and_without_a_copy(folder: SegmentFolder) -> None:
    name = published(folder).name
    before = pa.total_allocated_bytes()
    content = attach(folder, name, Wanted(key=KEY, reference=reference(row_count=2_000)))
    assert rows(content) == TABLE.to_pylist()
    assert content.file is not None
    assert content.file.offset % 64 == 0
    assert content.file.path.read_bytes()[content.file.offset :][: content.file.length].startswith(b"\xff\xff\xff\xff")
    assert pa.total_allocated_bytes() - before < 10_000


def test_files_and_folder_are_for_their_user_alone(folder: SegmentFolder) -> None:
    path = folder.root / published(folder).name
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.root.stat().st_mode & 0o777 == 0o700


def test_names_hold_owner_and_process_and_no_text_of_users(folder: SegmentFolder) -> None:
    name = published(folder).name
    key, owner, epoch = name.split(".")
    assert key == payload_key("acme", "sales", SHA)
    assert key != payload_key("other", "sales", SHA) != payload_key("acme", "other", SHA)
    assert payload_key("a", "bc", SHA) != payload_key("ab", "c", SHA)
    assert owner.split("-")[0] == str(os.getpid())
    assert epoch.isdigit()


def test_the_header_is_written_as_it_is_documented(folder: SegmentFolder) -> None:
    path = folder.root / published(folder).name
    content = path.read_bytes()
    assert content[:8] == b"NOETLIPC"
    assert int.from_bytes(content[8:12], "little") == 1
    assert int.from_bytes(content[12:16], "little") == HEADER_BYTES == 256
    assert int.from_bytes(content[16:24], "little") == len(content) - HEADER_BYTES
    assert int.from_bytes(content[24:32], "little") == TABLE.num_rows
    assert content[32:64].hex() == SHA
    assert content[64:96].hex() == schema_digest(TABLE.schema)
    assert content[112:128].hex() == KEY
    assert int.from_bytes(content[128:136], "little") > time.time() * 1_000_000
    assert int.from_bytes(content[144:148], "little") == os.getpid()
    assert not any(content[148:248])
    assert packed(unpacked(content[:HEADER_BYTES])) == content[:HEADER_BYTES]


def test_each_of_a_hundred_flipped_bits_is_a_miss(folder: SegmentFolder) -> None:
    path = folder.root / published(folder).name
    chance = random.Random(7)
    sound = path.read_bytes()
    places = [*chance.sample(range(HEADER_BYTES), 30), *chance.sample(range(HEADER_BYTES, len(sound)), 70)]
    reasons = set()
    for place in places:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        reasons.add(miss(folder, path.name))
    assert "digest" in reasons
    path.write_bytes(sound)
    attach(folder, path.name, Wanted(key=KEY, reference=reference()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content[:-1], "truncated"),
        (lambda content: content[:100], "truncated"),
        (lambda content: b"", "truncated"),
        (lambda content: b"X" + content[1:], "no_segment"),
        (lambda content: content[:8] + b"\2" + content[9:], "version"),
        (lambda content: bytes(len(content)), "no_segment"),
    ],
)
def test_what_is_no_whole_segment_is_a_miss(
    folder: SegmentFolder, change: Callable[[bytes], bytes], reason: str
) -> None:
    path = folder.root / published(folder).name
    path.write_bytes(change(path.read_bytes()))
    assert miss(folder, path.name) == reason


def test_a_segment_of_something_else_is_a_miss(folder: SegmentFolder) -> None:
    name = published(folder).name
    other = "cd" * 32
    wanted = Wanted(key=payload_key(**OWNER, sha256=other), reference=reference(other))
    assert miss(folder, name, wanted) == "stale"
    # Under the name of another payload, too.
    renamed = f"{wanted.key}.{name.partition('.')[2]}"
    (folder.root / name).rename(folder.root / renamed)
    assert miss(folder, renamed, wanted) == "stale"


def test_another_schema_or_number_of_rows_is_a_miss(folder: SegmentFolder) -> None:
    name = published(folder).name
    assert miss(folder, name, Wanted(key=KEY, reference=reference(schema_digest="00" * 32))) == "schema"
    assert miss(folder, name, Wanted(key=KEY, reference=reference(row_count=7))) == "stale"


def test_a_lease_that_ended_is_a_miss(folder: SegmentFolder) -> None:
    assert miss(folder, published(folder, lease_seconds=-1).name) == "expired"


@pytest.mark.parametrize("name", ["../../etc/passwd", "lock", "", f"{KEY}.1-1-1.1", f"{KEY}.x/../y"])
def test_a_name_that_leads_nowhere_is_a_miss(folder: SegmentFolder, name: str) -> None:
    assert miss(folder, name) in {"stale", "missing"}


def test_a_link_is_not_followed(folder: SegmentFolder, tmp_path: Path) -> None:
    name = published(folder).name
    (folder.root / name).rename(tmp_path / "elsewhere")
    (folder.root / name).symlink_to(tmp_path / "elsewhere")
    assert miss(folder, name) == "missing"


@pytest.mark.parametrize(
    ("hint", "counted"),
    [
        ({"node": "another-node"}, "foreign"),
        ({"name": f"{KEY}.1-1-1.1"}, "missing"),
        ({"name": 7}, "no_segment"),
    ],
)
def test_a_hint_that_helps_nobody_is_counted(tmp_path: Path, hint: dict[str, object], counted: str) -> None:
    segments = segments_in(tmp_path / "segments")
    found = replace(reference(), ipc={SHA: {"node": NODE, "name": "x", "until": "…"} | hint})
    assert segments.find(found, KEY) is None
    assert segments.counters.read_misses == {counted: 1}
    assert (segments.counters.read_attempts, segments.counters.read_hits) == (1, 0)


def test_a_segment_is_found_by_its_hint_and_without_one(tmp_path: Path) -> None:
    segments = segments_in(tmp_path / "segments")
    hint = segments.hint(SHA, published(segments.folder))
    assert segments.find(replace(reference(), ipc=hint), KEY) is not None
    assert segments.find(reference(), KEY) is not None
    assert segments.counters.hit_ratio() == 1.0


# --- who may use which bytes -----------------------------------------------------------------------------


def test_the_budget_is_kept_and_what_is_over_makes_room(tmp_path: Path) -> None:
    size = published(segments_in(tmp_path / "other").folder).size
    folder = segments_in(tmp_path / "segments", budget_bytes=3 * size).folder
    for number in range(3):
        published(folder, f"{number:02}" * 32)
    writer = SegmentWriter(folder)
    writer.begin(TABLE.schema)
    writer.write(TABLE.to_batches()[0])
    assert writer.publish(identity("99" * 32), lease_seconds=1) is None
    assert writer.refusal == "budget"
    assert folder.bytes_in_use() == 3 * size
    assert len(list(folder.root.iterdir())) == 4  # three segments and the lock


def test_what_ended_makes_room_for_something_new(tmp_path: Path) -> None:
    size = published(segments_in(tmp_path / "other").folder).size
    folder = segments_in(tmp_path / "segments", budget_bytes=2 * size).folder
    for number in range(20):
        published(folder, f"{number:02}" * 32, lease_seconds=-1)
    assert folder.bytes_in_use() <= 2 * size


def test_the_grace_begins_when_the_lease_ends(tmp_path: Path) -> None:
    patient = segments_in(tmp_path / "segments", grace_seconds=60.0).folder
    name = published(patient, lease_seconds=-1).name
    assert patient.sweep() == 0
    assert segments_in(tmp_path / "segments", grace_seconds=0.0).folder.sweep() == 1
    assert not (patient.root / name).exists()


def test_pages_are_used_again_and_never_under_a_reader(tmp_path: Path) -> None:
    folder = segments_in(tmp_path / "segments", budget_bytes=1024**3).folder
    path = folder.root / published(folder, lease_seconds=1.0).name
    content = attach(folder, path.name, Wanted(key=KEY, reference=reference()))
    _wait(1.1)
    assert folder.sweep() == 0, "somebody reads it"
    del content
    inode = path.stat().st_ino
    assert folder.sweep() == 1
    (free,) = folder.root.glob("free.*")
    assert free.stat().st_ino == inode
    # A writer only takes what fits.
    descriptor_path, descriptor = folder.create(free.stat().st_size)
    assert os.fstat(descriptor).st_ino == inode
    assert os.pread(descriptor, 8, 0) == bytes(8), "the old header is gone before anything new is written"
    os.close(descriptor)
    assert descriptor_path.name.startswith("new.")


def test_pages_that_nobody_needs_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = segments_in(tmp_path / "segments", budget_bytes=1024**3).folder
    published(folder, lease_seconds=-1)
    assert folder.sweep() == 1
    assert folder.sweep() == 0
    assert len(list(folder.root.glob("free.*"))) == 1
    monkeypatch.setattr("noetl.adapters.arrow.segments.folder.POOL_SECONDS", -1)
    assert folder.sweep() == 1
    assert folder.bytes_in_use() == 0


def test_a_process_removes_what_is_its_own_at_its_end(tmp_path: Path) -> None:
    root = tmp_path / "segments"
    with producer(root, count=2) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        folder = segments_in(root).folder
        mine = published(folder).name
        folder.remove_own()
        names = [path.name for path in root.iterdir() if path.name != "lock"]
        assert len(names) == 2
        assert mine not in names


def test_what_a_home_left_that_is_used_no_more_is_removed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noetl.adapters.arrow.segments.places.SHARED_MEMORY", tmp_path)
    left, living = tmp_path / f"noetl-{os.getuid()}-left", tmp_path / f"noetl-{os.getuid()}-living"
    with producer(left, count=1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
    name = published(segments_in(living).folder, lease_seconds=-1).name
    empty = segments_in(tmp_path / f"noetl-{os.getuid()}-empty").folder
    for unused in (left, living, empty.root):
        os.utime(unused, (0, 0))
    young = segments_in(tmp_path / f"noetl-{os.getuid()}-young").folder
    opened = open_segments(node_id=NODE, home=tmp_path / "home", budget_bytes=1024**2, grace_seconds=30)
    assert opened is not None
    assert not left.exists()
    assert (living / name).exists(), "its owner lives and decides by itself"
    assert not empty.root.exists()
    assert young.root.exists(), "somebody is about to write there"
    published(empty)  # the folder comes back when somebody needs it
    opened.folder.remove_own()
    assert not opened.folder.root.exists()


def test_a_file_that_was_forgotten_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = segments_in(tmp_path / "segments").folder
    folder.new_path().write_bytes(b"begun and never handed over")
    assert folder.sweep() == 0
    monkeypatch.setattr("noetl.adapters.arrow.segments.folder.ABANDONED_SECONDS", -1)
    monkeypatch.setattr("noetl.adapters.arrow.segments.folder.POOL_SECONDS", -1)
    while folder.sweep():
        pass
    assert folder.bytes_in_use() == 0


def test_a_reader_that_comes_too_late_finds_nothing(tmp_path: Path) -> None:
    folder = segments_in(tmp_path / "segments").folder
    name = published(folder).name
    other = "cd" * 32
    # The file under the old name was given to another payload meanwhile.
    new = published(folder, other).name
    (folder.root / new).replace(folder.root / name)
    assert miss(folder, name) == "stale"


def test_an_open_table_outlives_the_removal_of_its_file(folder: SegmentFolder) -> None:
    path = folder.root / published(folder).name
    content = attach(folder, path.name, Wanted(key=KEY, reference=reference()))
    path.unlink()
    assert rows(content) == TABLE.to_pylist()


def test_a_file_that_somebody_still_writes_is_not_adopted(tmp_path: Path) -> None:
    path = tmp_path / "landed"
    with path.open("wb") as file:
        file.write(b"x")
        assert not has_no_writer(path)
    assert has_no_writer(path)


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "open"
    root.mkdir(mode=0o777)
    root.chmod(0o777)
    with pytest.raises(SegmentRefused):
        segments_in(root)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SegmentRefused):
        segments_in(tmp_path / "link")


def test_a_budget_of_nothing_switches_the_tier_off(tmp_path: Path) -> None:
    assert open_segments(node_id=NODE, home=tmp_path, budget_bytes=0, grace_seconds=30) is None


def test_without_a_place_for_it_there_is_no_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "file"
    home.write_text("not a folder")
    monkeypatch.setattr("noetl.adapters.arrow.segments.places.SHARED_MEMORY", tmp_path / "nowhere")
    assert open_segments(node_id=NODE, home=home, budget_bytes=1024**2, grace_seconds=30) is None
    opened = open_segments(node_id=NODE, home=tmp_path, budget_bytes=1024**2, grace_seconds=30)
    assert opened is not None
    assert opened.folder.root == tmp_path / "segments"


def test_a_full_file_system_only_means_that_there_is_no_segment(
    folder: SegmentFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    writer = SegmentWriter(folder)
    writer.begin(TABLE.schema)
    writer.write(TABLE.to_batches()[0])
    assert writer.publish(identity(), lease_seconds=1) is None
    assert writer.refusal == "system"
    assert list(folder.root.glob("new.*")) == []


# --- processes that die ----------------------------------------------------------------------------------

CHILD = """
import sys
from pathlib import Path
import pyarrow as pa
from noetl.adapters.arrow.codec import schema_digest
from noetl.adapters.arrow.segments.folder import SegmentFolder
from noetl.adapters.arrow.segments.shared import payload_key
from noetl.adapters.arrow.segments.writer import SegmentIdentity, SegmentWriter

root, budget, lease, count, rows = sys.argv[1:]
folder = SegmentFolder(Path(root), budget_bytes=int(budget), grace_seconds=0.0)
batch = pa.record_batch({"id": pa.array(range(int(rows)), pa.int64()), "name": [f"name {n}" for n in range(int(rows))]})
print("ready", flush=True)
number = 0
while True:
    sha256 = f"{number % 256:02x}" * 32
    writer = SegmentWriter(folder)
    writer.begin(batch.schema)
    writer.write(batch)
    key = payload_key("acme", "sales", sha256)
    digest = schema_digest(batch.schema)
    identity = SegmentIdentity(key=key, sha256=sha256, schema_digest=digest, row_count=batch.num_rows)
    writer.publish(identity, lease_seconds=float(lease))
    number += 1
    if number == int(count):
        print("done", flush=True)
        sys.stdin.read()
"""


@contextmanager
def producer(
    root: Path, *, budget_bytes: int = 1024**3, lease_seconds: float = 600, count: int = -1
) -> Iterator[subprocess.Popen[str]]:
    """A process that publishes segments, so many or for ever."""
    facts = map(str, (root, budget_bytes, lease_seconds, count, TABLE.num_rows))
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, *facts],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_process_knows_which_processes_live() -> None:
    assert not is_dead(own_token())
    pid, started, namespace = own_token().split("-")
    assert is_dead(f"{pid}-{int(started) + 1}-{namespace}"), "the number belongs to another process now"
    assert not is_dead(f"{pid}-{int(started) + 1}-{int(namespace) + 1}"), "of another namespace nothing is known"
    assert is_dead("what is this")
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(f"{process.pid}-{_start_of(process.pid)}-{namespace}"), "it is dead before anybody has waited for it"
    process.communicate()


def _start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_what_a_killed_process_leaves_is_swept_and_never_read_wrong(tmp_path: Path) -> None:
    root = tmp_path / "segments"
    chance = random.Random(11)
    for _ in range(3):
        with producer(root) as process:
            _wait(chance.uniform(0.01, 0.15))
            process.send_signal(signal.SIGKILL)
            process.wait()
        # Whatever moment it was: what has a name is whole.
        folder = segments_in(root).folder
        for path in root.iterdir():
            if path.name[0] in "0123456789abcdef" and not path.name.startswith("free"):
                sha256 = unpacked(path.read_bytes()).sha256.hex()
                wanted = Wanted(key=payload_key(**OWNER, sha256=sha256), reference=reference(sha256))
                assert len(rows(attach(folder, path.name, wanted))) == TABLE.num_rows
        folder.sweep()
        assert [path.name for path in root.iterdir() if not path.name.startswith(("free.", "lock"))] == []


def test_a_reader_is_not_hurt_when_owner_and_file_go(tmp_path: Path) -> None:
    root = tmp_path / "segments"
    with producer(root, count=1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        folder = segments_in(root).folder
        sha256 = "00" * 32
        wanted = Wanted(key=payload_key(**OWNER, sha256=sha256), reference=reference(sha256))
        (name,) = folder.find(wanted.key)
        content = attach(folder, name, wanted)
        process.kill()
        process.wait()
    assert folder.sweep() == 0, "its memory would not come back, so it stays on the account"
    for path in root.iterdir():
        path.unlink()
    assert rows(content) == TABLE.to_pylist()


def test_several_processes_share_one_budget(tmp_path: Path) -> None:
    size = published(segments_in(tmp_path / "other").folder).size
    root = tmp_path / "segments"
    budget = 10 * size
    folder = segments_in(root, budget_bytes=budget).folder
    with producer(root, budget_bytes=budget, lease_seconds=0.01) as one, producer(root, budget_bytes=budget) as two:
        peak = 0
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            peak = max(peak, folder.bytes_in_use())
        one.kill()
        one.wait()
        two.kill()
        two.wait()
    assert 0 < peak <= budget
    folder.sweep()
    assert folder.bytes_in_use() <= budget // 4


def test_a_holder_of_the_lock_that_does_not_let_go_stops_nobody(tmp_path: Path) -> None:
    segments: Segments = segments_in(tmp_path / "segments")
    with segments.folder._accounts():
        writer = SegmentWriter(segments.folder)
        writer.begin(TABLE.schema)
        writer.write(TABLE.to_batches()[0])
        assert segments.publish(writer, identity()) is None
        assert segments.folder.sweep() == 0
    assert segments.counters.admission_failures == {"busy": 1}


def _wait(seconds: float) -> None:
    """For a moment of another process, or the end of a lease: nothing here can be driven."""
    time.sleep(seconds)
