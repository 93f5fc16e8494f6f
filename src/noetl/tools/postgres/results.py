"""Carrying out statements on a connection, and the result of a task (dsl §9.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from noetl.clients.postgres.failures import (
    DRIVER_ERRORS,
    failed,
    statement_failure,
    timeout_failure,
    unreadable_failure,
    unsupported_failure,
)
from noetl.core.errors import Failure
from noetl.ports.tool import Place, TableSink
from noetl.tools.postgres.params import ParameterType, fitted
from noetl.tools.postgres.request import Request
from noetl.tools.postgres.tables.bounds import FIRST_ROWS, is_read_in_pieces
from noetl.tools.postgres.tables.pieces import AtOnce, Pieces, ThroughClosedPortal, ThroughPortal, is_little
from noetl.tools.postgres.values import converter, rows_of
from noetl.tools.sql.params import Bound, ParamsInvalid

# So many rows are made plain before others get a turn.
_ROWS_AT_ONCE = 2_000

Result = dict[str, object]


class Results:
    """What was carried out, statement by statement, and the references of the rows that are stored already.

    Without a place for tables rows are held.  `is_row` says that this is one of thousands of equal calls: then few rows
    are held, because a table for each of them would cost more than they do."""

    def __init__(self, tables: TableSink | None = None, *, is_row: bool = False) -> None:
        self.tables = tables
        self.is_row = is_row
        self.all: list[Result] = []
        self.references: dict[int, Mapping[str, object]] = {}

    def __len__(self) -> int:
        return len(self.all)

    def value(self, *, is_failed: bool) -> Result | None:
        """The result of the task: the last statement's at the top, and each one's own.  Rows are shared, not copied."""
        if is_failed and not self.all:
            return None
        last = {} if is_failed else self.all[-1]
        return {
            **last,
            "status": "error" if is_failed else "success",
            "statement_count": len(self.all),
            **{f"command_{number}": result for number, result in enumerate(self.all)},
        }

    def parts(self, *, is_failed: bool) -> dict[Place, Mapping[str, object]]:
        """Where rows belong in the value.  The last ones have two places and are stored once."""
        found: dict[Place, Mapping[str, object]] = {
            (f"command_{number}", "rows"): reference for number, reference in self.references.items()
        }
        last = None if is_failed else self.references.get(len(self.all) - 1)
        return found if last is None else {("rows",): last, **found}


async def run_all(
    connection: Any, request: Request, results: Results, *, until: float, timeout_seconds: float, place: str
) -> Failure | None:
    """Run the statements in order, each in a transaction of its own, until one fails.

    What was carried out is in `results`, whatever happens later."""
    timer = asyncio.timeout_at(until)
    try:
        async with timer:
            if request.search_path is not None:
                await connection.execute(f"SET search_path TO {request.search_path}")
            for bound in request.statements:
                if results.tables is None:
                    results.all.append(await run_one(connection, bound))
                else:
                    await _run_kept(connection, bound, results, results.tables)
    except ParamsInvalid as error:
        return failed("config", f"statement {len(results)}: {error}").failure
    except asyncpg.OutdatedSchemaCacheError as error:
        # A composite type was changed after this connection first saw it; the driver has forgotten it by now.
        return unreadable_failure(error, number=len(results))
    except asyncpg.UnsupportedClientFeatureError as error:
        return unsupported_failure(error, number=len(results))
    except DRIVER_ERRORS as error:
        if timer.expired():
            return timeout_failure(timeout_seconds, number=len(results))
        return statement_failure(error, place, number=len(results))
    except (ValueError, OverflowError, RecursionError) as error:
        return unreadable_failure(error, number=len(results))
    if connection.is_in_transaction():
        message = "the SQL leaves a transaction open, which was rolled back: end it with COMMIT, or leave BEGIN out"
        return failed("config", message).failure
    return None


async def run_one(connection: Any, bound: Bound) -> Result:
    """Run one statement and hold its rows; raises what the driver raises, or ParamsInvalid."""
    statement, values = await _prepared(connection, bound)
    return await _held_result(statement, await statement.fetch(*values))


async def _run_kept(connection: Any, bound: Bound, results: Results, tables: TableSink) -> None:
    """Run one statement and store its rows as they come.  After one that failed, whoever takes the connection back ends
    its transaction."""
    is_in_pieces = is_read_in_pieces(bound.text)
    is_own = is_in_pieces and not connection.is_in_transaction()
    if is_own:
        # Before the statement is prepared: a simple query makes the server forget an unnamed one.
        await connection.execute("BEGIN")
    statement, values = await _prepared(connection, bound)
    attributes = statement.get_attributes()
    pieces: Pieces
    if is_in_pieces and attributes:
        pieces = (ThroughPortal if is_own else ThroughClosedPortal)(statement, values)
    else:
        pieces = AtOnce(statement, values)
    records = await pieces.next(FIRST_ROWS)
    if not attributes or (results.is_row and pieces.is_done and is_little(records)):
        if is_own:
            await connection.execute("COMMIT")
        results.all.append(await _held_result(statement, records))
        return
    from noetl.tools.postgres.tables.taking import Taken  # noqa: PLC0415 - pyarrow takes a third of a second

    with Taken(attributes) as taken:
        unreadable: Exception | None = None
        try:
            await taken.take(records, pieces)
        except (ValueError, OverflowError, RecursionError) as error:
            unreadable = error
        if is_own:
            # Also when the rows cannot be read: what the statement did was done.
            await connection.execute("COMMIT")
        if unreadable is not None:
            raise unreadable
        results.references[len(results)] = await taken.keep(tables)
    columns = [attribute.name for attribute in attributes]
    results.all.append({"status": "success", "rows": None, "row_count": taken.row_count, "columns": columns})


async def _prepared(connection: Any, bound: Bound) -> tuple[Any, Sequence[object]]:
    """The statement and its values."""
    # Unnamed statements: their texts rarely come twice, and a pooler between us and the server can take them.
    statement = await connection.prepare(bound.text)
    types = statement.get_parameters()
    if not types and not bound.values:
        return statement, ()
    fitting, is_changed = fitted(bound, [_parameter_type(type_) for type_ in types])
    return await connection.prepare(fitting.text) if is_changed else statement, fitting.values


async def _held_result(statement: Any, records: Sequence[Any]) -> Result:
    attributes = statement.get_attributes()
    if not attributes:
        affected = _affected(statement.get_statusmsg())
        return {"status": "success", "row_count": affected, "affected_rows": affected}
    columns = [attribute.name for attribute in attributes]
    rows = await _rows(records, columns, [converter(attribute.type) for attribute in attributes])
    return {"status": "success", "rows": rows, "row_count": len(rows), "columns": columns}


def _parameter_type(type_: Any) -> ParameterType:
    return ParameterType(type_.name, type_.schema, type_.kind == "array")


async def _rows(records: Sequence[Any], columns: list[str], converters: list[Any]) -> list[dict[str, object]]:
    rows = rows_of(records[:_ROWS_AT_ONCE], columns, converters)
    for start in range(_ROWS_AT_ONCE, len(records), _ROWS_AT_ONCE):
        await asyncio.sleep(0)
        rows += rows_of(records[start : start + _ROWS_AT_ONCE], columns, converters)
    return rows


def _affected(tag: str | None) -> int:
    """The number at the end of a command tag such as `INSERT 0 5`."""
    last = (tag or "").rpartition(" ")[2]
    return int(last) if last.isdigit() else 0
