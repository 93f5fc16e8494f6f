"""The way of rows into a table: tasks copy them into a stage, and one transaction moves them from there.

A book beside the stages knows every write.  What a task stages has a name of its own, and the commit moves what
its messages name: a task that ran twice, or half, adds nothing.  The commit is in the book, in the same transaction, so
it can be asked for again."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from noetl.adapters.spark.sources.postgres.options import WriteOptions, wrong
from noetl.adapters.spark.sources.postgres.statements import identifier, identifiers, statement
from noetl.clients.postgres.failures import DRIVER_ERRORS
from noetl.core.limits import SOURCE_WRITES_KEPT_DAYS

TASK = "_noetl_task"
BOOK = "noetl_writes"
_TWICE_IN_ONE_STATEMENT = "21000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One run of one write."""

    run_id: str
    """Of this run alone."""
    write_id: str
    """Of the write into this table, however often it is run: one of its runs is committed."""
    schema: str
    table: str
    columns: tuple[str, ...]
    is_overwriting: bool
    options: WriteOptions

    @property
    def target(self) -> str:
        return f"{identifier(self.schema)}.{identifier(self.table)}"

    @property
    def stage_schema(self) -> str:
        return self.options.stage_schema or self.schema

    @property
    def stage_name(self) -> str:
        return f"noetl_stage_{hashlib.sha256(self.run_id.encode()).hexdigest()[:24]}"

    @property
    def stage(self) -> str:
        return f"{identifier(self.stage_schema)}.{identifier(self.stage_name)}"

    @property
    def book(self) -> str:
        return f"{identifier(self.stage_schema)}.{identifier(BOOK)}"


async def is_committed(connection: Any, write: Write) -> bool:
    if not await connection.fetchval(_sql("has_book"), write.book):
        return False
    return bool(await connection.fetchval(_sql("is_committed", book=write.book), write.write_id, write.target))


async def open_stage(connection: Any, write: Write) -> None:
    """Make the stage, or say that it is in use.  Many tasks do this at once."""
    await _ensure_book(connection, write)
    async with connection.transaction():
        await _lock(connection, write)
        if await connection.fetchval(_sql("is_committed", book=write.book), write.write_id, write.target):
            raise wrong(f"this write into {write.target} is committed already: a late task adds nothing", "WRITE_DONE")
        row = (write.run_id, write.write_id, write.target, write.stage_name)
        await connection.execute(_sql("open_write", book=write.book), *row)
        if await connection.fetchval(_sql("has_book"), write.stage):
            return
        columns, task = identifiers(write.columns), identifier(TASK)
        names = {"stage": write.stage, "columns": columns, "task": task, "target": write.target}
        await connection.execute(_sql("make_stage", **names))
        for name in write.options.key:
            await connection.execute(_sql("require_key", stage=write.stage, column=identifier(name)))


async def copy_in(connection: Any, write: Write, rows: AsyncIterator[bytes]) -> None:
    """All rows of one try of a task, or none."""
    await connection.copy_to_table(
        write.stage_name, schema_name=write.stage_schema, columns=[*write.columns, TASK], source=rows, format="csv"
    )
    await connection.execute(_sql("touch_write", book=write.book), write.run_id)


async def commit(connection: Any, write: Write, staged: Mapping[str, int]) -> bool:
    """Move what was staged: names of tries, and how many rows each has.  False when this write is committed already.

    It may be repeated after any failure, also one that came instead of the answer to a commit."""
    await _ensure_book(connection, write)
    async with connection.transaction():
        await _lock(connection, write)
        if await connection.fetchval(_sql("is_committed", book=write.book), write.write_id, write.target):
            await _discard(connection, write)
            return False
        tasks = sorted(staged)
        await _check_staged(connection, write, staged)
        if write.is_overwriting:
            name = "truncate_target" if write.options.is_truncating else "clear_target"
            await connection.execute(_sql(name, target=write.target))
        if tasks:
            await _move(connection, write, tasks)
        await connection.execute(_sql("drop_stage", stage=write.stage))
        row = (write.run_id, write.write_id, write.target, write.stage_name, sum(staged.values()))
        await connection.execute(_sql("close_write", book=write.book), *row)
    return True


