"""The datasets port over every kind of store: what was kept is there whole, as files and as rows, or not at all."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest

from noetl.adapters.arrow.datasets import files as part_files
from noetl.core.dataset import MEDIA_DATASET, MEDIA_PARQUET, manifest_from
from noetl.core.errors import PayloadCorrupt, PayloadMissing, StoreUnavailable, ToolFailed
from noetl.ports.data.datasets import LandedDataset, LandedPart
from tests.support.aio import asynchronous
from tests.support.datasets import landed, over, rows_of
from tests.support.server import Place, place
from tests.support.stores import Subject, opened

OpenStore = Callable[[], AbstractAsyncContextManager[Subject]]
KINDS = ["file", "sealed file", "memory", "sealed memory", "s3", "sealed s3", "cached", "http"]
DAYS = ["2026-01-01", "größe/x=1%", None, "日本 :?*", "."]
ROWS = 5_000
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "day": pa.array([DAYS[number % len(DAYS)] for number in range(ROWS)], pa.string()),
        "name": [None if number % 7 == 0 else f"name {number}" for number in range(ROWS)],
        "tags": pa.array([[f"t{number % 3}"] * (number % 4) for number in range(ROWS)], pa.list_(pa.string())),
        "n": pa.array([number % 11 for number in range(ROWS)], pa.int32()),
    }
)


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[], Place]]:
    """Started when the first test wants it."""
    with place() as found:

        def started() -> Place:
            if not found.url:
                found.start_server()
            return found

        yield started


@pytest.fixture(params=KINDS)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Callable[[], Place]
) -> OpenStore:
    return lambda: opened(request.param, tmp_path / "store", monkeypatch, server)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Callable[[], Place]) -> OpenStore:
    return lambda: opened("file", tmp_path / "store", monkeypatch, server)


def by_id(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: str(row["id"]).zfill(9))


# --- kept, and back --------------------------------------------------------------------------------------


@asynchronous
async def test_a_dataset_comes_back_as_rows_and_as_files(store: OpenStore, tmp_path: Path) -> None:
    async with store() as subject:
        datasets, tables = over(subject.store, tmp_path / "spill")
        job = landed(tmp_path, TABLE, rows_per_file=400, rows_per_group=100, partition_by=["day"])
        reference = await datasets.keep(job, **subject.owner)
        assert (reference.media_type, reference.row_count) == (MEDIA_DATASET, ROWS)
        assert not any(part.path.exists() for part in job.parts)
        manifest = await datasets.manifest(reference, **subject.owner)
        assert len(manifest.parts) == len(job.parts)
        assert {part.reference.media_type for part in manifest.parts} == {MEDIA_PARQUET}

        rows = await rows_of(tables, reference, **subject.owner)
        assert by_id(rows) == TABLE.to_pylist()
        local = await datasets.laid_out(reference, tmp_path / "laid", **subject.owner)
        found = pds.dataset(
            local.root,
            schema=TABLE.schema,
            partitioning=pds.partitioning(flavor="hive", schema=pa.schema([("day", pa.string())])),
        )
        assert by_id(found.to_table().to_pylist()) == TABLE.to_pylist()


@asynchronous
async def test_some_rows_and_some_columns(store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_files, "TABLE_WHOLE_BYTES_MAX", 3_000)  # some parts are fetched into files
    async with store() as subject:
        datasets, tables = over(subject.store, tmp_path / "spill")
        table = TABLE.drop_columns(["day"])
        reference = await datasets.keep(
            landed(tmp_path, table, rows_per_file=1_300, rows_per_group=300), **subject.owner
        )
        plain = table.to_pylist()
        found = await tables.open(reference, **subject.owner)
        for first, count in (
            (0, 10),
            (1_299, 2),
            (1_250, 2_000),
            (4_999, 9),
            (5_000, 1),
            (7, 0),
            (2_600, 1),
            (2_601, 300),
        ):
            assert await found.looked(found.rows, first, count) == plain[first : first + count]
        names = ["n", "id"]
        some = await found.looked(lambda: list(found.batches(names, first=1_200, count=900)))
        assert [row for batch in some for row in batch.to_pylist()] == [
            {name: row[name] for name in names} for row in plain[1_200:2_100]
        ]
        assert {tuple(batch.schema.names) for batch in some} == {("n", "id")}
        file = await found.looked(found.mapped)
        with pa.memory_map(str(file.path)) as mapped:
            mapped.seek(file.offset)
            assert pa.ipc.open_stream(mapped.read(file.length)).read_all().to_pylist() == plain
        found.close()


@asynchronous
async def test_the_same_rows_are_the_same_dataset(store: OpenStore, tmp_path: Path) -> None:
    async with store() as subject:
        datasets, _ = over(subject.store, tmp_path / "spill")
        first = await datasets.keep(
            landed(tmp_path, TABLE, rows_per_file=900, partition_by=["day", "n"]), **subject.owner
        )
        before = sorted(await subject.kept())
        again = landed(tmp_path, TABLE, rows_per_file=900, partition_by=["day", "n"])
        shuffled = random.Random(7).sample(list(again.parts), len(again.parts))
        other = LandedDataset(parts=shuffled, arrow_schema=again.arrow_schema, partition_by=again.partition_by)
        assert (await datasets.keep(other, **subject.owner)).sha256 == first.sha256
        assert [name for name in sorted(await subject.kept()) if not name.endswith(".renewed")] == [
            name for name in before if not name.endswith(".renewed")
        ]


@asynchronous
async def test_parts_stand_in_the_order_of_their_numbers(files: OpenStore, tmp_path: Path) -> None:
    async with files() as subject:
        datasets, tables = over(subject.store, tmp_path / "spill")
        table = pa.table({"id": range(12)})
        job = landed(tmp_path, table, rows_per_file=1)
        parts = []
        for number, part in enumerate(job.parts):
            path = part.path.with_name(f"part-{number}-x.parquet")  # as text, 10 stands before 2
            part.path.rename(path)
            parts.append(LandedPart(path=path, row_count=1))
        given = LandedDataset(parts=parts[::-1], arrow_schema=job.arrow_schema)
        reference = await datasets.keep(given, **subject.owner)
        assert [row["id"] for row in await rows_of(tables, reference, **subject.owner)] == list(range(12))


@asynchronous
async def test_a_dataset_without_parts_and_one_without_rows(store: OpenStore, tmp_path: Path) -> None:
    async with store() as subject:
        datasets, tables = over(subject.store, tmp_path / "spill")
        schema = TABLE.schema.serialize().to_pybytes()
        nothing = LandedDataset(parts=[], arrow_schema=schema, partition_by=("day",))
        for number, job in enumerate((nothing, landed(tmp_path, TABLE.slice(0, 0)))):
            reference = await datasets.keep(job, **subject.owner)
            assert (reference.row_count, reference.plain_bytes) == (0, 0) if job is nothing else True
            found = await tables.open(reference, **subject.owner)
            assert found.schema.equals(TABLE.schema)
            assert await found.looked(found.rows, 0, 10) == []
            assert (await found.looked(found.mapped)).length > 0
            local = await datasets.laid_out(reference, tmp_path / f"empty-{number}", **subject.owner)
            assert local.root.is_dir()


# --- without copies --------------------------------------------------------------------------------------


@asynchronous
async def test_files_become_payloads_and_links_without_a_copy(files: OpenStore, tmp_path: Path) -> None:
    async with files() as subject:
        datasets, tables = over(subject.store, tmp_path / "spill")
        job = landed(tmp_path, TABLE, rows_per_file=1_000)
        inodes = sorted(part.path.stat().st_ino for part in job.parts)
        reference = await datasets.keep(job, **subject.owner)
        local = await datasets.laid_out(reference, tmp_path / "laid", **subject.owner)
        laid = sorted(local.root.glob("part-*.parquet"))
        assert sorted(path.stat().st_ino for path in laid) == inodes
        assert [path.name[:11] for path in laid] == [f"part-{number:05d}-" for number in range(5)]
        # Whoever has the link cannot write to the store by mistake.
        assert all(path.stat().st_mode & 0o222 == 0 for path in laid)
        for path in laid:
            path.unlink()
        assert len(await rows_of(tables, reference, **subject.owner)) == ROWS


@asynchronous
async def test_a_file_with_another_name_is_copied(files: OpenStore, tmp_path: Path) -> None:
    """It could be changed under that name."""
    async with files() as subject:
        datasets, tables = over(subject.store, tmp_path / "spill")
        job = landed(tmp_path, TABLE)
        other = tmp_path / "other"
        other.hardlink_to(job.parts[0].path)
        reference = await datasets.keep(job, **subject.owner)
        other.write_bytes(b"changed")
        assert len(await rows_of(tables, reference, **subject.owner)) == ROWS


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no other file system here")
@asynchronous
async def test_a_file_of_another_device_is_copied(files: OpenStore, tmp_path: Path) -> None:
    async with files() as subject:
        datasets, tables = over(subject.store, tmp_path / "spill")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            job = landed(Path(folder), TABLE, rows_per_file=1_000)
            reference = await datasets.keep(job, **subject.owner)
            assert not any(part.path.exists() for part in job.parts)
        assert len(await rows_of(tables, reference, **subject.owner)) == ROWS


@asynchronous
async def test_links_lead_to_another_device(files: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_device(*_: Any, **__: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    async with files() as subject:
        datasets, _ = over(subject.store, tmp_path / "spill")
        reference = await datasets.keep(landed(tmp_path, TABLE), **subject.owner)
        monkeypatch.setattr("noetl.adapters.arrow.datasets.layout.os.link", other_device)
        local = await datasets.laid_out(reference, tmp_path / "laid", **subject.owner)
        (path,) = local.root.iterdir()
        assert path.is_symlink()
        assert pq.read_table(path).num_rows == ROWS


# --- what is no dataset ----------------------------------------------------------------------------------


def _refusals(folder: Path) -> dict[str, LandedDataset]:
    good = landed(folder, TABLE, rows_per_file=2_000, partition_by=["day"])
    schema, parts = good.arrow_schema, list(good.parts)
    counted = LandedPart(path=parts[0].path, row_count=7, partition=parts[0].partition)
    gone = LandedPart(path=folder / "nothing.parquet", row_count=1, partition=parts[0].partition)
    text = folder / "text.parquet"
    text.write_text("no parquet")
    link = folder / "link.parquet"
    link.symlink_to(parts[0].path)
    nowhere = LandedPart(path=parts[0].path, row_count=parts[0].row_count)
    wide = TABLE.schema.append(pa.field("more", pa.int32())).serialize().to_pybytes()
    other = pa.schema([*[f for f in TABLE.schema if f.name != "n"], pa.field("n", pa.list_(pa.int8()))])
    numbered = pa.schema([pa.field("day", pa.int32()), *[f for f in TABLE.schema if f.name != "day"]])

    def of(
        given: list[LandedPart], columns: bytes = schema, by: tuple[str, ...] = ("day",), root: Path | None = None
    ) -> LandedDataset:
        return LandedDataset(parts=given, arrow_schema=columns, partition_by=by, root=root)

    return {
        "the job counted 7": of([counted, *parts[1:]]),
        "not there any more": of([*parts, gone]),
        "no readable Parquet": of([*parts, LandedPart(path=text, row_count=1, partition=parts[0].partition)]),
        "no plain file": of([LandedPart(path=link, row_count=parts[0].row_count, partition=parts[0].partition)]),
        "where in the partitioning": of([nowhere]),
        "no column 'more'": of(parts, wide),
        "which is no list": of(parts, other.serialize().to_pybytes()),
        "is no int32": of(parts, numbered.serialize().to_pybytes()),
        "schema cannot be read": of(parts, b"xx"),
        "lists a file twice": of([parts[0], *parts]),
        "not in the folder of its job": of(parts, root=folder / "another"),
        "partitioned by month": of(parts, by=("month",)),
    }


@asynchronous
async def test_what_contradicts_its_files_is_refused_and_nothing_is_stored(files: OpenStore, tmp_path: Path) -> None:
    async with files() as subject:
        datasets, _ = over(subject.store, tmp_path / "spill")
        for message, job in _refusals(tmp_path).items():
            with pytest.raises(ToolFailed, match=message):
                await datasets.keep(job, **subject.owner)
            assert await subject.kept() == [], message


@asynchronous
async def test_a_secret_in_a_part_is_found_wherever_it_stands(files: OpenStore, tmp_path: Path) -> None:
    secret = "tops3cret!"
    cases = {
        "column 'a'": pa.table({"a": ["x"] * 9 + [f"see {secret}"], "b": range(10)}),
        "column 'deep'": pa.table({"deep": [[{"m": {"k": secret}}]]}),
        "column 'raw'": pa.table({"raw": [None, secret.encode()]}),
        "column 'word'": pa.table({"word": pa.array(["x", secret]).dictionary_encode()}),
        "names and remarks": pa.table({secret: [1]}),
        "column 'day'": pa.table({"id": [1], "day": [secret]}),
    }
    async with files() as subject:
        datasets, _ = over(subject.store, tmp_path / "spill")

        def finds(content: bytes) -> bool:
            return secret.encode() in content

        for where, table in cases.items():
            job = landed(tmp_path, table, partition_by=["day"] if "day" in table.column_names else [])
            with pytest.raises(ToolFailed, match=where) as caught:
                await datasets.keep(job, finds=finds, **subject.owner)
            assert caught.value.failure.code == "SECRET_IN_BODY"
            assert secret not in caught.value.failure.message
            assert await subject.kept() == []
        # Two values beside each other are no secret.
        halves = landed(tmp_path, pa.table({"a": [secret[:5], secret[5:]]}))
        assert (await datasets.keep(halves, finds=finds, **subject.owner)).row_count == 2


# --- when something goes wrong ---------------------------------------------------------------------------


@asynchronous
async def test_a_store_that_fails_on_the_way_names_nothing(
    files: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between parts and manifest: the parts may stay, no manifest is there, and the next try succeeds."""
    async with files() as subject:
        datasets, tables = over(subject.store, tmp_path / "spill")
        job = landed(tmp_path, TABLE, rows_per_file=1_000)

        async def dies(*_: Any, **__: Any) -> Any:
            raise ConnectionError("the process ended here")

        with monkeypatch.context() as patch:
            patch.setattr(subject.store, "put_stream", dies)
            with pytest.raises(ConnectionError):
                await datasets.keep(job, **subject.owner)
        stored = [tmp_path / "store" / name for name in await subject.kept()]
        assert len(stored) == 5
        assert all(path.read_bytes().startswith(b"PAR1") for path in stored)
        reference = await datasets.keep(landed(tmp_path, TABLE, rows_per_file=1_000), **subject.owner)
        assert len(await subject.kept()) == 6
        assert len(await rows_of(tables, reference, **subject.owner)) == ROWS


