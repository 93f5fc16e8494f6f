"""One run of the collector."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from noetl.core.collection.plan import Policy, Terms, Verdict
from noetl.core.limits import COLLECTOR_DELETES_AT_ONCE_MAX, COLLECTOR_PAGE_PAYLOADS
from noetl.engine.collecting import report as fates
from noetl.engine.collecting.marking import Marker
from noetl.engine.collecting.report import Kind, Report
from noetl.ports.data.collection import CollectedStore, Control, Held, Holdings, Leftovers, Owner
from noetl.ports.data.payloads import StoredObject

_FATES = {Verdict.YOUNG: fates.YOUNG, Verdict.NOMINATE: fates.NOMINATED, Verdict.WAITING: fates.WAITING}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorParts:
    control: Control
    large: Sequence[CollectedStore]
    holdings: Holdings
    leftovers: Sequence[Leftovers] = ()


class Collector:
    """Looks at everything once.  What the stores hold is listed first and the roots are read after it: a payload that
    is put meanwhile is in no list, and an event that is appended meanwhile names what was renewed meanwhile."""

    def __init__(
        self, parts: CollectorParts, policy: Policy, *, is_dry_run: bool, forgets_missing: bool = False
    ) -> None:
        """With `forgets_missing`, a payload that the ledger names and no store holds is lost for good, and so is what
        only it named.  Otherwise that may be a store which is not configured here, and nothing of its owner goes."""
        self._parts = parts
        self._policy = policy
        self._is_dry_run = is_dry_run
        self._forgets_missing = forgets_missing
        self._stores: Mapping[str, CollectedStore] = {
            store.name: store for store in (parts.control.small, *parts.large)
        }
        self._damaged: Mapping[Owner, Sequence[str]] = {}

    async def run(self) -> Report:
        parts = self._parts
        now = await parts.control.books.now()
        terms = self._policy.at(now, working_since=await parts.control.books.working_since())
        self._report = Report(is_dry_run=self._is_dry_run, now=now, grace_seconds=self._policy.grace_seconds)
        for store in self._stores.values():
            await self._list(store)
        marker = Marker(
            roots=parts.control.roots,
            stores=self._stores,
            books=parts.control.books,
            holdings=parts.holdings,
            remembers=not self._is_dry_run,
            forgets_missing=self._forgets_missing,
        )
        await marker.mark()
        self._damaged = marker.damaged
        for page in parts.holdings.unreachable(COLLECTOR_PAGE_PAYLOADS):
            await self._sweep(page, terms)
        await self._finish(terms)
        self._report.held, self._report.reachable = parts.holdings.counts()
        self._report.payloads_read, self._report.missing = marker.payloads_read, marker.missing
        self._report.damaged = [text for texts in marker.damaged.values() for text in texts]
        return self._report

    async def _list(self, store: CollectedStore) -> None:
        async for tenant_id, organization_id in store.owners():
            owner = Owner(tenant_id, organization_id)
            page: list[StoredObject] = []
            async for found in store.objects(**owner._asdict()):
                page.append(found)
                if len(page) >= COLLECTOR_PAGE_PAYLOADS:
                    self._parts.holdings.hold(store.name, owner, page)
                    page = []
            self._parts.holdings.hold(store.name, owner, page)

    async def _sweep(self, page: Sequence[Held], terms: Terms) -> None:
        """Judge objects of one store and owner that nothing names."""
        store, owner = page[0].store, page[0].owner
        since = await self._parts.control.books.candidates(store, owner, [held.object.sha256 for held in page])
        candidates: dict[str, float] = {}
        doomed: list[StoredObject] = []
        for held in page:
            found, candidate_at = held.object, since.get(held.object.sha256)
            verdict = terms.verdict(renewed_at=found.renewed_at, candidate_at=candidate_at)
            if verdict is Verdict.DELETE:
                doomed.append(found)
                continue
            if verdict is not Verdict.YOUNG:
                candidates[found.sha256] = (
                    terms.now if verdict is Verdict.NOMINATE or candidate_at is None else candidate_at
                )
            self._note(store, owner, found, _FATES[verdict])
        if owner in self._damaged:
            for found in doomed:
                self._note(store, owner, found, fates.KEPT)
                candidates[found.sha256] = since.get(found.sha256, terms.now)
        elif doomed:
            await self._delete(self._stores[store], owner, doomed, since, terms)
        if candidates and not self._is_dry_run:
            await self._parts.control.books.record(store, owner, candidates, now=terms.now)

    async def _delete(
        self,
        store: CollectedStore,
        owner: Owner,
        doomed: Sequence[StoredObject],
        since: Mapping[str, float],
        terms: Terms,
    ) -> None:
        if self._is_dry_run:
            for found in doomed:
                self._note(store.name, owner, found, fates.DELETED)
            return
        await self._parts.control.turn.check()
        gate = asyncio.Semaphore(COLLECTOR_DELETES_AT_ONCE_MAX)

        async def delete(found: StoredObject) -> bool:
            cutoff = terms.cutoff(since.get(found.sha256))
            async with gate:
                return await store.delete(found.sha256, renewed_before=cutoff, **owner._asdict())

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(delete(found)) for found in doomed]
        gone = []
        for found, task in zip(doomed, tasks, strict=True):
            self._note(store.name, owner, found, fates.DELETED if task.result() else fates.RENEWED)
            if task.result():
                gone.append(found.sha256)
        if gone and not store.is_local:
            await self._parts.control.books.forget_names(gone)

    async def _finish(self, terms: Terms) -> None:
        """Leftovers, and candidates that are none any more."""
        for leftovers in self._parts.leftovers:
            for leftover in leftovers.find(before=terms.newest):
                self._report.leftovers.add(leftover.bytes, leftover.changed_at)
                if not self._is_dry_run:
                    leftovers.remove(leftover)
        if not self._is_dry_run:
            await self._parts.control.books.forget(list(self._stores), before=terms.now)

    def _note(self, store: str, owner: Owner, found: StoredObject, fate: str) -> None:
        kind = Kind(owner=owner, store=store, media_type=found.media_type or "", fate=fate)
        self._report.add(kind, found.bytes, found.renewed_at)
