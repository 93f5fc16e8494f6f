"""The connections of the tool `postgres`: who shares them, what they forget, how they fail."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from noetl.core.errors import Failure
from noetl.ports.secrets import Credential
from noetl.tools.postgres import pools
from tests.support.aio import asynchronous
from tests.support.databases import empty_database
from tests.support.postgres import shared_server
from tests.support.sql import Sql, credential, login, new_tool, running_sql, tool_call

PID = "SELECT pg_backend_pid() AS pid"
CANARY = "canary-0f3a9c"


@pytest.fixture(scope="module")
def database() -> str:
    return empty_database().split("/")[3].split("?")[0]


async def failure_of(auth: Credential, private_hosts: tuple[str, ...] = ()) -> Failure:
    """Why a call with this credential fails; the canary may be in nothing that it says."""
    tool = new_tool(private_hosts)
    try:
        result = await tool.run(tool_call(auth, {"command": "SELECT 1"}))
    finally:
        await tool.close()
    assert result.failure is not None
    assert result.value is None
    assert CANARY not in repr(result)
    return result.failure


# --- what a connection forgets ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "asking", "expected"),
    [
        ("SET work_mem = '1234kB'", "SELECT current_setting('work_mem')", "4MB"),
        ("SET search_path TO pg_catalog", "SELECT current_schema()", "public"),
        ("CREATE TEMPORARY TABLE passing (id integer)", "SELECT to_regclass('passing')", None),
        ("SELECT pg_advisory_lock(77)", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 77", 0),
        ("PREPARE mine AS SELECT 1", "SELECT count(*) FROM pg_prepared_statements WHERE name = 'mine'", 0),
        ("DECLARE c CURSOR WITH HOLD FOR SELECT 1", "SELECT count(*) FROM pg_cursors WHERE name = 'c'", 0),
        ("LISTEN here", "SELECT count(*) FROM pg_listening_channels()", 0),
        ("BEGIN; CREATE TABLE half (id integer)", "SELECT to_regclass('half')", None),
        ("SET ROLE noetl_data", "SELECT current_user", "postgres"),
        ("SET SESSION AUTHORIZATION noetl_data", "SELECT session_user", "postgres"),
        ("SET default_transaction_read_only = on", "SELECT current_setting('transaction_read_only')", "off"),
    ],
)
@asynchronous
async def test_nothing_of_a_call_is_left_for_the_next_one(
    before: str, asking: str, expected: object, database: str
) -> None:
    async with running_sql(database, "postgres") as sql:
        pid = await sql.scalar(PID)
        await sql.run(before)
        assert await sql.scalar(asking) == expected
        assert await sql.scalar(PID) == pid, "the same connection, or nothing was shown"


# --- who shares connections ------------------------------------------------------------------------------


@asynchronous
async def test_a_pool_belongs_to_a_tenant_and_to_the_values_of_a_credential(database: str) -> None:
    tool = new_tool()

    async def pid(auth: Credential, tenant: str) -> int:
        result = await tool.run(tool_call(auth, {"command": PID}, tenant_id=tenant))
        assert isinstance(result.value, dict)
        return int(result.value["rows"][0]["pid"])

    first = login(database)
    renewed = login(database, db_password="another")
    renamed = Credential(name="other name", type="postgres", data=first.data)
    try:
        mine = await pid(first, "a")
        assert await pid(login(database), "a") == mine, "equal values, another object"
        assert await pid(renamed, "a") == mine, "equal values, another name"
        assert await pid(first, "b") != mine
        assert await pid(renewed, "a") != mine
    finally:
        await tool.close()


@asynchronous
async def test_many_calls_at_once_share_few_connections(database: str) -> None:
    async with running_sql(database) as sql:
        rows = await asyncio.gather(*(sql.value("SELECT pg_backend_pid() AS pid, pg_sleep(0.01)") for _ in range(60)))
    pids = {row["rows"][0]["pid"] for row in rows}
    assert 1 < len(pids) <= 10


@asynchronous
async def test_an_idle_connection_is_closed_after_a_while(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "POSTGRES_IDLE_SECONDS_MAX", 0.05)
    async with running_sql(database) as sql, running_sql(database, "postgres") as watcher:
        pid = await sql.scalar(PID)
        async with asyncio.timeout(60):
            while await watcher.scalar(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}"):
                await asyncio.sleep(0.01)
        assert await sql.scalar(PID) != pid


@asynchronous
async def test_the_pool_that_was_not_used_for_the_longest_time_is_closed(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "POSTGRES_POOLS_MAX", 2)
    tool = new_tool()
    try:
        sqls = [Sql(tool, login(database, db_password=str(number))) for number in range(3)]
        pids = [await sqls[0].scalar(PID), await sqls[1].scalar(PID), await sqls[0].scalar(PID)]
        await sqls[2].scalar(PID)
        assert await sqls[0].scalar(PID) == pids[0], "used lately, so it was kept"
        assert await sqls[1].scalar(PID) != pids[1]
    finally:
        await tool.close()


@asynchronous
async def test_a_pool_in_use_outlives_its_place_in_the_list(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "POSTGRES_POOLS_MAX", 1)
    tool = new_tool()
    try:
        slow, other = (Sql(tool, login(database, db_password=word)) for word in ("slow", "other"))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(slow.scalar("SELECT pg_backend_pid() FROM pg_sleep(0.1)"))
            await asyncio.sleep(0.02)
            await other.scalar(PID)
        gone = running.result()
        async with asyncio.timeout(60):
            while await other.scalar(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {gone}"):
                await asyncio.sleep(0.01)
    finally:
        await tool.close()


@asynchronous
async def test_a_type_that_was_changed_is_learned_anew(database: str) -> None:
    async with running_sql(database) as sql, running_sql(database) as other:
        await other.value("CREATE TYPE changing AS (a integer)")
        assert await sql.scalar("SELECT ROW(1)::changing") == {"a": 1}
        await other.value("ALTER TYPE changing ADD ATTRIBUTE b integer")
        failure = (await sql.run("SELECT ROW(1, 2)::changing")).failure
        assert failure is not None
        assert (failure.kind, "carried out" in failure.message) == ("parse", True)
        assert await sql.scalar("SELECT ROW(1, 2)::changing") == {"a": 1, "b": 2}


@asynchronous
async def test_closing_the_tool_leaves_no_connection_behind(database: str) -> None:
    async with running_sql(database, "postgres") as watcher:
        async with running_sql(database) as sql:
            pids = [(await sql.value(PID))["rows"][0]["pid"]]
        async with asyncio.timeout(60):
            while await watcher.scalar(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pids[0]}"):
                await asyncio.sleep(0.01)


# --- how connections fail --------------------------------------------------------------------------------


@asynchronous
async def test_a_connection_that_breaks_fails_its_call_and_not_the_next(database: str) -> None:
    async with running_sql(database) as sql, running_sql(database, "postgres") as admin:
        idle = await sql.scalar(PID)
        assert await admin.scalar(f"SELECT pg_terminate_backend({idle}, 5000)")
        await asyncio.sleep(0.02)
        async with asyncio.TaskGroup() as group:
            pid = await sql.scalar(PID)
            running = group.create_task(sql.run("SELECT 1 AS x; SELECT pg_sleep(30)"))
            asking = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND query LIKE '%pg_sleep%'"
            while not await admin.scalar(asking):
                await asyncio.sleep(0.01)
            await admin.scalar(f"SELECT pg_terminate_backend({pid}, 5000)")
        result = running.result()
        assert await sql.scalar("SELECT 1") == 1
    assert result.failure is not None
    assert (result.failure.kind, result.failure.retryable) == ("db_connection", True)
    assert result.failure.code in ("PG_57P01", "PG_08003"), "the server's goodbye is seen, or only its silence"
    assert isinstance(result.value, dict)
    assert result.value["statement_count"] == 1


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynchronous
async def test_no_server_is_a_retryable_failure_that_names_the_place(tmp_path: Path) -> None:
    port = closed_port()
    refused = await failure_of(credential(host="127.0.0.1", port=port, user="anna", password=CANARY, database="d"))
    assert (refused.kind, refused.code, refused.retryable) == ("db_connection", "CONN_REFUSED", True)
    assert f"127.0.0.1:{port}/d" in refused.message
    missing = await failure_of(credential(host=str(tmp_path), user="anna", password=CANARY))
    assert (missing.kind, missing.code) == ("db_connection", "CONN_REFUSED")


@asynchronous
async def test_a_server_that_does_not_answer_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "POSTGRES_CONNECT_SECONDS_MAX", 0.1)

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(60):
            failure = await failure_of(credential(host="127.0.0.1", port=port, user="anna", password=CANARY))
        await asyncio.sleep(0.05)
    finally:
        server.close()
    assert (failure.kind, failure.code) == ("db_connection", "CONN_TIMEOUT")


@asynchronous
async def test_a_refusal_of_the_server_has_its_sqlstate() -> None:
    unknown = await failure_of(login("no_such_database", db_password=CANARY))
    assert (unknown.kind, unknown.code, unknown.retryable) == ("schema", "PG_3D000", False)
    stranger = await failure_of(login("postgres", "no_such_user", db_password=CANARY))
    assert (stranger.kind, stranger.code, stranger.retryable) == ("auth", "PG_28000", False)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"user": "a", "password": CANARY}, "no db_host or host"),
        ({"host": "h", "password": CANARY}, "no db_user or user"),
        ({"host": "h", "user": "a", "port": CANARY}, "1 to 65535"),
        ({"host": "h", "user": "a", "port": 70000}, "1 to 65535"),
        ({"host": "h", "user": "a", "sslmode": CANARY}, "sslmode must be one of"),
        ({"host": "h", "user": "a", "sslrootcert": f"/{CANARY}"}, "PEM"),
        ({"host": "h1,h2", "user": "a"}, "several hosts"),
        ({"host": "h", "user": "a", "password": f"{CANARY}\0"}, "character"),
        ({"host": "h", "user": "a", "password": f"{CANARY}\ud800"}, "character"),
        ({"dsn": f"postgresql://a:{CANARY}@h:port/d"}, "cannot be read"),
        ({"dsn": f"postgresql://a:{CANARY}@[h/d"}, "cannot be read"),
        ({"dsn": f"mysql://a:{CANARY}@h/d"}, "begins with postgresql://"),
        ({"connection_string": f"user=a password={CANARY}"}, "no db_host"),
    ],
)
@asynchronous
async def test_a_credential_that_leads_nowhere_is_a_matter_of_configuration(
    data: dict[str, object], message: str
) -> None:
    failure = await failure_of(credential(**data))  # type: ignore[arg-type]
    assert (failure.kind, message in failure.message) == ("config", True), failure
    assert "'pg'" in failure.message


@asynchronous
async def test_every_spelling_of_a_credential_leads_to_the_server(database: str) -> None:
    address = shared_server().address
    folder, port = str(address.socket_dir), str(address.port)
    encoded = folder.replace("/", "%2F")
    socket_file = f"{folder}/.s.PGSQL.{port}"
    for data in (
        {"db_host": folder, "db_port": port, "db_user": "noetl", "db_password": "x", "db_name": database},
        {"host": folder, "port": int(port), "user": "noetl", "database": database, "sslmode": "require"},
        {"hostname": folder, "username": "noetl", "dbname": database},
        {"pg_host": socket_file, "user": "noetl", "dbname": database},
        {"dsn": f"postgresql://noetl:p%40ss@/{database}?host={folder}&port={port}"},
        {"dsn": f"postgres://noetl@{encoded}:{port}/{database}?application_name=x&sslmode=disable"},
        {"connection_string": f"postgresql+psycopg://noetl@/{database}?host={folder}"},
        {"connection_string": f"host='{folder}' port={port} user=noetl dbname = {database} password='a\\'b c'"},
        {"dsn": f"postgresql://someone@elsewhere/{database}", "db_user": "noetl", "host": folder},
        {"dsn": f"host={folder} user=noetl dbname={database} options='-c work_mem=5MB'"},
    ):
        tool = new_tool()
        try:
            result = await tool.run(
                tool_call(credential(**data), {"command": "SELECT current_database() AS d, current_user::text AS u"})  # type: ignore[arg-type]
            )
        finally:
            await tool.close()
        assert result.failure is None, (data, result.failure)
        assert isinstance(result.value, dict)
        assert result.value["rows"] == [{"d": database, "u": "noetl"}]


@asynchronous
async def test_the_worker_s_own_environment_is_never_borrowed(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PGHOST": str(shared_server().address.socket_dir),
        "PGUSER": "postgres",
        "PGDATABASE": "postgres",
        "PGPASSWORD": CANARY,
        "PGSSLMODE": "verify-full",
        "PGSSLNEGOTIATION": "direct",
        "PGTARGETSESSIONATTRS": "standby",
        "PGPORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert (await failure_of(credential(user="noetl"))).kind == "config"
    assert (await failure_of(credential(host="h"))).kind == "config"
    async with running_sql(database) as sql:
        assert await sql.scalar("SELECT current_user::text") == "noetl"


# --- over TCP --------------------------------------------------------------------------------------------


@asynccontextmanager
async def tcp_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The shared server, which speaks neither TCP nor TLS, behind a port of its own that may speak both."""
    address = shared_server().address
    path = f"{address.socket_dir}/.s.PGSQL.{address.port}"

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if tls is not None:
            await reader.readexactly(8)
            writer.write(b"S")
            try:
                await writer.start_tls(tls)
            except (ConnectionError, ssl.SSLError):
                writer.close()
                return
        inner_reader, inner_writer = await asyncio.open_unix_connection(path)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0.05)


