"""A commit of the ledger is on the disk when it returns.  Only what can be made again may be late."""

from __future__ import annotations

from pathlib import Path

import pytest

from noetl.adapters.postgres.pool import Writer
from noetl.adapters.postgres.statements import Statement
from tests.support.aio import asynchronous
from tests.support.databases import connected, fresh_database
from tests.support.engine import running_engine

SETTING = Statement("SELECT current_setting('synchronous_commit') AS is_waited_for", ())


@pytest.fixture(scope="module")
def address() -> str:
    return fresh_database()


async def is_waited_for(writer: Writer) -> str:
    """What the server waits for before it answers a commit of this connection."""
    try:
        return str((await writer.fetch(SETTING, {}))[0]["is_waited_for"])
    finally:
        await writer.close()


@pytest.mark.parametrize(("is_derived", "expected"), [(False, "on"), (True, "off")])
@asynchronous
async def test_only_what_can_be_made_again_is_not_waited_for(address: str, is_derived: bool, expected: str) -> None:
    assert await is_waited_for(Writer(address, is_derived=is_derived)) == expected


@asynchronous
async def test_a_database_that_is_set_to_be_careless_changes_nothing(address: str) -> None:
    async with connected(address) as connection:
        await connection.execute("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
    try:
        assert await is_waited_for(Writer(address)) == "on"
    finally:
        async with connected(address) as connection:
            await connection.execute("ALTER ROLE CURRENT_USER RESET synchronous_commit")


@asynchronous
async def test_no_ledger_of_a_server_writes_as_if_it_could_be_made_again(address: str, tmp_path: Path) -> None:
    async with running_engine(address, tmp_path) as running:
        engine = running.engine
        for ledger in (engine.ledger, engine.serving._ledger):
            assert isinstance(ledger._writer, Writer)
            assert await is_waited_for(ledger._writer) == "on"
