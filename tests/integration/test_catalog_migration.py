"""A catalog that was filled before versions had scripts, ids and warnings."""

from __future__ import annotations

import datetime
from typing import Any

import asyncpg
import pytest

from noetl.adapters.postgres.migrate import migrate, migrations
from noetl.adapters.postgres.pool import Reader
from noetl.adapters.postgres.registry.catalog import PostgresCatalog
from noetl.core.codec import canonical_json, sha256_hex
from noetl.core.reference import MEDIA_PLAYBOOK, address
from noetl.ports.catalog import NewVersion
from tests.support.aio import asynchronous
from tests.support.databases import connected, fresh_database

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
OLD_INSERT = (
    "INSERT INTO noetl.catalog (tenant_id, organization_id, path, version, sha256, media_type, name, payload)"
    " VALUES ('acme', 'sales', $1, $2, $3, $4, 'name', $5::text::json)"
)


async def insert_as_before(connection: Any, path: str, version: int, text: str) -> None:
    payload = address(text.encode(), media_type=MEDIA_PLAYBOOK, store="db", **OWNER).reference.to_json()
    await connection.execute(
        OLD_INSERT, path, version, sha256_hex(text.encode()), MEDIA_PLAYBOOK, canonical_json(payload)
    )


def content(text: str, catalog_id: int) -> NewVersion:
    payload = address(text.encode(), media_type=MEDIA_PLAYBOOK, store="db", **OWNER)
    return NewVersion(
        catalog_id=catalog_id,
        path="a",
        sha256=payload.reference.sha256,
        media_type=MEDIA_PLAYBOOK,
        name="name",
        payload=payload.reference.to_json(),
        **OWNER,
    )


@pytest.fixture
def where() -> str:
    return fresh_database()


@asynchronous
async def test_old_rows_and_old_code_live_with_the_new_columns(where: str) -> None:
    [last] = [one for one in migrations() if one.name.endswith("_catalog_scripts")]
    async with connected(where) as connection:
        # Back to what the release before had.
        await connection.execute(
            "DROP INDEX noetl.uidx_catalog_version_content;"
            "ALTER TABLE noetl.catalog DROP COLUMN catalog_id, DROP COLUMN scripts, DROP COLUMN scripts_sha256,"
            " DROP COLUMN warnings;"
            "CREATE UNIQUE INDEX uidx_catalog_content ON noetl.catalog (tenant_id, organization_id, path, sha256)"
        )
        await connection.execute("DELETE FROM noetl.migration WHERE number = $1", last.number)
        for version, text in ((1, "one"), (2, "two")):
            await insert_as_before(connection, "a", version, text)
    assert await migrate(where, shard_count=16, now=datetime.datetime.now(datetime.UTC)) == [last.name]
    async with connected(where) as connection:
        # Old code that still runs writes as before, and its versions are told apart as before.
        await insert_as_before(connection, "a", 3, "three")
        with pytest.raises(asyncpg.UniqueViolationError):
            await insert_as_before(connection, "a", 3, "another")
        with pytest.raises(asyncpg.UniqueViolationError):
            await insert_as_before(connection, "a", 4, "three")
    reader = Reader(where, size_max=2)
    await reader.open()
    try:
        catalog = PostgresCatalog(reader)
        entries = await catalog.versions("a", limit=10, **OWNER)
        assert [(one.version, one.scripts, one.scripts_sha256, list(one.warnings)) for one in entries] == [
            (3, {}, "", []),
            (2, {}, "", []),
            (1, {}, "", []),
        ]
        assert all(one.digest == one.sha256 for one in entries)
        assert len({one.catalog_id for one in entries}) == 3
        found = await catalog.find_id(entries[-1].catalog_id, **OWNER)
        assert found is not None
        assert found.version == 1
        # The same text is the same version, with the number that it was given.
        known, is_new = await catalog.register(content("one", 10**15))
        assert (known.version, is_new, known.catalog_id) == (1, False, entries[-1].catalog_id)
        added, is_new = await catalog.register(content("four", 10**15))
        assert (added.version, is_new, added.catalog_id) == (4, True, 10**15)
    finally:
        await reader.close()