async def connects(auth: Credential, failure_code: str) -> bool:
    tool = new_tool()
    try:
        result = await tool.run(tool_call(auth, {"command": "SELECT 1 AS x"}))
    finally:
        await tool.close()
    assert CANARY not in repr(result)
    assert result.failure is None or result.failure.code == failure_code, result.failure
    return result.failure is None


@pytest.mark.parametrize(
    ("sslmode", "expected"), [(None, True), ("prefer", True), ("allow", True), ("disable", True), ("require", False)]
)
@asynchronous
async def test_a_server_without_tls_is_used_only_when_the_credential_allows_it(
    sslmode: str | None, expected: bool, database: str
) -> None:
    async with tcp_server() as port:
        fields = {"host": "127.0.0.1", "port": port, "user": "noetl", "database": database, "password": CANARY}
        assert await connects(credential(**fields, sslmode=sslmode), "CONN_FAILED") is expected


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str, str]:
    """A server for the name `localhost`, its certificate, and another one."""
    folder = tmp_path_factory.mktemp("tls")
    made = []
    for number in range(2):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test {number}")])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        made.append((key, certificate.public_bytes(Encoding.PEM)))
    (key, mine), (_, other) = made
    (folder / "server.pem").write_bytes(
        mine + key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context, mine.decode(), other.decode()


@pytest.mark.parametrize(
    ("host", "sslmode", "trusted", "expected"),
    [
        ("localhost", None, None, True),
        ("localhost", "require", None, True),
        ("localhost", "verify-full", "mine", True),
        ("localhost", "verify-ca", "mine", True),
        ("127.0.0.1", "verify-ca", "mine", True),
        ("127.0.0.1", "verify-full", "mine", False),
        ("localhost", "verify-full", "other", False),
        ("localhost", "verify-ca", "other", False),
        ("localhost", "verify-full", None, False),
    ],
)
@asynchronous
async def test_a_server_with_tls_is_verified_as_far_as_the_credential_asks(
    host: str,
    sslmode: str | None,
    trusted: str | None,
    expected: bool,
    database: str,
    certificates: tuple[ssl.SSLContext, str, str],
) -> None:
    context, mine, other = certificates
    root = {"mine": mine, "other": other, None: None}[trusted]
    async with tcp_server(context) as port:
        fields = {"host": host, "port": port, "user": "noetl", "database": database, "password": CANARY}
        assert await connects(credential(**fields, sslmode=sslmode, sslrootcert=root), "TLS_UNTRUSTED") is expected


# --- the server of the control plane ---------------------------------------------------------------------


@asynchronous
async def test_the_private_server_is_entered_only_as_a_role_made_for_tools(tmp_path: Path, database: str) -> None:
    address = shared_server().address
    folder = str(address.socket_dir)
    linked, hard = tmp_path / "linked", Path(folder).parent / "hard"
    linked.symlink_to(folder)
    hard.mkdir(exist_ok=True)
    hard_file = hard / f".s.PGSQL.{address.port}"
    os.link(f"{folder}/.s.PGSQL.{address.port}", hard_file)
    try:
        for host in (
            folder,
            f"{folder}/",
            f"{folder}/../run",
            str(linked),
            str(hard),
            f"{folder}/.s.PGSQL.{address.port}",
        ):
            for user in ("postgres", "noetl"):
                failure = await failure_of(credential(host=host, user=user, database="noetl"), (folder,))
                assert failure.kind == "auth", host
                assert "noetl_data or noetl_reader" in failure.message
        tool = new_tool((folder, "/nowhere"))
        result = await tool.run(tool_call(login("noetl_data", "noetl_data"), {"command": "SELECT 1 AS x"}))
        await tool.close()
        assert result.failure is None, result.failure
        away = await failure_of(credential(host=str(tmp_path), user="postgres"), (folder,))
        assert away.kind == "db_connection", "another server is nobody's business"
    finally:
        hard_file.unlink()
        hard.rmdir()
