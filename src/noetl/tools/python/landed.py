"""Files that children leave for the worker: tables, and results that are too large for the connection.

A name is not believed before it was checked: user code can write to the connection of its child."""

from __future__ import annotations

import asyncio
import glob
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

from noetl.core.codec import parse_json
from noetl.core.errors import SECRET_IN_BODY, Failure, ToolFailed
from noetl.core.limits import PYTHON_ROWS_WITH_INPUT_MAX
from noetl.core.playbook.reading.kinds import TABLE_MODES
from noetl.core.results.index import Node, index_from_document
from noetl.core.results.parts import placed
from noetl.ports.data.tables import LandedTable, LandingPlace, OpenTable
from noetl.ports.tool import Place, TableSink, ToolCall
from noetl.tools.patience import patiently
from noetl.tools.python.pool import TaskOutcome

_NAME = re.compile(r"[0-9]{1,10}-[0-9]{1,12}")
_MAKES_TABLES = re.compile(r"arrow|pandas|polars|duckdb|DataFrame|spark")
EPOCH_DIGITS = 12
"""Of the number of a shared file, behind the number of its process."""
_READ_BYTES = 1024 * 1024


class LandingFolder:
    """A folder of this worker, gone when it ends.  One that a killed worker left is swept by the next."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._path: Path | None = None
        self._in_hand: set[str] = set()

    @property
    def path(self) -> Path:
        if self._path is None:
            if self._root is not None:
                self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
                _sweep(self._root)
            self._path = Path(tempfile.mkdtemp(prefix=f"landing-{os.getpid()}-", dir=self._root))
        return self._path

    def forget(self, pid: int, shared: LandingPlace | None) -> None:
        """Remove what a child has left that ended before it could say so."""
        if not pid:
            return
        left = list(self._path.glob(f"{pid}-*")) if self._path is not None else []
        if shared is not None:
            left += shared.folder.glob(f"{glob.escape(shared.prefix)}{pid}{'[0-9]' * EPOCH_DIGITS}")
        for path in left:
            # Rows that the child answered before may still be on their way into a store.
            if path.name not in self._in_hand:
                _remove(path)

    @contextmanager
    def in_hand(self, entries: Sequence[Any]) -> Iterator[None]:
        """While files that a child has named are being stored."""
        names = [entry["file"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("file"), str)]
        self._in_hand.update(names)
        try:
            yield
        finally:
            self._in_hand.difference_update(names)

    def close(self) -> None:
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            self._path = None


def _remove(path: Path) -> None:
    """A file, or whatever user code has put in its place."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        shutil.rmtree(path, ignore_errors=True)


