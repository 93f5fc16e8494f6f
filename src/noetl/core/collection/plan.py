"""What happens to an object that nothing names.

Safety rests on one inequality.  Whoever puts a payload renews its time, and appends the event that names it within the
grace.  An object that was renewed at `u` is deleted only if `u < cutoff`, and `cutoff + grace <= now`, where `now` is
when the reading of the roots began: every event that could name it was there to be read.  Work that is going on longer
than that, and says so in the queue, moves the cutoff back to its own beginning."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

HOUR = 3_600.0
DAY = 24 * HOUR
GRACE_HOURS_MIN = 1.0
"""No task takes longer than this from its first payload to the event that names it, or it says so in the settings."""
RENEWAL_SECONDS = HOUR
"""A store may leave the time of an object as it is when it is younger than this: reuse then costs no write.  The
statements of the ledger say the same, as `interval '1 hour'`."""
MARGIN_SECONDS = RENEWAL_SECONDS + HOUR
"""How much older an object may look than its last use was: a renewal that was left out, and clocks that differ."""


class Verdict(StrEnum):
    YOUNG = "young"
    """Too young to say anything: an event may be on its way."""
    NOMINATE = "nominate"
    """Becomes a candidate now."""
    WAITING = "waiting"
    """Is a candidate, and its grace is not over."""
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    grace_seconds: float
    ttl_seconds: float
    margin_seconds: float = MARGIN_SECONDS

    def __post_init__(self) -> None:
        assert self.grace_seconds >= 0, "a grace is not negative"
        assert self.ttl_seconds >= self.grace_seconds + self.margin_seconds, "the TTL is shorter than the grace"

    def at(self, now: float, *, working_since: float | None = None) -> Terms:
        """The terms of one run.  `now` is before anything is read; `working_since`, when the oldest work that is being
        done then was begun."""
        return Terms(self, now, working_since)


@dataclass(frozen=True, slots=True)
class Terms:
    policy: Policy
    now: float
    working_since: float | None = None

    @property
    def newest(self) -> float:
        """What was renewed at this time or later is not touched.  Work that takes longer than the grace has put nothing
        before it was begun."""
        latest_use = self.now - self.policy.grace_seconds
        if self.working_since is not None:
            latest_use = min(latest_use, self.working_since)
        return latest_use - self.policy.margin_seconds

    def verdict(self, *, renewed_at: float, candidate_at: float | None) -> Verdict:
        """On an object that nothing names.  A candidate that was renewed since has to begin again."""
        if renewed_at >= self.newest:
            return Verdict.YOUNG
        if renewed_at < self.now - self.policy.ttl_seconds:
            return Verdict.DELETE
        if candidate_at is None or candidate_at <= renewed_at:
            return Verdict.NOMINATE
        return Verdict.WAITING if candidate_at > self.now - self.policy.grace_seconds else Verdict.DELETE

    def cutoff(self, candidate_at: float | None) -> float:
        """An object is deleted only if it was not renewed since."""
        return self.newest if candidate_at is None else min(self.newest, candidate_at)
