"""What people are shown, and how far it is behind the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from noetl.engine.doctor.finding import (
    EXECUTION_QUARANTINED,
    PROJECTION_FOREIGN,
    PROJECTION_LAG,
    PROJECTION_UNHELD,
    Finding,
    Thresholds,
)
from noetl.ports.durability.examination import Examination
from noetl.ports.projections import Projections

CATCH_UP_SECONDS_MAX = 10.0
LOOK_SECONDS = 0.05


class OwnProjector(Protocol):
    """The projector of this process."""

    def look_again(self) -> None:
        """At all shards that it has, also those that it gave up on."""
        ...

    async def refold(self, execution_id: int) -> bool: ...


async def _until_gone(look: Callable[[], Awaitable[Sequence[Finding]]]) -> None:
    """Give a projector time for what it was told to do."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CATCH_UP_SECONDS_MAX):
            while await look():  # noqa: ASYNC110 - another task, or another process, does it
                await asyncio.sleep(LOOK_SECONDS)


class LaggingProjections:
    """A projector that is alive catches up by itself; it is told to look, and gets time."""

    def __init__(self, examination: Examination, *, projector: OwnProjector | None, thresholds: Thresholds) -> None:
        self._examination = examination
        self._projector = projector
        self._thresholds = thresholds

    async def look(self) -> list[Finding]:
        found = []
        for one in await self._examination.unprojected():
            if one.behind_ms < self._thresholds.lag_seconds * 1000:
                continue
            seconds, where = one.behind_ms / 1000, f"shard {one.shard_id}"
            if one.is_held:
                what = f"the projection of {where} is {seconds:.1f} s behind; runtime {one.owner} projects it"
                do = "look at its log and at noetl_projector_errors_total; start more `noetl projector` processes"
                code = PROJECTION_LAG
            else:
                what = f"the projection of {where} is {seconds:.1f} s behind, and nobody projects it"
                do = "start `noetl projector`, or a server without --no-projector"
                code = PROJECTION_UNHELD
            can_fix = self._projector is not None
            found.append(Finding(code=code, what=what, where=where, do=do, can_fix=can_fix))
        return found

    async def fix(self, _findings: Sequence[Finding]) -> None:
        assert self._projector is not None
        self._projector.look_again()
        await _until_gone(self.look)


class ForeignProjections:
    """Of another life of the ledger.  A projector that finds one folds all of it again."""

    def __init__(self, projections: Projections, *, projector: OwnProjector | None) -> None:
        self._projections = projections
        self._projector = projector

    async def look(self) -> list[Finding]:
        return [
            Finding(
                code=PROJECTION_FOREIGN,
                what=f"the projection of shard {one.shard_id} is of the ledger {one.incarnation}, this one is "
                f"{one.ledger_incarnation}",
                where=f"shard {one.shard_id}",
                do="find out who restored or replaced this database; a projector folds the shard again",
                can_fix=self._projector is not None,
            )
            for one in await self._projections.progress()
            if one.incarnation is not None and one.incarnation != one.ledger_incarnation
        ]

    async def fix(self, _findings: Sequence[Finding]) -> None:
        assert self._projector is not None
        self._projector.look_again()
        await _until_gone(self.look)


class Quarantined:
    def __init__(self, projections: Projections, *, projector: OwnProjector | None, thresholds: Thresholds) -> None:
        self._projections = projections
        self._projector = projector
        self._thresholds = thresholds

    async def look(self) -> list[Finding]:
        shards = [one.shard_id for one in await self._projections.progress()]
        return [
            Finding(
                code=EXECUTION_QUARANTINED,
                what=f"execution {execution_id} could not be folded any further",
                where=f"execution {execution_id}",
                do=f"`noetl status {execution_id}` tells at which event and why; a release that can read it heals it, "
                "and `noetl doctor --fix` tries now",
                can_fix=self._projector is not None,
                subject=(execution_id,),
            )
            for execution_id in await self._projections.quarantined(shards, limit=self._thresholds.rows_max)
        ]

    async def fix(self, findings: Sequence[Finding]) -> None:
        assert self._projector is not None
        for finding in findings:
            execution_id = finding.subject[0]
            assert isinstance(execution_id, int)
            await self._projector.refold(execution_id)