async def discard(connection: Any, write: Write) -> None:
    """Leave nothing of a run that is not committed.  A task that begins late comes before this or behind it, and not
    between the two halves: then its stage would be in no book, and nobody would sweep it."""
    async with connection.transaction():
        await _lock(connection, write)
        await _discard(connection, write)


async def sweep(connection: Any, write: Write) -> None:
    """Remove what dead runs have left in this schema, as far as this role may.  A run that was only very slow fails at
    its commit, and has written nothing."""
    seconds = write.options.stale_after_seconds
    for row in await connection.fetch(_sql("left_over", book=write.book), seconds):
        stage = f"{identifier(write.stage_schema)}.{identifier(row['stage'])}"
        try:
            async with connection.transaction():
                await connection.execute(_sql("drop_stage", stage=stage))
                await connection.execute(_sql("forget_write", book=write.book), row["run_id"])
        except DRIVER_ERRORS:
            if connection.is_closed():
                raise
    await connection.execute(_sql("forget_old", book=write.book), SOURCE_WRITES_KEPT_DAYS)


async def _ensure_book(connection: Any, write: Write) -> None:
    if await connection.fetchval(_sql("has_book"), write.book):
        return
    async with connection.transaction():
        await connection.fetchval(_sql("lock"), f"noetl book {write.stage_schema}")
        await connection.execute(_sql("make_book", book=write.book))
        await connection.execute(_sql("make_book_key", book=write.book))


async def _lock(connection: Any, write: Write) -> None:
    """Its tasks that begin and its commits come one after the other; other writes wait for nobody here."""
    await connection.fetchval(_sql("lock"), f"noetl write {write.stage_schema} {write.target} {write.write_id}")


async def _discard(connection: Any, write: Write) -> None:
    await connection.execute(_sql("drop_stage", stage=write.stage))
    if await connection.fetchval(_sql("has_book"), write.book):
        await connection.execute(_sql("forget_write", book=write.book), write.run_id)


async def _check_staged(connection: Any, write: Write, staged: Mapping[str, int]) -> None:
    if not staged:
        return
    counts: dict[str, int] = {}
    if await connection.fetchval(_sql("has_book"), write.stage):
        text = _sql("counted", stage=write.stage, task=identifier(TASK))
        counts = {row["task"]: row["count"] for row in await connection.fetch(text, sorted(staged))}
    if any(counts.get(task, 0) != count for task, count in staged.items()):
        lost = "the server was restarted, or the stage was taken for one of a dead run"
        raise wrong(f"staged rows of {write.target} are gone ({lost}): nothing was written, run it again", "STAGE_LOST")


async def _move(connection: Any, write: Write, tasks: list[str]) -> None:
    names = {
        "target": write.target,
        "columns": identifiers(write.columns),
        "stage": write.stage,
        "task": identifier(TASK),
    }
    options = write.options
    if options.key:
        names["key"] = identifiers(options.key)
    changed = [name for name in write.columns if name not in options.key]
    if not options.key:
        text = _sql("move", **names)
    elif options.is_updating and changed:
        changes = ", ".join(_sql("change", column=identifier(name)) for name in changed)
        text = _sql("move_over", **names, changes=changes)
    else:
        text = _sql("move_new", **names)
    try:
        await connection.execute(text, tasks)
    except DRIVER_ERRORS as error:
        if getattr(error, "sqlstate", None) == _TWICE_IN_ONE_STATEMENT:
            key = ", ".join(options.key)
            raise wrong(f"rows have the same key ({key}) twice: drop duplicates first", "KEY_TWICE") from error
        raise


def _sql(name: str, **places: str) -> str:
    return statement("writing.sql", name, **places)
