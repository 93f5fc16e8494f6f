"""The JSON of a result, piece by piece: what is not read yet is read when its turn comes, and dropped behind it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from noetl.core import limits
from noetl.core.codec import ordered_bytes
from noetl.core.expression import View, bare
from noetl.core.results.members import Members, opened
from noetl.core.results.parts import Table, holds_parts
from noetl.engine.payloads import Payloads
from noetl.engine.reading.rows import ListRows, TableRows
from noetl.engine.stored.reader import Reader
from noetl.engine.stored.sources import settled
from noetl.engine.stored.tables import open_table


class JsonPieces:
    def __init__(self, payloads: Payloads, reader: Reader, owner: Mapping[str, str]) -> None:
        self._payloads = payloads
        self._reader = reader
        self._owner = owner

    async def of(self, value: object) -> AsyncGenerator[bytes]:
        """Raises what reading raises: PayloadMissing, PayloadCorrupt."""
        level = await settled(lambda: opened(value))
        if isinstance(level, Members):
            parts = self._mapping(level)
        elif isinstance(level, Table):
            parts = self._table(level)
        elif isinstance(level, View):
            parts = self._list(level)
        else:
            yield ordered_bytes(level)
            return
        async with aclosing(parts):
            async for piece in parts:
                yield piece

    async def _mapping(self, members: Members) -> AsyncGenerator[bytes]:
        before = b"{"
        for key, member in members.items():
            yield before + ordered_bytes(key) + b":"
            async with aclosing(self.of(member)) as parts:
                async for piece in parts:
                    yield piece
            before = b","
        yield b"}" if members else b"{}"

    async def _list(self, items: View) -> AsyncGenerator[bytes]:
        rows = ListRows(items, self._reader)
        before = b"["
        async with aclosing(rows.views(0, rows.total)) as views:
            async for some in views:
                yield before
                async with aclosing(self._items(some)) as parts:
                    async for piece in parts:
                        yield piece
                before = b","
        yield b"]" if rows.total else b"[]"

    async def _items(self, items: Sequence[object]) -> AsyncGenerator[bytes]:
        """Items with commas between them: together, unless one of them is large or has tables in it."""
        plain = await settled(lambda: None if any(map(_is_heavy, items)) else [bare(item) for item in items])
        if plain is not None:
            yield ordered_bytes(plain)[1:-1]
            return
        for number, item in enumerate(items):
            if number:
                yield b","
            async with aclosing(self.of(item)) as parts:
                async for piece in parts:
                    yield piece

    async def _table(self, table: Table) -> AsyncGenerator[bytes]:
        rows = TableRows(await open_table(self._payloads, table._reference, **self._owner))
        before = b"["
        try:
            async with aclosing(rows.chunks(0, rows.total)) as chunks:
                async for some in chunks:
                    yield before + ordered_bytes(some)[1:-1]
                    before = b","
        finally:
            rows.close()
        yield b"]" if rows.total else b"[]"


def _is_heavy(item: object) -> bool:
    return holds_parts(item) or (isinstance(item, View) and item._bytes_min() > limits.RESULT_CHUNK_BYTES)


async def gathered(pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The same bytes in pieces that are worth sending."""
    held: list[bytes] = []
    size = 0
    async with aclosing(pieces):
        async for piece in pieces:
            held.append(piece)
            size += len(piece)
            if size >= limits.RESULT_CHUNK_BYTES // 4:
                yield b"".join(held)
                held, size = [], 0
    if held:
        yield b"".join(held)
