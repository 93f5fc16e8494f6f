"""Carrying out statements on a connection, and the result of a task (dsl §9.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg

from noetl.core.errors import Failure
from noetl.tools.postgres.failures import (
    DRIVER_ERRORS,
    failed,
    statement_failure,
    timeout_failure,
    unreadable_failure,
    unsupported_failure,
)
from noetl.tools.postgres.params import Bound, ParameterType, ParamsInvalid, fitted
from noetl.tools.postgres.request import Request
from noetl.tools.postgres.values import converter, rows_of

# So many rows are made plain before others get a turn.
_ROWS_AT_ONCE = 2_000

Result = dict[str, object]


async def run_all(
    connection: Any, request: Request, results: list[Result], *, until: float, timeout_seconds: float, place: str
) -> Failure | None:
    """Run the statements in order, each in a transaction of its own, until one fails.

    What was carried out is in `results`, whatever happens later."""
    timer = asyncio.timeout_at(until)
    try:
        async with timer:
            if request.search_path is not None:
                await connection.execute(f"SET search_path TO {request.search_path}")
            for bound in request.statements:
                result = await run_one(connection, bound)
                results.append(result)
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
    """Run one statement; raises what the driver raises, or ParamsInvalid."""
    # Unnamed statements: their texts rarely come twice, and a pooler between us and the server can take them.
    statement = await connection.prepare(bound.text)
    values = bound.values
    types = statement.get_parameters()
    if types or values:
        fitting, is_changed = fitted(bound, [_parameter_type(type_) for type_ in types])
        if is_changed:
            statement = await connection.prepare(fitting.text)
        values = fitting.values
    records = await statement.fetch(*values)
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


def value_of(results: list[Result], *, is_failed: bool) -> Result | None:
    """The result of the task: the last statement's at the top, and each one's own.  Rows are shared, not copied."""
    if is_failed and not results:
        return None
    last = {} if is_failed else results[-1]
    return {
        **last,
        "status": "error" if is_failed else "success",
        "statement_count": len(results),
        **{f"command_{number}": result for number, result in enumerate(results)},
    }
