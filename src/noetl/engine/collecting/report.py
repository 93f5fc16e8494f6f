"""What a run of the collector found and did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from noetl.ports.data.collection import Owner


@dataclass(slots=True)
class Heap:
    """Objects that are alike."""

    count: int = 0
    bytes: int = 0
    oldest_at: float | None = None

    def add(self, size: int, renewed_at: float) -> None:
        self.count += 1
        self.bytes += size
        self.oldest_at = renewed_at if self.oldest_at is None else min(self.oldest_at, renewed_at)

    def to_json(self) -> dict[str, object]:
        return {"count": self.count, "bytes": self.bytes, "oldest_at": self.oldest_at}


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """Whose objects, in which store, of which media type as far as the store knows, and what happens to them."""

    owner: Owner
    store: str
    media_type: str
    fate: str


YOUNG, NOMINATED, WAITING, DELETED, RENEWED, KEPT = FATES = (
    "young",
    "nominated",
    "waiting",
    "deleted",
    "renewed",
    "kept",
)
"""Fates.  `renewed`: used again at the last moment; `kept`: would go, but a payload of this owner is damaged or
missing."""


@dataclass(slots=True, kw_only=True)
class Report:
    is_dry_run: bool
    now: float
    grace_seconds: float
    held: int = 0
    reachable: int = 0
    payloads_read: int = 0
    missing: int = 0
    heaps: dict[Kind, Heap] = field(default_factory=dict)
    leftovers: Heap = field(default_factory=Heap)
    damaged: list[str] = field(default_factory=list)

    def add(self, kind: Kind, size: int, renewed_at: float) -> None:
        self.heaps.setdefault(kind, Heap()).add(size, renewed_at)

    def total(self, fates: Iterable[str]) -> Heap:
        wanted = set(fates)
        total = Heap()
        for kind, heap in self.heaps.items():
            if kind.fate in wanted and heap.oldest_at is not None:
                total.count += heap.count
                total.bytes += heap.bytes
                total.oldest_at = heap.oldest_at if total.oldest_at is None else min(total.oldest_at, heap.oldest_at)
        return total

    def to_json(self) -> dict[str, object]:
        return {
            "dry_run": self.is_dry_run,
            "now": self.now,
            "grace_seconds": self.grace_seconds,
            "payloads": self.held,
            "reachable": self.reachable,
            "payloads_read": self.payloads_read,
            "missing": self.missing,
            "unreachable": [
                {
                    "tenant_id": kind.owner.tenant_id,
                    "organization_id": kind.owner.organization_id,
                    "store": kind.store,
                    "media_type": kind.media_type,
                    "fate": kind.fate,
                    **self.heaps[kind].to_json(),
                }
                for kind in sorted(self.heaps)
            ],
            "leftovers": self.leftovers.to_json(),
            "damaged": self.damaged,
        }