def _sweep(root: Path) -> None:
    for path in root.glob("landing-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(path, ignore_errors=True)


# --- out -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def may_make_tables(code: str) -> bool:
    """Whether it is worth to look for a place in shared memory; tables of other code are copied there."""
    return _MAKES_TABLES.search(code) is not None


async def kept_parts(
    folder: Path, shared: LandingPlace | None, outcome: TaskOutcome, call: ToolCall
) -> tuple[object, dict[Place, Mapping[str, object]]]:
    """Store what a child has left: the value, and references by their places in it.  Nothing stays in the folder."""
    entries = [_checked(folder, shared, entry) for entry in outcome.landed]
    parts: dict[Place, Mapping[str, object]] = {}
    try:
        for place, path, index in entries:
            if index is None:
                offset = shared.offset if shared is not None and path.parent == shared.folder else 0
                landed = LandedTable(path=path, offset=offset)
                parts[place] = await patiently(partial(_tables(call).keep, landed))
                continue
            reference = await _kept_json(path, index, call)
            if reference is None:
                return parse_json(b"".join([chunk async for chunk in _chunks(path)])), {}
            parts[place] = reference
    finally:
        for _, path, _ in entries:
            _remove(path)
    return outcome.value, parts


def _tables(call: ToolCall) -> TableSink:
    assert call.tables is not None, "nothing lands for a call without a sink"
    return call.tables


async def _kept_json(path: Path, index: Node, call: ToolCall) -> Mapping[str, object] | None:
    """The reference of a plain value; None for one that holds a secret: it goes the long way, on which it is
    scrubbed."""
    sink = call.sink
    assert sink is not None, "nothing lands for a call without a sink"
    try:
        return await patiently(lambda: sink.keep_json(_chunks(path), index=partial(_itself, index)))
    except ToolFailed as error:
        if error.failure.code != SECRET_IN_BODY:
            raise
        return None


def _itself(index: Node) -> Node:
    return index


def _checked(folder: Path, shared: LandingPlace | None, entry: Any) -> tuple[Place, Path, Node | None]:
    path = folder
    try:
        place, name, kind = entry["place"], entry["file"], entry["kind"]
        is_good = isinstance(place, list) and all(isinstance(key, str) for key in place) and isinstance(name, str)
        if entry.get("is_shared"):
            is_good = is_good and shared is not None and _is_shared(name, shared)
            path = shared.folder if shared is not None else folder
        else:
            is_good = is_good and _NAME.fullmatch(name) is not None
        is_good = is_good and kind in ("table", "json") and not (path / name).is_symlink()
        index = index_from_document(entry["index"]) if kind == "json" and is_good else None
        is_good = is_good and (kind == "table" or index is not None)
    except (KeyError, TypeError, ValueError, RecursionError):
        is_good = False
    if not is_good:
        message = "the answer of the Python process is wrong: it has another shape"
        raise ToolFailed(Failure(kind="python", code="RESULT_INVALID", message=message))
    return tuple(place), path / name, index


def _is_shared(name: str, place: LandingPlace) -> bool:
    epoch = name.removeprefix(place.prefix)
    return name.startswith(place.prefix) and epoch.isascii() and epoch.isdigit() and len(epoch) <= EPOCH_DIGITS + 7


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(_opened, path)
    with file:
        while chunk := await asyncio.to_thread(file.read, _READ_BYTES):
            yield chunk


def _opened(path: Path) -> BinaryIO:
    """A plain file and nothing else: to wait for a pipe of user code would take a thread for good."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        message = "the answer of the Python process is wrong: what it names is no file"
        raise ToolFailed(Failure(kind="python", code="RESULT_INVALID", message=message))
    return os.fdopen(descriptor, "rb")


# --- in --------------------------------------------------------------------------------------------------


class GivenTables:
    """The tables of a call, open for as long as it runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: list[Path] = []
        self._open: list[OpenTable] = []

    async def prepare(self, call: ToolCall) -> tuple[Mapping[str, object], Mapping[str, object] | None]:
        """The input as code gets it, and where the tables in it are: by `tables` as rows, which are plain data, or in
        columns, which are mapped."""
        mode = call.fields.get("tables", "rows")
        if mode not in TABLE_MODES:
            message = f"python: tables must be one of {', '.join(TABLE_MODES)}, not {mode!r}"
            raise ToolFailed(Failure(kind="config", code="FIELD_INVALID", message=message))
        if not call.given_tables:
            return call.input, None
        opened = {place: await self._opened(given) for place, given in call.given_tables.items()}
        if mode == "rows":
            return await self._rows(call, opened)
        files = [(place, await table.looked(table.mapped)) for place, table in opened.items()]
        given = [[list(place), str(file.path), file.offset, file.length] for place, file in files]
        return call.input, {"as": mode, "given": given}

    async def _rows(
        self, call: ToolCall, opened: Mapping[Place, OpenTable]
    ) -> tuple[Mapping[str, object], Mapping[str, object] | None]:
        """Few rows go with the input.  Many are written to a file a few at a time: nobody holds them all but the code
        that asks for them."""
        plain: Any = call.input
        given = []
        for place, table in opened.items():
            if table.row_count <= PYTHON_ROWS_WITH_INPUT_MAX:
                plain = placed(plain, {place: await table.looked(table.rows, 0, table.row_count)})
                continue
            path = self._folder / f"given-{len(self._written)}-{id(self)}"
            self._written.append(path)
            await table.looked(_write_rows, table, path)
            given.append([list(place), str(path), 0, 0])
        return plain, {"as": "rows", "given": given} if given else None

    async def _opened(self, given: Any) -> OpenTable:
        table: OpenTable = await given.open()
        self._open.append(table)
        return table

    def close(self) -> None:
        for table in self._open:
            table.close()
        for path in self._written:
            path.unlink(missing_ok=True)


def _write_rows(table: OpenTable, path: Path) -> None:
    """All rows as one JSON list."""
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    with path.open("x", encoding="utf-8") as file:
        for first in range(0, table.row_count, PYTHON_ROWS_WITH_INPUT_MAX):
            rows = table.rows(first, min(PYTHON_ROWS_WITH_INPUT_MAX, table.row_count - first))
            file.write(("," if first else "[") + encode(rows)[1:-1])
        file.write("]")