@asynchronous
async def test_a_dataset_is_handed_over_again_when_the_store_was_away(
    files: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its files are the store's by then."""
    async with files() as subject:
        datasets, tables = over(subject.store, tmp_path / "spill")
        job = landed(tmp_path, TABLE, rows_per_file=1_000)
        monkeypatch.setattr("noetl.adapters.arrow.datasets.datasets.AWAY_SECONDS", ())

        async def away(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("not now")

        with monkeypatch.context() as patch:
            patch.setattr(subject.store, "put_stream", away)
            with pytest.raises(StoreUnavailable):
                await datasets.keep(job, **subject.owner)
        assert not any(part.path.exists() for part in job.parts)
        reference = await datasets.keep(job, **subject.owner)
        assert len(await rows_of(tables, reference, **subject.owner)) == ROWS
        # Kept to the end, it is forgotten.
        with pytest.raises(ToolFailed, match="not there any more"):
            await datasets.keep(job, **subject.owner)


@asynchronous
async def test_a_file_that_could_not_be_stored_is_still_there(
    files: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with files() as subject:
        job = landed(tmp_path, TABLE)
        (part,) = job.parts
        content = part.path.read_bytes()

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("noetl.adapters.objects.adopting.os.fsync", full)
        monkeypatch.setattr("noetl.adapters.arrow.datasets.datasets.AWAY_SECONDS", (0.0,))
        datasets, _ = over(subject.store, tmp_path / "spill")
        with pytest.raises(Exception, match="no room"):
            await datasets.keep(job, **subject.owner)
        assert part.path.read_bytes() == content
        assert await subject.kept() == []


@asynchronous
async def test_a_part_that_is_gone_is_missing(store: OpenStore, tmp_path: Path) -> None:
    async with store() as subject:
        if subject.durable is None:
            return
        datasets, tables = over(subject.durable, tmp_path / "spill")
        reference = await datasets.keep(landed(tmp_path, TABLE, rows_per_file=1_000), **subject.owner)
        manifest = await datasets.manifest(reference, **subject.owner)
        lost = manifest.parts[3].reference
        await subject.durable.delete(lost.sha256, renewed_before=float("inf"), **subject.owner)
        found = await tables.open(reference, **subject.owner)
        assert len(await found.looked(found.rows, 0, 3_000)) == 3_000
        with pytest.raises(PayloadMissing, match=lost.sha256):
            await found.looked(found.rows, 2_999, 2)
        with pytest.raises(PayloadMissing):
            await datasets.laid_out(reference, tmp_path / "laid", **subject.owner)


@pytest.mark.parametrize(("kind", "flips"), [("file", 100), ("sealed file", 25), ("memory", 25), ("s3", 25)])
@asynchronous
async def test_no_flipped_byte_becomes_a_row(
    kind: str, flips: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Callable[[], Place]
) -> None:
    chance = random.Random(11)
    async with opened(kind, tmp_path / "store", monkeypatch, server) as subject:
        datasets, _ = over(subject.store, tmp_path / "spill")
        reference = await datasets.keep(landed(tmp_path, TABLE, rows_per_group=500), **subject.owner)
        (part,) = (await datasets.manifest(reference, **subject.owner)).parts
        size = part.reference.bytes
        for number in range(flips):
            place = chance.randrange(size)

            def flipped(content: bytes, at: int = place, bit: int = 1 << number % 8) -> bytes:
                return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]

            await subject.change(part.reference.sha256, flipped)
            _, tables = over(subject.store, tmp_path / "spill")
            found = await tables.open(reference, **subject.owner)
            with pytest.raises(PayloadCorrupt):
                await found.looked(found.rows, ROWS - 1, 1)
            with pytest.raises(PayloadCorrupt):
                await datasets.laid_out(reference, tmp_path / f"laid-{number}", **subject.owner)
            await subject.change(part.reference.sha256, flipped)
        assert len(await rows_of(over(subject.store, tmp_path / "spill")[1], reference, **subject.owner)) == ROWS


@asynchronous
async def test_a_damaged_manifest_is_refused(store: OpenStore, tmp_path: Path) -> None:
    async with store() as subject:
        datasets, _ = over(subject.store, tmp_path / "spill")
        reference = await datasets.keep(landed(tmp_path, TABLE), **subject.owner)
        if subject.cache is not None:
            return  # a damaged entry of a cache is fetched again
        await subject.change(
            reference.sha256, lambda content: content.replace(b"5", b"6") if b"{" in content else content[:-3] + b"abc"
        )
        other, tables = over(subject.store, tmp_path / "spill")
        with pytest.raises(PayloadCorrupt):
            await tables.open(reference, **subject.owner)
        with pytest.raises(PayloadCorrupt):
            await other.manifest(reference, **subject.owner)


@asynchronous
async def test_another_owner_finds_nothing(store: OpenStore, tmp_path: Path) -> None:
    async with store() as subject:
        datasets, tables = over(subject.store, tmp_path / "spill")
        reference = await datasets.keep(landed(tmp_path, TABLE), **subject.owner)
        stranger = {**subject.owner, "organization_id": "others"}
        with pytest.raises(PayloadMissing):
            await tables.open(reference, **stranger)
        with pytest.raises(PayloadMissing):
            await over(subject.store, tmp_path / "spill")[0].laid_out(reference, tmp_path / "laid", **stranger)


@asynchronous
async def test_many_readers_share_what_is_open(files: OpenStore, tmp_path: Path) -> None:
    async with files() as subject:
        datasets, tables = over(subject.store, tmp_path / "spill")
        table = TABLE.drop_columns(["day"])
        reference = await datasets.keep(landed(tmp_path, table, rows_per_file=700, rows_per_group=90), **subject.owner)
        plain = table.to_pylist()
        chance = random.Random(3)

        async def look() -> None:
            found = await tables.open(reference, **subject.owner)
            first = chance.randrange(ROWS)
            for _ in range(20):
                count = chance.randrange(200)
                assert await found.looked(found.rows, first, count) == plain[first : first + count]
                first = (first + count) % ROWS if chance.random() < 0.8 else chance.randrange(ROWS)
            found.close()

        await asyncio.gather(*(look() for _ in range(8)))


@asynchronous
async def test_reading_on_reads_a_row_group_once(files: OpenStore, tmp_path: Path) -> None:
    async with files() as subject:
        datasets, tables = over(subject.store, tmp_path / "spill")
        reference = await datasets.keep(landed(tmp_path, TABLE, rows_per_group=ROWS), **subject.owner)
        found: Any = await tables.open(reference, **subject.owner)
        begun = []
        inner = found._content._files.reader
        found._content._files.reader = lambda part: begun.append(part) or inner(part)
        first = 0
        while rows := await found.looked(found.rows, first, 250):
            first += len(rows)
        assert first == ROWS
        assert len(begun) == 1


def test_a_manifest_of_another_version_is_refused() -> None:
    with pytest.raises(Exception, match="version"):
        manifest_from(b'{"version": 99}')
