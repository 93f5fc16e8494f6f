"""Credentials that data sources of plain sessions name: found where they are registered, opened with a key that does
not travel."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from pathlib import Path

import pytest

import noetl.spark
from noetl.adapters.crypto.aes import AesGcmCipher
from noetl.adapters.crypto.keys import file_key
from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.registry.credentials import PostgresCredentials
from noetl.adapters.spark.sources.access import Access
from noetl.adapters.spark.sources.postgres.source import PostgresSource
from noetl.core.errors import ToolFailed
from noetl.core.secret import Secret
from noetl.ports.secrets import Credential
from noetl.settings import read_settings
from noetl.wiring.source_credentials import opened_credentials, registered_credentials
from tests.support.databases import connected, empty_database, fresh_database
from tests.support.postgres import shared_server
from tests.support.spark import shared_session
from tests.support.spark_sources import activate, parts_of, read, source

KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture(scope="module")
def control() -> str:
    return fresh_database()


@pytest.fixture(scope="module")
def outer() -> str:
    return empty_database()


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory, control: str, outer: str) -> Path:
    """The key, and a credential that it opens."""
    path = tmp_path_factory.mktemp("keys") / "key"
    path.write_text(KEY)
    asyncio.run(_register(control, path, outer))
    return path


async def _register(control: str, key_file: Path, outer: str) -> None:
    reader = Reader(control, size_max=1)
    await reader.open()
    try:
        credential = Credential(name="warehouse", type="postgres", data=Secret({"dsn": outer}))
        cipher = AesGcmCipher(file_key(key_file))
        sealed = await cipher.seal(credential, tenant_id="default", organization_id="default")
        await PostgresCredentials(reader).put(sealed)
    finally:
        await reader.close()


def test_a_registered_credential_is_opened_where_spark_plans(control: str, key_file: Path, tmp_path: Path) -> None:
    environment = {"NOETL_HOME": str(tmp_path), "NOETL_POSTGRES_DSN": control}
    settings = read_settings({**environment, "NOETL_CREDENTIAL_KEY_FILE": str(key_file)})
    access = Access(resolve=registered_credentials(settings))
    assert parts_of(source(PostgresSource, access, {"auth": "warehouse", "query": "SELECT 7 AS n"})) == [[{"n": 7}]]
    with pytest.raises(ToolFailed, match="there is no credential 'other'"):
        source(PostgresSource, access, {"auth": "other", "query": "SELECT 7 AS n"}).schema()


def test_a_key_in_a_variable_does_not_travel(control: str, outer: str, key_file: Path, tmp_path: Path) -> None:
    environment = {"NOETL_HOME": str(tmp_path), "NOETL_POSTGRES_DSN": control, "NOETL_CREDENTIAL_KEY": KEY}
    settings = read_settings(environment)
    registered = registered_credentials(settings)
    with pytest.raises(ToolFailed, match=r"noetl\.spark\.register\(spark, credentials=\['warehouse'\]\)"):
        registered("auth", "warehouse")
    assert KEY not in repr(replace(registered)) + str([getattr(registered, name) for name in registered.__slots__])
    [opened] = opened_credentials(settings, ["warehouse"])
    assert opened.data.reveal() == {"dsn": outer}


def test_the_database_for_users_of_an_embedded_home_is_built_in(tmp_path: Path) -> None:
    server = shared_server()
    registered = registered_credentials(read_settings({"NOETL_HOME": str(server.home)}))
    data = registered("auth", "noetl_data").data.reveal()
    assert data["db_host"] == str(server.address.socket_dir)
    assert data["db_user"] == "noetl_data"
    nowhere = registered_credentials(read_settings({"NOETL_HOME": str(tmp_path)}))
    with pytest.raises(ToolFailed, match="does not run: start a host"):
        nowhere("auth", "noetl_data")


@pytest.fixture
def environment(control: str, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HOME", tmp_path), ("POSTGRES_DSN", control), ("CREDENTIAL_KEY_FILE", key_file)):
        monkeypatch.setenv(f"NOETL_{name}", str(value))


@pytest.mark.usefixtures("environment")
def test_a_program_holds_one_moment_for_many_reads(outer: str) -> None:
    access = Access(resolve=registered_credentials(read_settings()))
    options = {"auth": "warehouse", "query": "SELECT pg_current_snapshot()::text AS seen"}
    with noetl.spark.postgres_snapshot("warehouse") as snapshot:
        asyncio.run(_change(outer))
        held, again = (parts_of(source(PostgresSource, access, {**options, "snapshot": snapshot})) for _ in range(2))
        assert held == again != parts_of(source(PostgresSource, access, options))


async def _change(dsn: str) -> None:
    async with connected(dsn) as connection:
        await connection.execute("CREATE TABLE later (id int)")


@pytest.mark.usefixtures("environment")
def test_a_registered_credential_is_found_in_the_processes_of_spark() -> None:
    session = shared_session().newSession()
    try:
        noetl.spark.register(session)
        frame = read(session, "noetl_postgres", auth="warehouse", query="SELECT 7 AS n")
        assert [row.n for row in frame.collect()] == [7]
    finally:
        activate(shared_session())


def test_a_variable_may_hold_the_address(outer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALES_DSN", outer)
    access = Access(resolve=registered_credentials(read_settings({"NOETL_HOME": str(tmp_path)})))
    assert parts_of(source(PostgresSource, access, {"dsn_env": "SALES_DSN", "query": "SELECT 1 AS n"})) == [[{"n": 1}]]
    with pytest.raises(ToolFailed, match="MISSING_DSN, which is not set"):
        source(PostgresSource, access, {"dsn_env": "MISSING_DSN", "query": "SELECT 1 AS n"}).schema()
    with pytest.raises(ToolFailed, match="the settings of NoETL are not for data sources"):
        source(PostgresSource, access, {"dsn_env": "NOETL_POSTGRES_DSN", "query": "SELECT 1 AS n"}).schema()
