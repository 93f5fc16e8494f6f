"""The lists of the collector in a nameless file that ends with the process.  Memory is that of a page cache, however
many payloads there are."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TypeVar

from noetl.ports.data.collection import Held, Named, Owner
from noetl.ports.data.payloads import StoredObject

K = TypeVar("K")


@cache
def _statements() -> dict[str, str]:
    text = files("noetl.adapters.sqlite").joinpath("holdings.sql").read_text("utf-8")
    pieces = re.split(r"^-- name: *(\w+) *$", text, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


class SqliteHoldings:
    def __init__(self) -> None:
        # An empty name is a file without a name, which goes when it is closed.
        self._connection = sqlite3.connect("", isolation_level=None)
        self._sql = _statements()
        self._connection.executescript(self._sql["made"])
        self._connection.execute("BEGIN")
        self._stores: dict[str, int] = {}
        self._owners: dict[Owner, int] = {}
        self._given_out = 0
        self._told_missing = 0

    def close(self) -> None:
        self._connection.close()

    def hold(self, store: str, owner: Owner, objects: Iterable[StoredObject]) -> None:
        where = (_number(self._stores, store), _number(self._owners, owner))
        self._connection.executemany(
            self._sql["hold"], ((*where, bytes.fromhex(o.sha256), o.bytes, o.renewed_at, o.media_type) for o in objects)
        )

    def mark(self, owner: Owner, digests: Iterable[str]) -> None:
        number = _number(self._owners, owner)
        # In the order of the index: neighbours are on one page.
        found = sorted(map(bytes.fromhex, digests))
        self._connection.executemany(self._sql["mark"], ((number, digest) for digest in found))

    def expect(self, owner: Owner, references: Mapping[str, str]) -> None:
        number = _number(self._owners, owner)
        rows = ((number, bytes.fromhex(sha256), store) for sha256, store in references.items())
        missing = [row for row in rows if self._store_of(row[0], row[1]) is None]
        self._connection.executemany(self._sql["miss"], missing)

    def missing(self, limit: int) -> list[Named]:
        rows = self._connection.execute(self._sql["missing"], (self._told_missing, limit)).fetchall()
        owners = list(self._owners)
        self._told_missing = rows[-1][0] if rows else self._told_missing
        return [Named(store, owners[owner], digest.hex()) for _, owner, digest, store in rows]

    def unread(self, limit: int) -> list[Named]:
        owners = list(self._owners)
        found: list[Named] = []
        while not found:
            rows = self._connection.execute(self._sql["marked"], (self._given_out, limit)).fetchall()
            if not rows:
                break
            self._given_out = rows[-1][0]
            for _, owner, digest in rows:
                store = self._store_of(owner, digest)
                if store is not None:
                    found.append(Named(store, owners[owner], digest.hex()))
        return found

    def _store_of(self, owner: int, digest: bytes) -> str | None:
        """The first store that has it: the bytes are the same in all."""
        for store, number in self._stores.items():
            if self._connection.execute(self._sql["found"], (number, owner, digest)).fetchone():
                return store
        return None

    def unreachable(self, size: int) -> Iterator[list[Held]]:
        for store, number in self._stores.items():
            for owner, owner_number in self._owners.items():
                last = b""
                while True:
                    rows = self._connection.execute(
                        self._sql["unreachable"], (number, owner_number, last, size)
                    ).fetchall()
                    if not rows:
                        break
                    last = rows[-1][0]
                    yield [Held(store, owner, StoredObject(digest.hex(), *rest)) for digest, *rest in rows]

    def counts(self) -> tuple[int, int]:
        held, marked = self._connection.execute(self._sql["counts"]).fetchone()
        return held, marked


def _number(numbers: dict[K, int], key: K) -> int:
    return numbers.setdefault(key, len(numbers))
