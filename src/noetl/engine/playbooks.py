"""Compiled playbooks by content digest.  Compiled once; the router never parses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace

from noetl.core.codec import sha256_hex
from noetl.core.playbook.compile import compile_playbook
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.reference import reference_from_json
from noetl.engine.payloads import Payloads

CACHE_PLAYBOOKS_MAX = 200


class Playbooks:
    def __init__(self, payloads: Payloads, *, kinds: frozenset[str]) -> None:
        self._payloads = payloads
        self._kinds = kinds
        self._cache: OrderedDict[str, CompiledPlaybook] = OrderedDict()

    def compile(self, text: str, *, file: str) -> CompiledPlaybook:
        """Compile what a user handed in, once per content.  Raises PlaybookInvalid."""
        known = self.cached({"sha256": sha256_hex(text.encode("utf-8"))})
        if known is not None:
            return replace(known, warnings=tuple(replace(warning, file=file) for warning in known.warnings))
        compiled = compile_playbook(text, file=file, kinds=self._kinds)
        self._remember(compiled)
        return compiled

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
        return self.compile(content.decode("utf-8"), file="<pinned playbook>")

    def cached(self, reference: Mapping[str, object]) -> CompiledPlaybook | None:
        digest = str(reference["sha256"])
        compiled = self._cache.get(digest)
        if compiled is not None:
            self._cache.move_to_end(digest)
        return compiled

    def _remember(self, compiled: CompiledPlaybook) -> None:
        self._cache[compiled.digest] = compiled
        self._cache.move_to_end(compiled.digest)
        while len(self._cache) > CACHE_PLAYBOOKS_MAX:
            self._cache.popitem(last=False)
