"""What does not go through the connection: tables in both directions, and results that are too large for it.

Tables come in as files that are mapped and go out as files in a folder of the worker, with what the worker must know
about them in the answer.  Arrow is loaded when the first table is touched: most code has none."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from noetl.core import limits
from noetl.core.errors import Failure, ToolFailed
from noetl.core.results.index import IndexedJson, index_document, is_indexable, seems_large
from noetl.tools.python.child.switching import SharedFile, TableFile

DEPTH_MAX = 3
TABLE_GONE = "TABLE_GONE"
EPOCHS = 10**12
"""The number of a shared file is that of its process, by which the worker knows it again, and a running one."""
_NUMBERS = itertools.count()
Place = list[str]


class Mapped:
    """The tables of one request, as what the code asked for."""

    def __init__(self) -> None:
        self._files: list[Any] = []

    def opened(self, given: dict[str, Any], path: str, offset: int, length: int) -> object:
        if given["as"] == "rows":
            with open(path, encoding="utf-8") as text:
                return json.load(text)
        arrow = _arrow()
        try:
            file = arrow.memory_map(path)
        except FileNotFoundError as error:
            # Shared memory may vanish at any time; the code has not begun, so the worker can give another copy.
            raise ToolFailed(Failure(kind="missing_reference", code=TABLE_GONE, message=str(error))) from error
        self._files.append(file)
        content = file.read_buffer(offset + length).slice(offset)
        table = import_module("pyarrow.ipc").open_stream(content).read_all()
        if given["as"] == "arrow":
            return table
        try:
            return table.to_pandas()
        except ImportError as error:
            message = "tables: pandas needs the package pandas: install it, or ask for `tables: arrow`"
            raise ToolFailed(Failure(kind="config", code="LIB_MISSING", message=message)) from error

    def close(self) -> None:
        """Close the files; what was mapped stays for as long as something of it is used."""
        for file in self._files:
            file.close()
        self._files.clear()


def put_tables(request: dict[str, Any], mapped: Mapped) -> None:
    """Replace the null at the place of each table in the input."""
    given = request["tables"]
    for place, path, offset, length in given["given"]:
        inner: Any = request["input"]
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = mapped.opened(given, path, offset, length)


class Landing:
    """Files of one answer."""

    def __init__(self, folder: str, place: tuple[str, str, int, int] | None) -> None:
        """`place` is a better one for tables: a folder, what names in it begin with, where a stream starts, and for how
        many bytes there is room."""
        self._folder = folder
        self._place = place
        self._room = 0 if place is None else place[3]
        self.landed: list[dict[str, object]] = []
        self._paths: list[str] = []

    def without_tables(self, value: object) -> object:
        """The value with null where tables were.  They stand at the root, or in mappings below it."""
        return self._without(value, [])

    def _without(self, value: object, place: Place) -> object:
        if is_table(value):
            self._land_table(value, place)
            return None
        if isinstance(value, dict) and len(place) < DEPTH_MAX and any(map(_may_hold_tables, value.values())):
            # As JSON has them: whoever reads the value must find its parts.
            named = {_text(key): item for key, item in value.items()}
            return {key: self._without(item, [*place, key]) for key, item in named.items()}
        return value

    def _land_table(self, value: object, place: Place) -> None:
        arrow, ipc = _arrow(), import_module("pyarrow.ipc")
        if isinstance(value, arrow.RecordBatch):
            value = arrow.Table.from_batches([value])
        reader = arrow.RecordBatchReader.from_stream(value)
        raw = TableFile(self._shared_file(), self._path, self._paths)
        try:
            with arrow.PythonFile(raw, "w") as file, ipc.new_stream(file, reader.schema) as writer:
                for batch in reader:
                    writer.write_batch(batch)
            raw.end()
        finally:
            raw.release()
        self._room -= raw.size if raw.is_shared else 0
        entry = {"place": place, "file": os.path.basename(raw.path), "kind": "table", "is_shared": raw.is_shared}
        self.landed.append(entry)

    def _shared_file(self) -> SharedFile | None:
        if self._place is None:
            return None
        folder, prefix, offset, _ = self._place
        epoch = os.getpid() * EPOCHS + next(_NUMBERS)
        return SharedFile(os.path.join(folder, f"{prefix}{epoch}"), offset, self._room)

    def land_json(self, value: Any, bytes_max: int) -> bool:
        """Write plain data that takes more than one part, with the index of its parts; whether that was so."""
        if not (seems_large(value) and is_indexable(value)):
            return False
        writer = IndexedJson(value)
        pieces = _gathered(writer.pieces())
        start = next(pieces, b"")
        if len(start) < limits.PYTHON_LANDED_BYTES_MIN:
            return False
        path = self._path()
        self._paths.append(path)
        with open(path, "xb", opener=_private) as file:
            file.write(start)
            for piece in _within(pieces, bytes_max - len(start)):
                file.write(piece)
        entry: dict[str, object] = {"place": [], "file": os.path.basename(path), "kind": "json"}
        self.landed.append({**entry, "index": index_document(writer.made())})
        return True

    def _path(self) -> str:
        """The process is part of the name, so that the worker can sweep behind one that was killed."""
        return os.path.join(self._folder, f"{os.getpid()}-{next(_NUMBERS)}")

    def drop(self) -> None:
        """Take everything back: the answer is a failure."""
        for path in self._paths:
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
        self._paths.clear()
        self.landed.clear()


class TooLarge(Exception):
    """A result is over the limit."""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Pieces of a useful size: a call of the system for each small one would cost more than the writing."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= limits.PYTHON_LANDED_BYTES_MIN:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def _within(pieces: Iterator[bytes], room: int) -> Iterator[bytes]:
    for piece in pieces:
        room -= len(piece)
        if room < 0:
            raise TooLarge
        yield piece


def _text(key: object) -> str:
    if type(key) is str:
        return key
    found: str = import_module("noetl.core.expression.values").key_text(key)
    return found


def _may_hold_tables(value: object) -> bool:
    return isinstance(value, dict) or is_table(value)


def is_table(value: object) -> bool:
    """Whatever hands out rows in columns by Arrow's interface; a single column does that too and is no table."""
    kind = type(value)
    if hasattr(kind, "__arrow_c_stream__"):
        return hasattr(kind, "columns") or hasattr(kind, "read_next_batch") or hasattr(kind, "to_arrow_table")
    return kind.__name__ == "RecordBatch" and hasattr(kind, "__arrow_c_array__")


def _arrow() -> Any:
    return import_module("pyarrow")
