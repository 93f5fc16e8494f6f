"""What tasks of the source `noetl` read and write, without a Spark around them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.adapters.spark.sources.payloads import planning
from noetl.adapters.spark.sources.payloads.finding import FoundDataset, find
from noetl.adapters.spark.sources.payloads.fitting import declared
from noetl.adapters.spark.sources.payloads.landing import Landing
from noetl.adapters.spark.sources.payloads.options import ReadOptions, read_options, write_options
from noetl.adapters.spark.sources.payloads.planning import slices
from noetl.adapters.spark.sources.payloads.reading import Reading
from noetl.adapters.spark.sources.payloads.writing import Account, manifest_of, winners
from noetl.adapters.spark.sources.waiting import waited
from noetl.adapters.spark.types import plan_of, schema_text
from noetl.core.dataset import MEDIA_DATASET, DatasetPart
from noetl.core.errors import PayloadCorrupt, RequestInvalid, ResultNotTabular
from noetl.core.reference import MEDIA_JSON, Reference
from noetl.wiring.sources import SettingsAccess
from tests.support.aio import asynchronous
from tests.support.sources import OWNER, access_of, keep_dataset, keep_table, orders

KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


@pytest.fixture
def access(tmp_path: Path) -> SettingsAccess:
    return access_of(tmp_path / "home")


def tasks_of(
    access: SettingsAccess, reference: Reference, *, cores: int = 1, **options: Any
) -> list[list[pa.RecordBatch]]:
    """The batches of each task that a plan has."""
    asked = ReadOptions(path=reference.uri, **options)
    found = waited(access, lambda stores: find(stores, asked, access))
    struct = plan_of(found.schema).struct
    reading = Reading(access=access, target=declared(struct), is_verified=asked.is_verified)
    parts = found.manifest.parts if isinstance(found, FoundDataset) else ()
    return [list(reading.batches(one)) for one in slices(found, parts, cores=cores, has_files=access.has_files)]


def rows_of(tasks: list[list[pa.RecordBatch]]) -> list[dict[str, Any]]:
    return [row for task in tasks for batch in task for row in batch.to_pylist()]


def kept_dataset(access: SettingsAccess, table: pa.Table, folder: Path, **how: Any) -> Reference:
    found: list[Reference] = []

    @asynchronous
    async def keep() -> None:
        found.append(await keep_dataset(access, table, folder, **how))

    keep()
    return found[0]


def kept_table(access: SettingsAccess, table: pa.Table, folder: Path) -> Reference:
    found: list[Reference] = []

    @asynchronous
    async def keep() -> None:
        found.append(await keep_table(access, table, folder))

    keep()
    return found[0]


def test_a_part_is_a_task_and_rows_stay_in_their_order(access: SettingsAccess, tmp_path: Path) -> None:
    table = orders(3_000)
    tasks = tasks_of(access, kept_dataset(access, table, tmp_path, rows_per_file=1_000))
    assert [sum(batch.num_rows for batch in task) for task in tasks] == [1_000] * 3
    assert rows_of(tasks) == table.to_pylist()


def test_one_large_part_is_read_in_slices(
    access: SettingsAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SLICE_BYTES_MIN", 1_000)
    table = orders(3_000)
    reference = kept_dataset(access, table, tmp_path, rows_per_group=500)
    tasks = tasks_of(access, reference, cores=4)
    assert len(tasks) == 4
    assert all(tasks)
    assert rows_of(tasks) == table.to_pylist()
    sealed = access_of(tmp_path / "sealed", {"NOETL_PAYLOAD_KEY": KEY})
    # What must be fetched or opened first is not fetched twice.
    assert len(tasks_of(sealed, kept_dataset(sealed, table, tmp_path), cores=4)) == 1


def test_a_table_is_read_in_slices_of_batches(
    access: SettingsAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SLICE_BYTES_MIN", 1_000)
    table = orders(200_000)
    tasks = tasks_of(access, kept_table(access, table, tmp_path), cores=3)
    assert len(tasks) == 3
    assert all(tasks)
    assert pa.Table.from_batches([batch for task in tasks for batch in task]).equals(
        pa.Table.from_batches(table.to_batches())
    )


def test_columns_without_an_own_type_in_spark_are_read_as_the_next_wider_one(
    access: SettingsAccess, tmp_path: Path
) -> None:
    table = pa.table({"n": pa.array([1, 255], pa.uint8()), "d": pa.array(["a", "b"]).dictionary_encode()})
    (task,) = tasks_of(access, kept_table(access, table, tmp_path))
    assert task[0].schema.types == [pa.int16(), pa.string()]
    assert task[0].to_pylist() == table.to_pylist()


def test_values_of_the_partitioning_are_columns(access: SettingsAccess, tmp_path: Path) -> None:
    table = orders(30)
    tasks = tasks_of(access, kept_dataset(access, table, tmp_path, partition_by=("day",)))
    assert len(tasks) == 3
    assert sorted(rows_of(tasks), key=lambda row: row["id"]) == table.to_pylist()


@pytest.mark.parametrize("environment", [{}, {"NOETL_PAYLOAD_KEY": KEY}], ids=["plain", "sealed"])
def test_wrong_bytes_are_an_error_that_names_the_part(tmp_path: Path, environment: dict[str, str]) -> None:
    access = access_of(tmp_path / "home", environment)
    reference = kept_dataset(access, orders(2_000), tmp_path, rows_per_file=1_000)
    found = waited(access, lambda stores: find(stores, ReadOptions(path=reference.uri), access))
    assert isinstance(found, FoundDataset)
    part = found.manifest.parts[1].reference
    (file,) = (tmp_path / "home").rglob(f"{part.sha256}*")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(PayloadCorrupt, match=part.uri):
        tasks_of(access, reference)


def test_a_part_with_another_number_of_rows_is_refused(access: SettingsAccess, tmp_path: Path) -> None:
    reference = kept_dataset(access, orders(10), tmp_path)
    found = waited(access, lambda stores: find(stores, ReadOptions(path=reference.uri), access))
    assert isinstance(found, FoundDataset)
    (part,) = found.manifest.parts
    (task,) = slices(found, [DatasetPart(reference=part.reference, row_count=9)], cores=1, has_files=access.has_files)
    reading = Reading(access=access, target=declared(plan_of(found.schema).struct))
    with pytest.raises(PayloadCorrupt, match="has 10 rows and not 9"):
        list(reading.batches(task))  # type: ignore[arg-type]


def test_unverified_reading_fetches_only_what_is_looked_at(access: SettingsAccess, tmp_path: Path) -> None:
    table = orders(1_000)
    assert rows_of(tasks_of(access, kept_dataset(access, table, tmp_path), is_verified=False)) == table.to_pylist()


async def put_json(access: SettingsAccess, value: object) -> Reference:
    async def chunks() -> Any:
        yield json.dumps(value).encode()

    async with access.opened() as stores:
        return await stores.large.put_stream(chunks(), media_type=MEDIA_JSON, **OWNER)


def kept_json(access: SettingsAccess, value: object) -> Reference:
    found: list[Reference] = []

    @asynchronous
    async def keep() -> None:
        found.append(await put_json(access, value))

    keep()
    return found[0]


def test_rows_of_json_have_columns(access: SettingsAccess) -> None:
    rows = [{"a": 1, "b": "x"}, {"a": 2, "c": [1.5]}]
    expected = [{"a": 1, "b": "x", "c": None}, {"a": 2, "b": None, "c": [1.5]}]
    assert rows_of(tasks_of(access, kept_json(access, rows))) == expected
    assert rows_of(tasks_of(access, kept_json(access, {"status": "ok", "rows": rows}))) == expected
    assert rows_of(tasks_of(access, kept_json(access, {"pull": {"items": rows}}), part="pull.items")) == expected
    with pytest.raises(ResultNotTabular):
        tasks_of(access, kept_json(access, {"a": 1}))


def test_a_dataset_inside_a_value_is_found(access: SettingsAccess, tmp_path: Path) -> None:
    table = orders(20)
    inner = kept_dataset(access, table, tmp_path)
    value = {"value": {"status": "ok", "rows": None}, "parts": [[["rows"], inner.to_json()]]}
    assert rows_of(tasks_of(access, kept_json(access, value))) == table.to_pylist()


# --- writing ---------------------------------------------------------------------------------------------


def landed_by(access: SettingsAccess, table: pa.Table, *, mark: str = "0", by: tuple[str, ...] = ()) -> list[Any]:
    struct = plan_of(table.schema).struct
    with Landing(access.landing, struct, by, mark=mark) as landing:
        for batch in table.to_batches(max_chunksize=100):
            landing.add(batch)
        return [(part.partition, pq.read_table(part.path), part.path.read_bytes()) for part in landing.finish()]


def test_a_task_writes_one_file_and_leaves_none(access: SettingsAccess, tmp_path: Path) -> None:
    table = orders(1_000)
    ((partition, written, _),) = landed_by(access, table)
    assert partition == {}
    assert written.to_pylist() == table.to_pylist()
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == []


def test_a_task_that_runs_again_writes_the_same_bytes_and_another_one_does_not(access: SettingsAccess) -> None:
    (one,), (again,), (other,) = (landed_by(access, orders(10), mark=mark) for mark in ("0", "0", "1"))
    assert one[2] == again[2]
    assert one[2] != other[2]


def test_rows_are_divided_by_the_values_of_the_partitioning(access: SettingsAccess) -> None:
    table = orders(30).append_column("n", pa.array([None if n % 5 == 0 else n % 5 for n in range(30)], pa.int32()))
    found = landed_by(access, table, by=("day", "n"))
    assert len(found) == 15
    assert {name for partition, _, _ in found for name in partition} == {"day", "n"}
    assert sum(written.num_rows for _, written, _ in found) == 30
    assert all(written.column_names == ["id", "name", "amount", "at", "tags", "flag"] for _, written, _ in found)
    for partition, written, _ in found:
        texts = {None if n % 5 == 0 else str(n % 5) for n in written.column("id").to_pylist()}
        assert texts == {partition["n"]}


def account(number: int, attempt: int, name: str, rows: int = 1, kind: pa.DataType | None = None) -> Account:
    sha256 = name.encode().hex().ljust(64, "0")
    reference = Reference(kind="payload", uri=f"noetl://{name}", sha256=sha256, media_type="", bytes=1, store="file")
    schema = schema_text(pa.schema([("id", kind or pa.int64())]))
    return Account(number, attempt, (DatasetPart(reference=reference, row_count=rows),), schema)


def test_of_two_attempts_at_a_partition_one_is_published() -> None:
    """Speculation, or a task that was lost and came back."""
    struct = plan_of(pa.schema([("id", pa.int64())])).struct
    messages = [account(1, 0, "b"), account(0, 0, "a"), account(1, 1, "c"), Account(2, 0)]
    manifest = manifest_of(struct, winners(messages), ())
    assert [part.reference.uri for part in manifest.parts] == ["noetl://a", "noetl://b"]
    assert manifest.row_count == 2


def test_a_task_without_an_account_publishes_nothing() -> None:
    with pytest.raises(RequestInvalid, match="nothing was published"):
        winners([account(0, 0, "a"), None])


def test_a_narrow_type_stays_only_where_all_rows_fit() -> None:
    struct = plan_of(pa.schema([("id", pa.uint8())])).struct
    same = [account(0, 0, "a", kind=pa.uint8()), account(1, 0, "b", kind=pa.uint8())]
    mixed = [*same, account(2, 0, "c", kind=pa.int16())]
    assert manifest_of(struct, same, ()).arrow_schema == schema_text(pa.schema([("id", pa.uint8())]))
    assert manifest_of(struct, mixed, ()).arrow_schema == schema_text(pa.schema([("id", pa.int16())]))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "say what to read"),
        ({"path": "noetl://x", "colums": "a"}, "no option 'colums'"),
        ({"path": "noetl://x", "columns": "a,,b"}, "columns"),
        ({"path": "noetl://x", "columns": "a,a"}, "twice"),
        ({"path": "noetl://x", "verify": "maybe"}, "verify"),
    ],
)
def test_wrong_options_of_a_read_are_refused(options: dict[str, str], match: str) -> None:
    with pytest.raises(RequestInvalid, match=match):
        read_options(options)


@pytest.mark.parametrize("options", [{}, {"path": "noetl://tenant/a/org/b/payloads/sha256/0"}])
def test_a_write_must_say_which_file_names_it(options: dict[str, str]) -> None:
    with pytest.raises(RequestInvalid, match="which file"):
        write_options(options)


def test_names_with_commas_are_a_list() -> None:
    assert read_options({"path": "x", "columns": '["a,b", "c"]'}).columns == ("a,b", "c")
    assert write_options({"path": "x", "partition_by": "a, b"}).partition_by == ("a", "b")


def test_a_locator_of_something_else_is_refused(access: SettingsAccess) -> None:
    asked = ReadOptions(path="noetl://tenant/default/org/default/execution/1")
    with pytest.raises(Exception, match="rows are behind locators of payloads"):
        waited(access, lambda stores: find(stores, asked, access))


def test_the_media_type_of_a_dataset_is_seen_without_a_reference(access: SettingsAccess, tmp_path: Path) -> None:
    reference = kept_dataset(access, orders(5), tmp_path)
    assert reference.media_type == MEDIA_DATASET
    named = waited(access, lambda stores: stores.located(reference.uri, ""))
    assert isinstance(named, Reference)
    assert named.media_type == MEDIA_DATASET
