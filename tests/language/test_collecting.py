"""After everything that nothing names was collected, all that the examples gave can still be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from noetl.adapters.objects.filesystem import FilePayloads
from noetl.adapters.postgres.payloads import PostgresPayloads
from noetl.adapters.postgres.pool import Reader
from noetl.core.reference import Payload, address, reference_from_json
from noetl.engine.collecting.report import DELETED, Report
from noetl.engine.payloads import Payloads
from noetl.engine.results import read_result
from noetl.settings import read_settings
from noetl.wiring.stores import collect_payloads, tables_over
from tests.support.collecting import POLICY, age
from tests.support.engine import OWNER
from tests.support.language import EXAMPLES, Case, World


def references(value: Any) -> Iterator[dict[str, Any]]:
    """Every reference in a document, wherever it stands."""
    if isinstance(value, dict):
        if {"sha256", "uri", "store", "media_type"} <= value.keys():
            yield value
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from references(inner)


def orphan(content: bytes, store: str) -> Payload:
    return address(content, media_type="text/plain", store=store, **OWNER)


def test_what_the_examples_gave_is_readable_after_a_collection(world: World, tmp_path: Path) -> None:
    for path in EXAMPLES:
        world.completed(Case(path.stem, path.read_text()))
    named = {}
    for told in world.told:
        for event in told.events:
            for found in references([event.payload_ref, event.result, event.writes, event.meta]):
                named[found["sha256"], found["store"]] = found
    assert len(named) > 50
    world.wait(check(world, named, tmp_path))


async def check(world: World, named: dict[tuple[str, str], dict[str, Any]], elsewhere: Path) -> None:
    reader = Reader(world.control_address, size_max=2)
    await reader.open()
    try:
        # Stores without the engine's caches: another home, and no shared memory.
        settings = read_settings({"NOETL_HOME": str(elsewhere), "NOETL_TIER15_BUDGET_MB": "0"})
        small, large = PostgresPayloads(reader), FilePayloads(world.home / "payloads")
        payloads = Payloads(small=small, large=large, tables=tables_over(large, settings))
        before = {key: await read(payloads, found) for key, found in named.items()}
        await small.put(orphan(b"a small one that nobody names", "db"))
        await large.put(orphan(b"a large one that nobody names", "file"))
        reports = []
        for _ in range(2):
            await age(world.control_address, hours=30, home=world.home)
            reports.append(await collect(world))
        assert reports[-1].total([DELETED]).count >= 2
        assert (reports[-1].damaged, reports[-1].missing) == ([], 0)
        fresh = Payloads(small=small, large=large, tables=tables_over(large, settings))
        for key, found in named.items():
            assert await read(fresh, found) == before[key], found
    finally:
        await reader.close()


async def collect(world: World) -> Report:
    settings = read_settings({"NOETL_HOME": str(world.home)})
    return await collect_payloads(settings, world.control_address, POLICY, is_dry_run=False)


async def read(payloads: Payloads, found: dict[str, Any]) -> object:
    """What a reference stands for, with everything that it is made of; of plain text and bytes, the bytes."""
    if "json" in found["media_type"]:
        return await read_result(payloads, found, **OWNER)
    return await payloads.read(reference_from_json(found), **OWNER)
