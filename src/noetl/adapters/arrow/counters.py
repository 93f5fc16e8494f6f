"""What the tiers have done, as plain numbers; whoever shows metrics reads `samples`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

RESOLVE_MS_BOUNDS = (0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 10_000.0)


@dataclass(slots=True)
class Durations:
    """How long something took, in milliseconds: count, sum, and how many took at most so long."""

    count: int = 0
    sum: float = 0.0
    within: list[int] = field(default_factory=lambda: [0] * len(RESOLVE_MS_BOUNDS))

    def add(self, milliseconds: float) -> None:
        self.count += 1
        self.sum += milliseconds
        for place, bound in enumerate(RESOLVE_MS_BOUNDS):
            self.within[place] += milliseconds <= bound


@dataclass(slots=True)
class TableCounters:
    """Counted by several threads; a lost count is no harm."""

    admission_attempts: int = 0
    admission_success: int = 0
    admission_failures: Counter[str] = field(default_factory=Counter)
    """By reason."""
    budget_exhaustion: int = 0
    read_attempts: int = 0
    read_hits: int = 0
    read_misses: Counter[str] = field(default_factory=Counter)
    """By reason."""
    durable_fallback_reads: int = 0
    resolve_ms: dict[str, Durations] = field(default_factory=dict)
    """By tier."""

    def refuse(self, reason: str) -> None:
        self.admission_failures[reason] += 1
        if reason == "budget":
            self.budget_exhaustion += 1

    def resolved(self, tier: str, seconds: float) -> None:
        self.resolve_ms.setdefault(tier, Durations()).add(seconds * 1000)

    def hit_ratio(self) -> float:
        return self.read_hits / self.read_attempts if self.read_attempts else 0.0

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Name, labels and value of each."""
        prefix = "noetl_storage_ipc"
        yield f"{prefix}_admission_attempts_total", {}, self.admission_attempts
        yield f"{prefix}_admission_success_total", {}, self.admission_success
        for reason, number in sorted({"budget": 0, **self.admission_failures}.items()):
            yield f"{prefix}_admission_failures_total", {"reason": reason}, number
        yield f"{prefix}_read_attempts_total", {}, self.read_attempts
        yield f"{prefix}_read_hits_total", {}, self.read_hits
        for reason, number in sorted({"no_segment": 0, **self.read_misses}.items()):
            yield f"{prefix}_read_misses_total", {"reason": reason}, number
        yield f"{prefix}_durable_fallback_reads_total", {}, self.durable_fallback_reads
        yield f"{prefix}_read_hit_ratio", {}, self.hit_ratio()
        yield "tier15_budget_exhaustion_total", {}, self.budget_exhaustion
        for tier, durations in sorted(self.resolve_ms.items()):
            for bound, number in zip(RESOLVE_MS_BOUNDS, durations.within, strict=True):
                yield "noetl_reference_resolve_ms_bucket", {"tier": tier, "le": f"{bound:g}"}, number
            yield "noetl_reference_resolve_ms_bucket", {"tier": tier, "le": "+Inf"}, durations.count
            yield "noetl_reference_resolve_ms_count", {"tier": tier}, durations.count
            yield "noetl_reference_resolve_ms_sum", {"tier": tier}, durations.sum
