"""Findings, and every code that they may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

SHARD_EXPIRED = "shard.lease_expired"
RUNTIME_DEAD = "runtime.dead"
CLAIM_DEAD = "command.held_by_dead_session"
COMMAND_LOST = "command.not_in_queue"
COMMAND_OVER = "command.ended_in_queue"
PAYLOAD_ORPHAN = "payload.orphan"
PROJECTION_LAG = "projection.lagging"
PROJECTION_UNHELD = "projection.unheld"
PROJECTION_FOREIGN = "projection.incarnation_mismatch"
EXECUTION_QUARANTINED = "execution.quarantined"
SEGMENT_STALE = "segment.stale"
PARTITION_MISSING = "partition.missing"
MIGRATION_PENDING = "migration.pending"
CLOCK_SKEW = "clock.skew"
CONNECTIONS_FEW = "connections.few_left"
POOL_UNSERVED = "pool.unserved"
DISK_FULL = "disk.nearly_full"
CHECK_FAILED = "check.failed"

CODES: Mapping[str, str] = {
    SHARD_EXPIRED: "The owner of a shard is silent for longer than its lease: nobody decides the executions in it.",
    RUNTIME_DEAD: "A process ended without saying so, and its node number is not free.",
    CLAIM_DEAD: "A command is held by a session that nobody vouches for.",
    COMMAND_LOST: "The ledger says that a command is open, and the queue has no row of it: nobody will take it.",
    COMMAND_OVER: "The queue has a row of a command that has ended, or whose execution has.",
    PAYLOAD_ORPHAN: "Payloads that nothing names, and that no run of the collector has taken up yet.",
    PROJECTION_LAG: "What people are shown is behind the ledger for longer than it should be.",
    PROJECTION_UNHELD: "What people are shown is behind the ledger, and nobody projects it.",
    PROJECTION_FOREIGN: "A projection is of another life of the ledger: a database was restored or replaced.",
    EXECUTION_QUARANTINED: "An execution could not be folded any further: it is shown as it last could be.",
    SEGMENT_STALE: "Shared memory of processes that are gone.",
    PARTITION_MISSING: "The ledger has no partition for the present or the coming quarter.",
    MIGRATION_PENDING: "The schema of the database is not that of this release.",
    CLOCK_SKEW: "The clock of this machine and that of the database differ.",
    CONNECTIONS_FEW: "The database has few connections left for clients.",
    POOL_UNSERVED: "Commands wait in a pool that no living worker serves.",
    DISK_FULL: "The file system of the home is nearly full.",
    CHECK_FAILED: "Something could not be looked at.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`what` is wrong, `where`, what to `do`.  `can_fix` says whether the process that looked can do it itself;
    `subject` is what it needs for that."""

    code: str
    what: str
    where: str
    do: str
    can_fix: bool = False
    subject: tuple[object, ...] = ()

    def to_json(self) -> dict[str, object]:
        assert self.code in CODES, self.code
        return {"code": self.code, "what": self.what, "where": self.where, "do": self.do, "can_fix": self.can_fix}


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """From when on something is a finding, and how much is looked at."""

    lag_seconds: float = 1.0
    skew_seconds: float = 1.0
    connections_min: int = 10
    disk_free_share_min: float = 0.05
    unserved_seconds: float = 5.0
    rows_max: int = 100
    executions_max: int = 500
    """Open executions that are folded and compared with the queue, oldest first."""
    collect_seconds_max: float = 20.0
    settle_seconds: float = 0.25
    """Between two looks at what may only be on its way."""


class Check(Protocol):
    async def look(self) -> list[Finding]: ...

    async def fix(self, findings: Sequence[Finding], /) -> None:
        """Do what can be done about these, which are its own and can be fixed."""
        ...
