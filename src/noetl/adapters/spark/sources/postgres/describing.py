"""What the server says about a table or a query."""

from __future__ import annotations

from typing import Any

from noetl.adapters.spark.sources.postgres.options import ReadOptions, wrong
from noetl.adapters.spark.sources.postgres.statements import identifier, statement
from noetl.adapters.spark.sources.postgres.types import Column, column_of, column_of_attribute
from noetl.clients.postgres.failures import DRIVER_ERRORS

# Classes of SQLSTATE of a text that is no name in the sense of SQL, or names another database.
_NO_NAME = frozenset(("0A", "22", "3F", "42"))


async def described(connection: Any, options: ReadOptions) -> list[Column]:
    """The columns of what is read.  Raises ToolFailed when there is no such table."""
    if options.table is not None:
        return await columns_of(connection, await relation_name(connection, options.table))
    assert options.query is not None
    transaction = connection.transaction()
    await transaction.start()
    try:
        # Fetched, since what is only executed may be several statements.
        await connection.fetch(statement("reading.sql", "view_of_query", query=options.query))
        return await columns_of(connection, "noetl_query")
    except DRIVER_ERRORS:
        if connection.is_closed():
            raise
    finally:
        await transaction.rollback()
    # A standby makes no views, and not every role may.  If the query itself is wrong, this says so.
    prepared = await connection.prepare(options.query)
    return [column_of_attribute(attribute) for attribute in prepared.get_attributes()]


async def columns_of(connection: Any, name: str) -> list[Column]:
    rows = await connection.fetch(statement("reading.sql", "describe_relation"), name)
    return [column_of(row) for row in rows]


async def relation_name(connection: Any, table: str) -> str:
    """The name as the server writes it.  Raises ToolFailed."""
    return str((await relation(connection, table))["name"])


async def relation(connection: Any, table: str) -> Any:
    """Name, kind and size of a table, given as SQL writes it or as it is."""
    for spelling in dict.fromkeys((table, ".".join(identifier(part) for part in table.split(".", 1)))):
        try:
            found = await connection.fetchrow(statement("reading.sql", "relation"), spelling)
        except DRIVER_ERRORS as error:
            if str(getattr(error, "sqlstate", None))[:2] not in _NO_NAME:
                raise
            continue
        if found is not None:
            return found
    raise wrong(f"there is no table {table!r}, or this role may not see it", "TABLE_UNKNOWN")
