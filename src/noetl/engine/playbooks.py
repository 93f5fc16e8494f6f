"""Compiled playbooks by content digest.  Compiled once; the router never parses.

What a text compiles to depends on the text and on the kinds of tools that can run here, and on nothing else: a cache
belongs to one set of kinds.  The name of the file is only in messages and is put there on the way out."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from noetl.core.codec import sha256_hex
from noetl.core.errors import PlaybookInvalid, Problem
from noetl.core.limits import PLAYBOOK_CHARS_AT_ONCE_MAX, PLAYBOOK_TEMPLATES_AT_ONCE_MAX
from noetl.core.playbook.compile import compile_playbook
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.reference import reference_from_json
from noetl.engine.payloads import Payloads
from noetl.ports.background import Background

CACHE_PLAYBOOKS_MAX = 200
CACHE_REFUSED_MAX = 200
CACHE_PROBLEMS_MAX = 100
V = TypeVar("V")


class Playbooks:
    """Small texts are compiled at once, large ones beside the event loop, one at a time."""

    def __init__(self, payloads: Payloads, *, kinds: frozenset[str], background: Background | None = None) -> None:
        self._payloads = payloads
        self._kinds = kinds
        self._background = background
        self._cache: OrderedDict[str, CompiledPlaybook] = OrderedDict()
        self._refused: OrderedDict[str, tuple[Problem, ...]] = OrderedDict()
        self._turn = asyncio.Lock()

    async def compile(self, text: str, *, file: str) -> CompiledPlaybook:
        """Compile what a user handed in, once per content, also when it is refused.  Raises PlaybookInvalid."""
        digest = sha256_hex(text.encode("utf-8", "surrogatepass"))
        compiled = self._known(digest, file)
        if compiled is not None:
            return compiled
        if self._background is None or _is_quick(text):
            return self._kept(digest, _compiled(text, file, self._kinds))
        async with self._turn:
            # Whoever waited here may find that it is done.
            compiled = self._known(digest, file)
            return compiled or self._kept(digest, await self._background.run(_compiled, text, file, self._kinds))

    async def pinned(
        self, reference: Mapping[str, object], *, tenant_id: str, organization_id: str
    ) -> CompiledPlaybook:
        """The playbook that an execution named by content when it started."""
        compiled = self.cached(reference)
        if compiled is not None:
            return compiled
        content = await self._payloads.read(
            reference_from_json(reference), tenant_id=tenant_id, organization_id=organization_id
        )
        return await self.compile(content.decode("utf-8"), file="<pinned playbook>")

    def cached(self, reference: Mapping[str, object]) -> CompiledPlaybook | None:
        return _used(self._cache, str(reference["sha256"]))

    def _known(self, digest: str, file: str) -> CompiledPlaybook | None:
        refused = _used(self._refused, digest)
        if refused is not None:
            raise PlaybookInvalid([replace(problem, file=file) for problem in refused])
        compiled = _used(self._cache, digest)
        if compiled is None:
            return None
        return replace(compiled, warnings=tuple(replace(warning, file=file) for warning in compiled.warnings))

    def _kept(self, digest: str, made: CompiledPlaybook | PlaybookInvalid) -> CompiledPlaybook:
        if isinstance(made, PlaybookInvalid):
            if len(made.problems) <= CACHE_PROBLEMS_MAX:
                _keep(self._refused, digest, tuple(made.problems), CACHE_REFUSED_MAX)
            raise made
        _keep(self._cache, digest, made, CACHE_PLAYBOOKS_MAX)
        return made


def _is_quick(text: str) -> bool:
    """Whether compiling takes a few milliseconds: it does nothing else for so long that the loop would notice."""
    templates = text.count("{{") + text.count("{%")
    return len(text) <= PLAYBOOK_CHARS_AT_ONCE_MAX and templates <= PLAYBOOK_TEMPLATES_AT_ONCE_MAX


def _compiled(text: str, file: str, kinds: frozenset[str]) -> CompiledPlaybook | PlaybookInvalid:
    try:
        return compile_playbook(text, file=file, kinds=kinds)
    except PlaybookInvalid as error:
        return error


def _used(cache: OrderedDict[str, V], key: str) -> V | None:
    found = cache.get(key)
    if found is not None:
        cache.move_to_end(key)
    return found


def _keep(cache: OrderedDict[str, V], key: str, value: V, limit: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > limit:
        cache.popitem(last=False)
