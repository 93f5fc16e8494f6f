"""Which shards a projector keeps: by lease, a fair share of them, handed over between two batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from noetl.core.errors import LedgerUnavailable
from noetl.points import point
from noetl.ports.clock import Clock
from noetl.ports.projections import Member, ProjectionLeases, ProjectionShard, Standing

LOOK_SECONDS = 0.25
log = logging.getLogger("noetl.projector")


class Ownership:
    """`run` renews and claims; `settle` is for whoever projects, between two batches: only then is anything handed
    over."""

    def __init__(
        self,
        leases: ProjectionLeases,
        member: Member,
        *,
        clock: Clock,
        heartbeat_seconds: float,
        by_force: bool = False,
    ) -> None:
        self._leases = leases
        self._member = member
        self._clock = clock
        self._heartbeat_seconds = heartbeat_seconds
        self._by_force = by_force
        self._share: int | None = None
        self.held: dict[int, ProjectionShard] = {}
        self.fresh: set[int] = set()
        """Shards that were taken and that nobody has looked at yet."""
        self.changed = asyncio.Event()
        self.on_change: Callable[[], None] = _nothing

    async def run(self) -> None:
        due = self._clock.monotonic()
        while True:
            try:
                # Until the first answer there is no share, and nothing to claim.
                if self._share is None or self._clock.monotonic() >= due:
                    due = self._clock.monotonic() + self._heartbeat_seconds
                    self._stand(await self._leases.heartbeat(self._member))
                await self._claim()
            except LedgerUnavailable as error:
                # Only the database can say that something is lost, and only when it is back.
                log.warning("no heartbeat", extra={"event": "ledger.unavailable", "reason": str(error)})
            left = due - self._clock.monotonic()
            await asyncio.sleep(max(0.0, min(left, LOOK_SECONDS) if self._lacks else left))

    async def settle(self) -> None:
        """Hand over what is more than a fair share."""
        surplus = [] if self._share is None else [self.held[shard] for shard in sorted(self.held)[self._share :]]
        if surplus:
            for shard in surplus:
                self._forget(shard.shard_id)
            await self._leases.let_go(surplus)

    async def leave(self) -> None:
        self.held.clear()
        await self._leases.leave(self._member.runtime_id)

    def moved(self, shard: ProjectionShard, position: int) -> None:
        """The watermark of a shard that is still held goes on."""
        known = self.held.get(shard.shard_id)
        if known is not None and known.epoch == shard.epoch:
            self.held[shard.shard_id] = known._replace(position=position)

    def replace(self, shard: ProjectionShard) -> None:
        if shard.shard_id in self.held:
            self.held[shard.shard_id] = shard

    def lost(self, shard_id: int, epoch: int) -> None:
        known = self.held.get(shard_id)
        if known is not None and known.epoch == epoch:
            self._forget(shard_id)

    @property
    def runtime_id(self) -> int:
        return self._member.runtime_id

    @property
    def _lacks(self) -> bool:
        return self._share is None or len(self.held) < self._share

    def _stand(self, standing: Standing) -> None:
        self._share = standing.share
        known = {shard.shard_id: shard for shard in standing.held}
        for shard in list(self.held.values()):
            if shard.shard_id not in known or known[shard.shard_id].epoch != shard.epoch:
                self._forget(shard.shard_id)
        for shard in known.values():
            # A claim whose reply was lost.
            if shard.shard_id not in self.held:
                self._take(shard)
        if len(self.held) > self._share:
            self._tell()

    async def _claim(self) -> None:
        assert self._share is not None
        if not self._lacks:
            return
        by_force, self._by_force = self._by_force, False
        limit = self._share - len(self.held)
        for shard in await self._leases.claim(self._member, limit=limit, by_force=by_force):
            self._take(shard)
        point("projector.owned")

    def _tell(self) -> None:
        self.changed.set()
        self.on_change()

    def _take(self, shard: ProjectionShard) -> None:
        self.held[shard.shard_id] = shard
        self.fresh.add(shard.shard_id)
        self._tell()
        log.info("shard taken", extra={"event": "projection.claimed", "shard_id": shard.shard_id})

    def _forget(self, shard_id: int) -> None:
        del self.held[shard_id]
        self.fresh.discard(shard_id)
        self._tell()
        log.info("shard given up", extra={"event": "projection.released", "shard_id": shard_id})


def _nothing() -> None:
    return None
