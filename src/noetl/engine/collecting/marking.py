"""Finding everything that is reachable: what the roots name, what that names, and so on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from itertools import groupby

from noetl.core.collection.names import NameScanner, names_in, references_in
from noetl.core.errors import PayloadCorrupt, PayloadMissing, PayloadUnreadable
from noetl.core.limits import (
    COLLECTOR_DAMAGES_TOLD_MAX,
    COLLECTOR_NAMES_REMEMBERED_MAX,
    COLLECTOR_PAGE_PAYLOADS,
)
from noetl.core.locator import payload_locator
from noetl.ports.data.collection import Books, CollectedStore, Holdings, Named, Owner, Roots


class Marker:
    def __init__(
        self,
        *,
        roots: Roots,
        stores: Mapping[str, CollectedStore],
        books: Books,
        holdings: Holdings,
        remembers: bool,
        forgets_missing: bool = False,
    ) -> None:
        self._roots = roots
        self._stores = stores
        self._books = books
        self._holdings = holdings
        self._remembers = remembers
        self._forgets_missing = forgets_missing
        self.payloads_read = 0
        self.missing = 0
        self.damaged: dict[Owner, list[str]] = {}
        """What could not be read.  What it named is not known: of its owner nothing may be deleted."""

    async def mark(self) -> None:
        async for page in self._roots.pages():
            for owner, text in page:
                self._holdings.mark(owner, names_in(text))
                self._holdings.expect(owner, references_in(text))
        await self._follow_all()
        # What was stored after the stores were listed, or is not where it should be.
        while found := self._holdings.missing(COLLECTOR_PAGE_PAYLOADS):
            for one in found:
                await self._find(one)
            await self._follow_all()

    async def _find(self, one: Named) -> None:
        """Look for something that is referred to and in no list.  If it is nowhere, what it names is unknown."""
        stores = [self._stores[one.store]] if one.store in self._stores else list(self._stores.values())
        for store in stores:
            if await self._follow(store, one.owner, [one.sha256]):
                return
        self.missing += 1
        if not self._forgets_missing:
            uri = payload_locator(*one.owner, one.sha256)
            self._damage(one.owner, f"{uri} is in none of the stores {', '.join(self._stores)}: it was {one.store}")

    def _damage(self, owner: Owner, text: str) -> None:
        told = self.damaged.setdefault(owner, [])
        if len(told) < COLLECTOR_DAMAGES_TOLD_MAX:
            told.append(text)

    async def _follow_all(self) -> None:
        while found := self._holdings.unread(COLLECTOR_PAGE_PAYLOADS):
            for (store, owner), group in groupby(sorted(found), key=lambda one: (one.store, one.owner)):
                await self._follow(self._stores[store], owner, [one.sha256 for one in group])

    async def _follow(self, store: CollectedStore, owner: Owner, digests: Sequence[str]) -> int:
        """Mark what payloads name; how many of them were there."""
        known = {} if store.is_local else await self._books.names(digests)
        for names in known.values():
            self._holdings.mark(owner, names)
        unknown = [digest for digest in digests if digest not in known]
        if not unknown:
            return len(known)
        found = len(known)
        fresh: dict[str, Sequence[str]] = {}
        async for sha256, stream in store.contents(unknown, owner=owner):
            try:
                read = await self._read(stream, owner)
            except PayloadMissing:
                continue
            except (PayloadCorrupt, PayloadUnreadable) as error:
                self._damage(owner, str(error))
                found += 1
                continue
            found += 1
            self.payloads_read += 1
            if read is not None:
                fresh[sha256] = sorted(read)
        if fresh and self._remembers and not store.is_local:
            await self._books.remember(fresh)
        return found

    async def _read(self, stream: AsyncGenerator[bytes, None], owner: Owner) -> set[str] | None:
        """The names in a payload, which are marked; None when they are too many to remember."""
        scanner = NameScanner()
        names: set[str] = set()
        is_short = True
        try:
            async with aclosing(stream):
                async for chunk in stream:
                    names |= scanner.feed(chunk)
                    if scanner.is_silent:
                        break
                    if len(names) > COLLECTOR_NAMES_REMEMBERED_MAX:
                        self._holdings.mark(owner, names)
                        names, is_short = set(), False
        finally:
            # Also of a payload that turns out to be damaged: a name too many keeps a payload too many.
            names |= scanner.end()
            if names:
                self._holdings.mark(owner, names)
        return names if is_short else None
