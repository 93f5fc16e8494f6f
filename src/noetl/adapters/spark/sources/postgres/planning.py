"""A read cut into partitions: ranges of blocks or of a column, that have every row in exactly one of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspark.sql.datasource import InputPartition

from noetl.adapters.spark.sources.postgres.describing import described, relation
from noetl.adapters.spark.sources.postgres.options import AUTOMATIC, ReadOptions, wrong
from noetl.adapters.spark.sources.postgres.statements import identifier, literal, statement
from noetl.core.limits import SOURCE_PARTITION_BYTES, SOURCE_PARTITIONS_MAX

EVERYTHING = "true"
_WITH_BLOCKS = frozenset(("r", "m", "p"))
_NUMBERS = frozenset(("int2", "int4", "int8", "numeric", "oid"))
_FRACTIONS = frozenset(("float4", "float8"))
_TIMES = frozenset(("date", "timestamp", "timestamptz"))


@dataclass
class RowRange(InputPartition):
    """The rows of one partition, as a condition."""

    source: str
    condition: str

    def __init__(self, source: str, condition: str) -> None:
        super().__init__(condition)
        self.source = source
        self.condition = condition


async def planned(connection: Any, options: ReadOptions) -> list[RowRange]:
    """Raises ToolFailed."""
    if options.table is None:
        assert options.query is not None
        source = statement("reading.sql", "query_source", query=options.query)
    else:
        found = await relation(connection, options.table)
        source = found["name"]
        if options.partition_column is None:
            return [RowRange(source, condition) for condition in _blocks(found, options)]
    if options.partition_column is None:
        return [RowRange(source, EVERYTHING)]
    conditions = await _ranges(connection, options, source)
    return [RowRange(source, condition) for condition in conditions]


def _blocks(found: Any, options: ReadOptions) -> list[str]:
    """Ranges of blocks.  The first and the last are open, so that rows which the table gets later are in one too."""
    if found["kind"] not in _WITH_BLOCKS:
        if options.partitions > 1:
            raise wrong(f"{found['name']} is a view or foreign: its partitions need partition_column")
        return [EVERYTHING]
    blocks = int(found["blocks"])
    count = options.partitions
    if count == AUTOMATIC:
        count = min(SOURCE_PARTITIONS_MAX, -(-blocks * int(found["block_bytes"]) // SOURCE_PARTITION_BYTES))
    bounds = sorted({blocks * number // count for number in range(1, count)} - {0})
    ends = [literal(f"({bound},0)") for bound in bounds]
    lows = [None, *(statement("reading.sql", "blocks_from", low=end) for end in ends)]
    highs = [*(statement("reading.sql", "blocks_before", high=end) for end in ends), None]
    return [" AND ".join(filter(None, pair)) or EVERYTHING for pair in zip(lows, highs, strict=True)]


async def _ranges(connection: Any, options: ReadOptions, source: str) -> list[str]:
    """Ranges of a column.  Rows where it is null are in the first one."""
    name = options.partition_column
    assert name is not None
    column = next((one for one in await described(connection, options) if one.name == name), None)
    if column is None:
        raise wrong(f"partition_column {name!r} is no column of what is read")
    quoted = identifier(name)
    if column.type in _NUMBERS:
        text = statement("reading.sql", "bounds_of_numbers", column=quoted, source=source)
    elif column.type in _FRACTIONS:
        text = statement("reading.sql", "bounds_of_fractions", column=quoted, source=source)
    elif column.type in _TIMES:
        text = statement("reading.sql", "bounds_of_times", column=quoted, source=source, type=column.type)
    else:
        raise wrong(f"partition_column {name!r} must be a number, date or timestamp, not {column.title}")
    # The ends of a query are found by running it, and a read changes nothing.
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        rows = await connection.fetch(text, max(options.partitions, 1))
    bounds = [f"{literal(row['bound'])}::{column.type}" for row in rows]
    if not bounds:
        return [EVERYTHING]
    inner = [f"{quoted} >= {low} AND {quoted} < {high}" for low, high in pairwise(bounds)]
    return [f"({quoted} < {bounds[0]} OR {quoted} IS NULL)", *inner, f"{quoted} >= {bounds[-1]}"]
