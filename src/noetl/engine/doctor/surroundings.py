"""The database server, the clocks, the workers: what only the operator can change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from noetl.engine.doctor.clocks import moment_of
from noetl.engine.doctor.finding import (
    CLOCK_SKEW,
    CONNECTIONS_FEW,
    MIGRATION_PENDING,
    POOL_UNSERVED,
    Finding,
    Thresholds,
)
from noetl.ports.clock import Clock
from noetl.ports.durability.examination import Examination


class _Told:
    """A check whose findings are for people."""

    async def fix(self, _findings: Sequence[Finding]) -> None:
        raise AssertionError("nothing of this kind says that it can be fixed")


class PendingMigrations(_Told):
    """`outdated` says what is wrong with the schema, or None."""

    def __init__(self, outdated: Callable[[], Awaitable[str | None]]) -> None:
        self._outdated = outdated

    async def look(self) -> list[Finding]:
        reason = await self._outdated()
        return [] if reason is None else [migration_pending(reason)]


def migration_pending(reason: str) -> Finding:
    """Not fixed from here: which release migrates a database, and when, is a matter of deployment."""
    return Finding(code=MIGRATION_PENDING, what=reason, where="schema noetl", do="run `noetl migrate`")


class ClockSkew(_Told):
    """The answer was made somewhere between question and answer: only what lies outside of both is skew."""

    def __init__(self, examination: Examination, clock: Clock, thresholds: Thresholds) -> None:
        self._examination = examination
        self._clock = clock
        self._thresholds = thresholds

    async def look(self) -> list[Finding]:
        before = moment_of(self._clock).timestamp()
        there = await self._examination.now()
        after = moment_of(self._clock).timestamp()
        skew = max(before - there, there - after, 0.0)
        if skew < self._thresholds.skew_seconds:
            return []
        return [
            Finding(
                code=CLOCK_SKEW,
                what=f"this machine is {skew:.1f} s {'behind' if there > after else 'ahead of'} the database",
                where="clock of this machine",
                do="let both follow a time server; leases go by the database alone, ids and times of events do not",
            )
        ]


class FewConnections(_Told):
    def __init__(self, examination: Examination, thresholds: Thresholds) -> None:
        self._examination = examination
        self._thresholds = thresholds

    async def look(self) -> list[Finding]:
        found = await self._examination.connections()
        if found.total - found.used >= self._thresholds.connections_min:
            return []
        return [
            Finding(
                code=CONNECTIONS_FEW,
                what=f"{found.used} of {found.total} connections of the database server are in use",
                where="database server",
                do="raise max_connections, or lower NOETL_POSTGRES_POOL_MAX_SIZE and NOETL_BG_POOL_MAX_SIZE",
            )
        ]


class UnservedPools(_Told):
    def __init__(self, examination: Examination, thresholds: Thresholds) -> None:
        self._examination = examination
        self._thresholds = thresholds

    async def look(self) -> list[Finding]:
        waiting = await self._examination.waiting_pools(seconds=self._thresholds.unserved_seconds)
        return [
            Finding(
                code=POOL_UNSERVED,
                what=f"{one.commands:,} commands have waited for up to {one.waiting_seconds:.0f} s, and no worker of "
                f"pool {one.pool!r} takes {one.kinds.replace('+', ', ')}",
                where=f"pool {one.pool} ({one.kinds})",
                do=f"start `noetl worker --pool {one.pool}`",
            )
            for one in waiting
            if not one.is_served
        ]
