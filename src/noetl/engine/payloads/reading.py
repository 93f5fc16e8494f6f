"""Reading payloads, with a small cache of parsed values in front."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from noetl.core import limits
from noetl.core.codec import parse_json, sha256_hex
from noetl.core.errors import PayloadCorrupt, PayloadMissing
from noetl.core.reference import MEDIA_INDEX, STORE_SMALL, Payload, Reference, reference_from_json
from noetl.core.results.index import Node, Part, index_from_document, parsed_part
from noetl.engine.stored.used import Used
from noetl.ports.data.payloads import LargePayloadStore, PayloadStore

CACHE_BYTES_MAX = 128 * 1024 * 1024
PARSED_WEIGHT = 10
"""Of JSON that became objects: a list of numbers takes five times its text, a list of small mappings twenty times."""
NEAR_BYTES = 64


class Cache:
    """Parsed values by owner and digest; the longest unused go first."""

    def __init__(self) -> None:
        self._values: OrderedDict[tuple[str, str, str], tuple[int, object]] = OrderedDict()
        self._bytes = 0
        self.waiting: WeakValueDictionary[tuple[str, str, str], Payload] = WeakValueDictionary()
        """What travels with a fact that is not committed: here for as long as somebody has it to send."""

    def find(self, key: tuple[str, str, str]) -> tuple[int, object] | None:
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
        return found

    def keep(self, key: tuple[str, str, str], size: int, value: object) -> None:
        """`size` is that of the stored bytes; what counts is the memory."""
        weight = size if isinstance(value, bytes | str) else size * PARSED_WEIGHT
        if key in self._values or weight > CACHE_BYTES_MAX // 4:
            return
        self._values[key] = (weight, value)
        self._bytes += weight
        while self._bytes > CACHE_BYTES_MAX:
            _, (dropped, _value) = self._values.popitem(last=False)
            self._bytes -= dropped


class PayloadReading:
    """What can be asked about payloads that have an address."""

    _small: PayloadStore
    _large: LargePayloadStore
    _cache: Cache
    _announced: Callable[[], Awaitable[None]] | None
    used: Used

    async def read(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        store: PayloadStore = self._small if reference.store == STORE_SMALL else self._large
        try:
            return await store.get(reference, tenant_id=tenant_id, organization_id=organization_id)
        except PayloadMissing:
            if self._announced is None:
                raise
        await self._announced()
        return await store.get(reference, tenant_id=tenant_id, organization_id=organization_id)

    async def read_bytes(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        """Bytes of a small payload, which are read again and again."""
        key = (tenant_id, organization_id, f"bytes/{reference.sha256}")
        waiting = self._cache.waiting.get(key)
        if waiting is not None:
            return waiting.content
        known = self._cache.find(key)
        if known is None:
            content = await self.read(reference, tenant_id=tenant_id, organization_id=organization_id)
            known = (len(content), content)
            self._cache.keep(key, *known)
        assert isinstance(known[1], bytes)
        return known[1]

    def remember(self, payload: Payload) -> None:
        """Have the bytes of a payload at hand before the commit that they travel in."""
        key = (payload.tenant_id, payload.organization_id, f"bytes/{payload.reference.sha256}")
        self._cache.waiting[key] = payload
        self._cache.keep(key, len(payload.content), payload.content)

    async def read_json(self, document: Mapping[str, object], *, tenant_id: str, organization_id: str) -> Any:
        """The parsed value behind a recorded reference.  Callers must not change it."""
        reference = reference_from_json(document)
        key = (tenant_id, organization_id, reference.sha256)
        known = self._cache.find(key)
        if known is not None:
            return known[1]
        value = parse_json(await self.read(reference, tenant_id=tenant_id, organization_id=organization_id))
        self._cache.keep(key, reference.bytes, value)
        return value

    def known(self, reference: Mapping[str, Any], *, tenant_id: str, organization_id: str) -> tuple[object] | None:
        """The parsed value behind a recorded reference if it is at hand."""
        found = self._cache.find((tenant_id, organization_id, str(reference["sha256"])))
        return None if found is None else (found[1],)

    async def read_index(self, document: Mapping[str, object], *, tenant_id: str, organization_id: str) -> Node | None:
        """The index behind a recorded reference; None when there is none that can be used."""
        reference = reference_from_json(document)
        if reference.index is None:
            return None
        key = (tenant_id, organization_id, f"index/{reference.sha256}")
        known = self._cache.find(key)
        if known is None:
            named: Any = {**reference.to_json(), **reference.index, "media_type": MEDIA_INDEX, "index": None}
            content = await self.read(reference_from_json(named), tenant_id=tenant_id, organization_id=organization_id)
            known = (len(content), index_from_document(parse_json(content)))
            self._cache.keep(key, *known)
        node = known[1]
        assert node is None or isinstance(node, Node)
        return node

    async def read_parts(
        self,
        document: Mapping[str, object],
        parts: Sequence[tuple[bool, Part]],
        *,
        tenant_id: str,
        organization_id: str,
    ) -> list[Any]:
        """Members of parts of a payload (with each, whether it is of a list), every part checked by its digest."""
        reference = reference_from_json(document)
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        found: list[Any] = []
        for run in _runs(parts):
            first, last = run[0][1], run[-1][1]
            keys = [(tenant_id, organization_id, f"{reference.sha256}@{part.offset}") for _, part in run]
            known = [self._cache.find(key) for key in keys]
            if all(known):
                found += [one[1] for one in known if one is not None]
                continue
            length = last.offset + last.length - first.offset
            content = await self._large.get_range(reference, offset=first.offset, length=length, **owner)
            for key, (is_list, part) in zip(keys, run, strict=True):
                start = part.offset - first.offset
                try:
                    members = _members(reference, is_list, part, content[start : start + part.length])
                except PayloadCorrupt:
                    await self._verify(reference, **owner)
                    raise
                self._cache.keep(key, part.length, members)
                found.append(members)
        return found

    async def _verify(self, reference: Reference, **owner: str) -> None:
        """Read all of a payload of which a part is damaged: its store learns of it only from the whole."""
        async for _ in self._large.get_stream(reference, **owner):
            pass

    async def read_text(self, document: Mapping[str, object], *, tenant_id: str, organization_id: str) -> str:
        """The text behind a recorded reference."""
        reference = reference_from_json(document)
        # Not the key of a parsed value: a text may be JSON too.
        key = (tenant_id, organization_id, f"text/{reference.sha256}")
        known = self._cache.find(key)
        if known is not None:
            return str(known[1])
        content = await self.read(reference, tenant_id=tenant_id, organization_id=organization_id)
        text = content.decode("utf-8")
        self._cache.keep(key, reference.bytes, text)
        return text


def _runs(parts: Sequence[tuple[bool, Part]]) -> Iterator[list[tuple[bool, Part]]]:
    """Parts that are read together: neighbours, as long as they are not too many bytes for one turn."""
    run: list[tuple[bool, Part]] = []
    for is_list, part in parts:
        if run:
            end = run[-1][1].offset + run[-1][1].length
            is_near = 0 <= part.offset - end <= NEAR_BYTES
            if not is_near or part.offset + part.length - run[0][1].offset > limits.INDEX_READ_BYTES_MAX:
                yield run
                run = []
        run.append((is_list, part))
    if run:
        yield run


def _members(reference: Reference, is_list: bool, part: Part, content: bytes) -> Any:
    if sha256_hex(content) != part.sha256:
        raise PayloadCorrupt(f"{reference.uri}: bytes {part.offset} to {part.offset + part.length} have another digest")
    return parsed_part(is_list, content)
