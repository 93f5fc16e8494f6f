"""Processes that are gone, and what they still own."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.engine.doctor.finding import CLAIM_DEAD, RUNTIME_DEAD, SHARD_EXPIRED, Finding, Thresholds
from noetl.engine.durability.reaper import DeadSessions
from noetl.ports.durability.examination import Examination
from noetl.ports.serving.runtimes import Runtimes
from noetl.ports.serving.shards import Shards

_FIX = "`noetl doctor --fix`"


class ExpiredShards:
    """Given back here, a shard goes to whoever looks next; a claim raises its epoch, so an owner that comes back can
    write nothing."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def look(self) -> list[Finding]:
        return [
            Finding(
                code=SHARD_EXPIRED,
                what=f"shard {one.head.shard_id} belongs to {one.owner_instance or 'nobody that is known'}, whose "
                "lease has run out",
                where=f"shard {one.head.shard_id}",
                do=f"start a server on this database, which takes it; {_FIX} lets it go",
                can_fix=True,
                subject=(one.owner_runtime_id, one.head.shard_id),
            )
            for one in await self._shards.look()
            if one.is_free and one.owner_runtime_id is not None
        ]

    async def fix(self, findings: Sequence[Finding]) -> None:
        by_owner: dict[int, list[int]] = {}
        for finding in findings:
            owner, shard_id = finding.subject
            assert isinstance(owner, int)
            assert isinstance(shard_id, int)
            by_owner.setdefault(owner, []).append(shard_id)
        for owner, shards in by_owner.items():
            await self._shards.hand_over(owner, shards)


class DeadRuntimes:
    """Only those whose node number may be used by others: until then they might come back and make ids."""

    def __init__(self, examination: Examination, runtimes: Runtimes, thresholds: Thresholds) -> None:
        self._examination = examination
        self._runtimes = runtimes
        self._thresholds = thresholds

    async def look(self) -> list[Finding]:
        return [
            Finding(
                code=RUNTIME_DEAD,
                what=f"{one.kind} {one.instance} has been silent for {one.silent_seconds:.0f} s and did not leave",
                where=f"runtime {one.runtime_id}",
                do=f"look for its end in the log of {one.instance}; {_FIX} gives back what it had",
                can_fix=True,
                subject=(one.runtime_id, one.last_id),
            )
            for one in await self._examination.dead_runtimes(limit=self._thresholds.rows_max)
        ]

    async def fix(self, findings: Sequence[Finding]) -> None:
        """It leaves as it would have done itself.  The row stays for the number of its last id."""
        for finding in findings:
            runtime_id, last_id = finding.subject
            assert isinstance(runtime_id, int)
            assert isinstance(last_id, int)
            await self._runtimes.leave(runtime_id, last_id=last_id)


class DeadClaims:
    def __init__(self, examination: Examination, sessions: DeadSessions, thresholds: Thresholds) -> None:
        self._examination = examination
        self._sessions = sessions
        self._thresholds = thresholds

    async def look(self) -> list[Finding]:
        return [
            Finding(
                code=CLAIM_DEAD,
                what=f"session {row.session_id} holds command {row.command_id} and is dead",
                where=f"execution {row.execution_id} command {row.command_id}",
                do=f"the reaper of a running server gives it back within seconds; {_FIX} does so now",
                can_fix=True,
            )
            for row in await self._examination.held_by_the_dead(limit=self._thresholds.rows_max)
        ]

    async def fix(self, _findings: Sequence[Finding]) -> None:
        await self._sessions.release_dead()
