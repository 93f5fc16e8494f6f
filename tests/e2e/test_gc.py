"""`noetl gc` as a user runs it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from noetl.adapters.objects.filesystem import FilePayloads
from noetl.adapters.postgres.collecting.books import only_collector
from noetl.adapters.postgres.embedded import EmbeddedPostgres
from noetl.core.reference import Payload, address
from noetl.wiring.databases import control_dsn
from tests.support.backends import postgres_backend
from tests.support.cli import Cli, Finished, cli
from tests.support.collecting import age, stored
from tests.support.databases import empty_database, fresh_database
from tests.support.engine import OWNER
from tests.support.yaml import one_step, write


def orphan(content: bytes, store: str) -> Payload:
    return address(content, media_type="text/plain", store=store, **OWNER)


SMALL, LARGE = orphan(b"small", "db"), orphan(b"large one", "file")


async def plant(database: str, home: Path) -> None:
    async with postgres_backend(database) as backend:
        await backend.payloads.put(SMALL)
    await FilePayloads(home / "payloads").put(LARGE)


def fates(done: Finished) -> dict[tuple[str, str], tuple[int, int]]:
    assert done.code == 0, done.stderr
    return {(one["store"], one["fate"]): (one["count"], one["bytes"]) for one in done.json["unreachable"]}


def collected(noetl: Cli, database: str) -> None:
    """The whole way of two orphans, beside an execution whose result stays."""
    asyncio.run(plant(database, noetl.home))
    assert fates(noetl("gc", "--json")) == {("db", "young"): (1, 5), ("file", "young"): (1, 9)}
    asyncio.run(age(database, hours=30, home=noetl.home))
    wanted = {("db", "nominated"): (1, 5), ("file", "nominated"): (1, 9)}
    assert fates(noetl("gc", "--dry-run", "--json")) == wanted
    assert fates(noetl("gc", "--json")) == wanted
    asyncio.run(age(database, hours=25, home=noetl.home))
    looked = noetl("gc", "--dry-run")
    assert "deleted: 2 payloads, 14 bytes: would be deleted" in looked.stdout
    assert "nothing was changed" in looked.stderr
    assert SMALL.reference.sha256 in asyncio.run(stored(database))
    assert fates(noetl("gc", "--json")) == {("db", "deleted"): (1, 5), ("file", "deleted"): (1, 9)}
    assert SMALL.reference.sha256 not in asyncio.run(stored(database))
    assert list((noetl.home / "payloads").rglob(LARGE.reference.sha256)) == []


def test_orphans_of_a_home_are_shown_and_then_deleted(tmp_path: Path) -> None:
    large = write(tmp_path, one_step("result = ['a row of a large result'] * 10000"))
    with cli() as noetl:
        assert noetl("up").code == 0
        done = noetl("run", large, "--json")
        assert done.code == 0, done.stderr
        server = EmbeddedPostgres(noetl.home).running()
        assert server is not None
        collected(noetl, control_dsn(server))
        status = noetl("status", done.json["execution_id"], "--json")
        assert status.json["result"] == ["a row of a large result"] * 10000
        assert noetl("down").code == 0
        # Nobody is there: the command starts the database for itself.
        report = noetl("gc", "--dry-run", "--json")
        assert fates(report) == {}
        assert report.json["payloads"] == report.json["reachable"] > 0


def test_another_database_is_collected_where_it_is(tmp_path: Path) -> None:
    with cli(NOETL_POSTGRES_DSN=empty_database()) as noetl:
        refused = noetl("gc")
        assert refused.code == 2
        assert "noetl migrate" in refused.stderr
    database = fresh_database()
    with cli(NOETL_POSTGRES_DSN=database) as noetl:
        collected(noetl, database)
        asyncio.run(refused_while_busy(noetl, database))


async def refused_while_busy(noetl: Cli, database: str) -> None:
    async with only_collector(database):
        done = await asyncio.to_thread(noetl, "gc")
    assert done.code == 2
    assert "another `noetl gc`" in done.stderr


def test_a_grace_that_is_too_short_is_only_for_looking() -> None:
    with cli(NOETL_POSTGRES_DSN=fresh_database()) as noetl:
        for words in (["--grace", "0.5"], ["--grace", "0"]):
            done = noetl("gc", *words)
            assert done.code == 2
            assert "too short" in done.stderr
            assert "--dry-run" in done.stderr
            assert noetl("gc", "--dry-run", *words).code == 0
        for words in (["--grace", "-1"], ["--grace", "nan"], ["--grace", "inf", "--dry-run"]):
            done = noetl("gc", *words)
            assert done.code == 2
            assert "hours" in done.stderr
        done = noetl("gc", "--grace", str(24 * 90))
        assert done.code == 2
        assert "NOETL_GC_TTL_DAYS" in done.stderr


def test_settings_out_of_range_name_their_variable() -> None:
    for name, value in (("NOETL_GC_GRACE_HOURS", "0"), ("NOETL_GC_TTL_DAYS", "0"), ("NOETL_GC_GRACE_HOURS", "soon")):
        with cli(NOETL_POSTGRES_DSN="postgresql://nobody@/nowhere", **{name: value}) as noetl:
            done = noetl("gc")
            assert done.code == 2
            assert name in done.stderr
