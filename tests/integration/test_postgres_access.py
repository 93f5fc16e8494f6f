"""Who else may enter the embedded server: the role of the users' data and the reader of the published views."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import asyncpg
import pytest

from noetl.adapters.postgres.access.data_access import built_in_fields, ensure_access
from noetl.adapters.postgres.access.published import PublishedLedger
from noetl.adapters.postgres.migrate import check_schema, migrate
from noetl.adapters.postgres.pool import Reader
from noetl.core.errors import ShardUnknown
from noetl.ports.data.sources import EventWindow
from noetl.settings import read_settings
from noetl.wiring.databases import prepare_database
from tests.support.aio import asynchronous
from tests.support.backends import postgres_backend
from tests.support.databases import connected, empty_database, fresh_database
from tests.support.events import ORGANIZATION, TENANT, offer
from tests.support.postgres import RunningServer, embedded_server, shared_server
from tests.support.sql import Sql, credential, new_tool

NOW = datetime.datetime.now(datetime.UTC)
VIEWS = ("commands", "events", "executions", "frames", "ledger", "result_refs", "shards", "stages")


@pytest.fixture(scope="module")
def server() -> RunningServer:
    """The shared server with its own database `noetl`, as a host leaves it."""
    server = shared_server()

    async def prepare() -> None:
        await ensure_access(server.address)
        await migrate(server.dsn(), shard_count=16, now=NOW)
        async with postgres_backend(server.dsn()) as backend:
            execution = backend.make.execution_id()
            await backend.ledger.append([offer(execution % 16, backend.make.initialized(execution))])

    asyncio.run(prepare())
    return server


async def refused(server: RunningServer, statement: str, *, database: str, user: str) -> None:
    """The statement must fail for want of rights."""
    async with connected(server.dsn(database=database, user=user)) as connection:
        await connection.execute("SET default_transaction_read_only = off")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)


# --- the role of the users' data -------------------------------------------------------------------------


@pytest.mark.parametrize("database", ["noetl", "postgres", "template1"])
@asynchronous
async def test_the_data_role_enters_no_database_but_its_own(database: str, server: RunningServer) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await asyncpg.connect(server.dsn(database=database, user="noetl_data"))


@asynchronous
async def test_the_data_role_does_what_it_likes_in_its_own_database(server: RunningServer) -> None:
    async with connected(server.dsn(database="noetl_data", user="noetl_data")) as connection:
        await connection.execute("CREATE SCHEMA mine; CREATE TABLE mine.t (id integer); DROP SCHEMA mine CASCADE")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE ROLE another",
        "CREATE DATABASE another",
        "ALTER ROLE noetl_data SUPERUSER",
        "SET ROLE noetl",
        "SET SESSION AUTHORIZATION postgres",
        "COPY (SELECT 1) TO PROGRAM 'cat'",
        "CREATE TEMPORARY TABLE a (b text); COPY a FROM '/etc/hostname'",
        "SELECT pg_read_file('/etc/hostname')",
        "SELECT pg_ls_dir('/')",
        "SELECT lo_import('/etc/hostname')",
        "ALTER SYSTEM SET work_mem = '1MB'",
        "LOAD 'auto_explain'",
        "CREATE FUNCTION f() RETURNS int LANGUAGE c AS 'x'",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'postgres' OR usename IS NULL",
    ],
)
@asynchronous
async def test_the_data_role_cannot_leave_the_database(statement: str, server: RunningServer) -> None:
    await refused(server, statement, database="noetl_data", user="noetl_data")


# --- the reader ------------------------------------------------------------------------------------------


@asynchronous
async def test_the_reader_sees_the_published_views(server: RunningServer) -> None:
    async with connected(server.dsn(user="noetl_reader")) as connection:
        assert await connection.fetchval("SELECT count(*) FROM executions") >= 0
        row = await connection.fetchrow("SELECT event_type, meta, tenant_id FROM noetl_views.events LIMIT 1")
        assert row["event_type"] == "playbook.initialized"
        assert await connection.fetch("SELECT command_id FROM commands") == []
        seen = await connection.fetch(
            "SELECT table_schema, table_name FROM information_schema.tables"
            " WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 2"
        )
    assert [tuple(row) for row in seen] == [("noetl_views", name) for name in VIEWS]


@asynchronous
async def test_the_reader_follows_the_ledger_page_by_page(server: RunningServer) -> None:
    async with postgres_backend(server.dsn()) as backend:
        one = backend.make.execution_id()
        make = backend.make
        before = (await backend.heads())[3].next_position - 1
        await backend.ledger.append([offer(3, make.initialized(one), make.issued(one), make.ended(one))])
    reader = Reader(server.dsn(user="noetl_reader"), size_max=1)
    await reader.open()
    try:
        published = PublishedLedger(reader)
        heads = await published.heads()
        assert heads.positions[3] == before + 3
        owner = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
        window = EventWindow(shard_id=3, after_position=before, until_position=before + 3, **owner)
        pages = [await published.events(window, rows_max=rows) for rows in (2, 4)]
        assert [(len(page.rows), page.position - before) for page in pages] == [(2, 2), (3, 3)]
        # What comes later stands behind the position that is told, however far the window reaches.
        endless = EventWindow(shard_id=3, after_position=before, until_position=2**62, **owner)
        page = await published.events(endless, rows_max=4)
        assert (len(page.rows), page.position) == (3, before + 3)
        with pytest.raises(ShardUnknown):
            await published.events(EventWindow(shard_id=4000, after_position=0, until_position=9, **owner), rows_max=4)
    finally:
        await reader.close()


@asynchronous
async def test_the_views_hold_back_what_readers_have_no_business_with(server: RunningServer) -> None:
    async with connected(server.dsn(user="noetl_reader")) as connection:
        rows = await connection.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'noetl_views'"
        )
        options = await connection.fetch(
            "SELECT reloptions FROM pg_class WHERE relnamespace = 'noetl_views'::regnamespace"
        )
    columns = {row["column_name"] for row in rows}
    assert not columns & {"idempotency_key", "checksum", "body", "content", "ciphertext"}
    assert [row["reloptions"] for row in options] == [["security_barrier=true"]] * len(VIEWS)


@asynchronous
async def test_the_reader_sees_no_table_of_the_control_plane(server: RunningServer) -> None:
    async with connected(server.dsn()) as owner:
        rows = await owner.fetch(
            "SELECT relname FROM pg_class WHERE relnamespace = 'noetl'::regnamespace AND relkind IN ('r', 'p')"
        )
    names = [row["relname"] for row in rows]
    assert {"event", "execution", "command", "payload"} <= set(names)
    for name in names:
        await refused(server, f"SELECT 1 FROM noetl.{name}", database="noetl", user="noetl_reader")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO noetl_views.executions (execution_id) VALUES (1)",
        "UPDATE noetl_views.events SET meta = '{}'",
        "DELETE FROM noetl_views.commands",
        "TRUNCATE noetl.command",
        "CREATE TABLE mine (id integer)",
        "CREATE TABLE noetl_views.mine (id integer)",
        "CREATE TEMPORARY TABLE mine (id integer)",
        "CREATE SCHEMA mine",
        "CREATE OR REPLACE VIEW noetl_views.commands AS SELECT 1",
        "SELECT lo_create(0)",
        "SELECT lo_from_bytea(0, 'x')",
        "SET ROLE noetl",
        "SELECT noetl.is_result('{}')",
    ],
)
@asynchronous
async def test_the_reader_writes_nothing(statement: str, server: RunningServer) -> None:
    await refused(server, statement, database="noetl", user="noetl_reader")


@asynchronous
async def test_the_reader_is_bound_by_default_and_enters_no_other_database(server: RunningServer) -> None:
    async with connected(server.dsn(user="noetl_reader")) as connection:
        assert await connection.fetchval("SHOW default_transaction_read_only") == "on"
        assert await connection.fetchval("SHOW statement_timeout") == "1min"
    for database in ("noetl_data", "postgres", "template1"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await asyncpg.connect(server.dsn(database=database, user="noetl_reader"))


@asynchronous
async def test_the_index_is_used_through_the_view(server: RunningServer) -> None:
    async with connected(server.dsn(user="noetl_reader")) as connection:
        await connection.execute("SET enable_seqscan = off")
        plan = await connection.fetch("EXPLAIN SELECT event_id FROM events WHERE execution_id = 5 ORDER BY position")
    text = "\n".join(row[0] for row in plan)
    assert "Index Cond: (execution_id = 5)" in text


# --- making it so ----------------------------------------------------------------------------------------


@asynchronous
async def test_making_access_twice_changes_nothing(server: RunningServer) -> None:
    async def rights() -> list[tuple[object, ...]]:
        async with connected(server.dsn(database="postgres", user="postgres")) as admin:
            databases = await admin.fetch(
                "SELECT datname::text, datacl::text FROM pg_database WHERE datname !~ '^test' ORDER BY 1"
            )
            roles = await admin.fetch(
                "SELECT rolname::text, rolsuper, rolcreaterole, rolcreatedb, rolconnlimit, rolconfig::text"
                " FROM pg_roles ORDER BY 1"
            )
        return [tuple(row) for rows in (databases, roles) for row in rows]

    before = await rights()
    await ensure_access(server.address)
    await migrate(server.dsn(), shard_count=16, now=NOW)
    assert await rights() == before


@asynchronous
async def test_a_role_that_lost_its_limits_gets_them_back(server: RunningServer) -> None:
    async with connected(server.dsn(database="postgres", user="postgres")) as admin:
        await admin.execute("ALTER ROLE noetl_data CREATEDB CREATEROLE CONNECTION LIMIT -1")
        await ensure_access(server.address)
        asking = "SELECT rolcreatedb OR rolcreaterole OR rolconnlimit < 0 FROM pg_roles WHERE rolname = 'noetl_data'"
        assert await admin.fetchval(asking) is False


def test_the_host_makes_it_so_on_a_home_that_has_less() -> None:
    async def prepare(server: RunningServer, home: Path) -> None:
        async with connected(server.dsn(database="postgres", user="postgres")) as admin:
            await admin.execute("DROP DATABASE noetl_data")
            await admin.execute("DROP ROLE noetl_data")
            await admin.execute("GRANT CONNECT ON DATABASE noetl TO PUBLIC")
        await prepare_database(read_settings({"NOETL_HOME": str(home)}), server.dsn(), is_embedded=True)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await asyncpg.connect(server.dsn(user="noetl_data"))
        async with connected(server.dsn(database="noetl_data", user="noetl_data")) as connection:
            assert await connection.fetchval("SELECT 1") == 1
        async with connected(server.dsn(user="noetl_reader")) as connection:
            assert await connection.fetch("SELECT execution_id FROM executions") == []

    with embedded_server() as server:
        asyncio.run(prepare(server, server.home))


# --- any other server ------------------------------------------------------------------------------------


@asynchronous
async def test_a_role_without_the_right_to_make_roles_migrates_too() -> None:
    """Its views are there; the reader is let in when the administrator has made it."""
    address = await asyncio.to_thread(empty_database)
    name = address.split("/")[3].split("?")[0]
    server = shared_server()
    async with connected(server.dsn(database=name, user="postgres")) as admin:
        await admin.execute(
            f"CREATE ROLE plain_{name} LOGIN; GRANT CREATE ON DATABASE {name} TO plain_{name};"
            f"REVOKE ALL ON DATABASE {name} FROM PUBLIC; GRANT CONNECT ON DATABASE {name} TO plain_{name}"
        )
        plain = server.dsn(database=name, user=f"plain_{name}")
        await migrate(plain, shard_count=4, now=NOW)
        await check_schema(plain)
        owner = "SELECT viewowner::text FROM pg_views WHERE schemaname = 'noetl_views'"
        assert {row[0] for row in await admin.fetch(owner)} == {f"plain_{name}"}


@asynchronous
async def test_a_role_that_may_make_roles_makes_the_reader_and_lets_it_in() -> None:
    def run() -> RunningServer:
        return held.__enter__()

    held = embedded_server()
    server = await asyncio.to_thread(run)
    try:
        async with connected(server.dsn(database="postgres", user="postgres")) as admin:
            assert await admin.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = 'noetl_reader'") == 0
            await migrate(server.dsn(), shard_count=4, now=NOW)
            assert await admin.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = 'noetl_reader'") == 0
            await admin.execute("ALTER ROLE noetl CREATEROLE")
        assert await migrate(server.dsn(), shard_count=4, now=NOW) == []
        async with connected(server.dsn(user="noetl_reader")) as connection:
            assert await connection.fetch("SELECT execution_id FROM noetl_views.executions") == []
    finally:
        await asyncio.to_thread(held.__exit__, None, None, None)


@asynchronous
async def test_two_databases_of_one_server_are_migrated_at_once() -> None:
    addresses = [await asyncio.to_thread(empty_database) for _ in range(3)]
    await asyncio.gather(*(migrate(address, shard_count=4, now=NOW) for address in addresses))
    for address in addresses:
        await check_schema(address)
    assert await asyncio.to_thread(fresh_database)


# --- the credentials that need no registering ------------------------------------------------------------


@asynchronous
async def test_the_built_in_credentials_work_with_the_tool_and_only_as_far_as_their_role(server: RunningServer) -> None:
    fields = built_in_fields(server.address)
    assert set(fields) == {"noetl_data", "pg_noetl_k8s"}
    tool = new_tool((str(server.address.socket_dir),))
    try:
        data = Sql(tool, credential("noetl_data", "postgres", **fields["noetl_data"]))
        reader = Sql(tool, credential("pg_noetl_k8s", "postgres", **fields["pg_noetl_k8s"]))
        value = await data.value("CREATE TABLE IF NOT EXISTS built_in (id integer); SELECT current_user::text AS who")
        assert value["rows"] == [{"who": "noetl_data"}]
        assert (await reader.value("SELECT status FROM executions"))["row_count"] >= 0
        events = await reader.value("SELECT event_type, meta FROM events LIMIT 1")
        assert isinstance(events["rows"][0]["meta"], dict)
        for statement in ("SELECT 1 FROM noetl.event", "DELETE FROM events", "CREATE TABLE mine (id integer)"):
            failure = (await reader.run(statement)).failure
            assert failure is not None
            assert failure.kind in ("auth", "unknown"), failure
    finally:
        await tool.close()
