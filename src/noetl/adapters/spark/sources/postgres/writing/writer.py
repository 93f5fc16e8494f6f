"""The writer that Spark plans, sends to its tasks and asks for the commit."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from noetl.adapters.spark.sources.postgres.connecting import Server
from noetl.adapters.spark.sources.postgres.describing import columns_of, relation
from noetl.adapters.spark.sources.postgres.options import WriteOptions, wrong
from noetl.adapters.spark.sources.postgres.statements import statement
from noetl.adapters.spark.sources.postgres.writing import staging
from noetl.adapters.spark.sources.postgres.writing.checking import Bound, bounds_of, check_values
from noetl.adapters.spark.sources.postgres.writing.encoding import encoded
from noetl.adapters.spark.sources.postgres.writing.fitting import check_fit
from noetl.adapters.spark.sources.telling import told
from noetl.core.errors import ToolFailed
from noetl.core.limits import SOURCE_COMMIT_TRIES_MAX

_TABLES = frozenset(("r", "p"))


@dataclass
class Staged(WriterCommitMessage):
    """What one try of a task has staged."""

    task: str
    row_count: int


async def planned_writer(
    server: Server, options: WriteOptions, struct: StructType, *, is_overwriting: bool
) -> PostgresWriter:
    """Compare the columns with the target.  Nothing is written here: Spark also plans what it only explains."""
    async with server.connection() as connection:
        found = await relation(connection, options.table)
        target = await connection.fetchrow(statement("writing.sql", "target"), found["name"])
        if target["kind"] not in _TABLES:
            raise wrong(f"{found['name']} is no table: rows are written into tables only")
        columns = await columns_of(connection, found["name"])
        check_fit(struct, columns, options.key, found["name"])
        if options.key:
            wanted = sorted(options.key)
            if not await connection.fetchval(statement("writing.sql", "has_unique_key"), found["name"], wanted):
                key = ", ".join(options.key)
                raise wrong(f"{found['name']} has no unique index on exactly {key}, which key names")
        run_id = uuid.uuid4().hex
        write = staging.Write(
            run_id=run_id,
            write_id=options.write_id or run_id,
            schema=target["schema"],
            table=target["name"],
            columns=tuple(struct.fieldNames()),
            is_overwriting=is_overwriting,
            options=options,
        )
        is_done = options.write_id is not None and await staging.is_committed(connection, write)
    return PostgresWriter(server, write, bounds_of(struct, columns, options.key), is_done=is_done)


class PostgresWriter(DataSourceArrowWriter):
    def __init__(self, server: Server, write: staging.Write, bounds: Sequence[Bound], *, is_done: bool = False) -> None:
        self._server = server
        self._write = write
        self._bounds = bounds
        self._is_done = is_done

    @told
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task.  In the case of a failure none of them is there."""
        message = Staged(task=uuid.uuid4().hex, row_count=0)
        if not self._is_done:
            asyncio.run(self._stage(iterator, message))
        return message

    @told
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._is_done:
            return
        found = [message for message in messages if isinstance(message, Staged)]
        staged = {message.task: message.row_count for message in found if message.row_count}
        asyncio.run(self._commit(staged))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Best effort: what stays is known by the book, and goes with a later write."""
        del messages
        with suppress(ToolFailed):
            asyncio.run(self._discard())

    async def _stage(self, iterator: Iterator[pa.RecordBatch], message: Staged) -> None:
        first = next((batch for batch in iterator if batch.num_rows), None)
        if first is None:
            return

        async def rows() -> AsyncIterator[bytes]:
            batch: Any = first
            while batch is not None:
                check_values(batch, self._bounds, self._write.target)
                message.row_count += batch.num_rows
                yield encoded(batch, task=message.task)
                batch = next(iterator, None)

        async with self._server.connection() as connection:
            await staging.open_stage(connection, self._write)
            await staging.copy_in(connection, self._write, rows())

    async def _commit(self, staged: dict[str, int]) -> None:
        for number in range(1, SOURCE_COMMIT_TRIES_MAX + 1):
            try:
                async with self._server.connection() as connection:
                    await staging.commit(connection, self._write, staged)
                break
            except ToolFailed as error:
                # The answer may have been lost behind a commit: the book knows.
                if error.failure.kind != "db_connection" or number == SOURCE_COMMIT_TRIES_MAX:
                    raise
        with suppress(ToolFailed):
            async with self._server.connection() as connection:
                await staging.sweep(connection, self._write)

    async def _discard(self) -> None:
        async with self._server.connection() as connection:
            await staging.discard(connection, self._write)
