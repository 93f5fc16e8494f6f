"""Tier 1.5 of one process: which node it is on, what it offers to others there and what it finds of theirs."""

from __future__ import annotations

import atexit
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from noetl.adapters.arrow.counters import TableCounters
from noetl.adapters.arrow.opening.opened import TableContent
from noetl.adapters.arrow.segments.attach import SegmentMiss, Wanted, attach
from noetl.adapters.arrow.segments.folder import SegmentFolder, SegmentRefused, prepare
from noetl.adapters.arrow.segments.places import segment_root
from noetl.adapters.arrow.segments.writer import Published, SegmentIdentity, SegmentWriter, adopt
from noetl.core.limits import SEGMENT_BYTES_MIN, SEGMENT_LEASE_SECONDS
from noetl.core.reference import Reference

OTHERS_MAX = 1_000
FOREVER_SECONDS = 1e9
FREE_SHARE_MIN = 8
"""The file system keeps an eighth of itself free for others, and an eighth of what is free."""
UNUSED_SECONDS = 3_600
"""A folder in which nothing has changed for so long is used by nobody.  One that was just made is empty too."""


def payload_key(tenant_id: str, organization_id: str, sha256: str) -> str:
    """Tenant and organization are part of the name, so equal content of two of them is kept twice."""
    parts = (tenant_id, organization_id, sha256)
    return hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()[:32]


def affordable_bytes(root: Path, budget_bytes: int) -> int:
    """The budget, or less where the file system is smaller: containers often have 64 MB of shared memory."""
    facts = os.statvfs(root.parent)
    return min(budget_bytes, facts.f_blocks * facts.f_frsize * (FREE_SHARE_MIN - 1) // FREE_SHARE_MIN)


def sweep_others(root: Path) -> None:
    """Folders of other homes beside one: what dead processes left there has nobody else who would remove it."""
    for path in sorted(root.parent.glob(f"noetl-{os.getuid()}-*"))[:OTHERS_MAX]:
        if path == root:
            continue
        try:
            changed = path.lstat().st_mtime  # before sweeping, which is a change
            other = SegmentFolder(path, budget_bytes=0, grace_seconds=FOREVER_SECONDS)
        except (SegmentRefused, OSError):
            continue
        other.sweep()
        if changed + UNUSED_SECONDS < time.time():
            other.remove_if_empty()


def open_segments(*, node_id: str, home: Path, budget_bytes: int, grace_seconds: float) -> Segments | None:
    """The shared tier of a node, swept; None when its budget is 0 or there is no place for it."""
    if budget_bytes <= 0:
        return None
    for root in (segment_root(node_id, home), home / "segments"):
        try:
            budget = affordable_bytes(root, budget_bytes)
            folder = SegmentFolder(root, budget_bytes=budget, grace_seconds=grace_seconds)
        except (SegmentRefused, OSError):
            continue
        folder.sweep()
        sweep_others(root)
        atexit.register(folder.remove_own)
        return Segments(node_id=node_id, folder=folder, counters=TableCounters())
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """The segments of a node, seen from one process."""

    node_id: str
    folder: SegmentFolder
    counters: TableCounters
    lease_seconds: float = SEGMENT_LEASE_SECONDS
    """How long a segment is promised; the next step mostly comes within seconds."""
    bytes_min: int = SEGMENT_BYTES_MIN
    """Below this, reading the durable bytes again takes about as long as finding a segment."""

    def room_bytes(self) -> int:
        """How much somebody may write who begins a file of unknown size: of the budget, and of what the file system
        has.  The folder is there then, and counts as used."""
        root, budget = self.folder.root, self.folder.budget_bytes
        try:
            prepare(root)
            os.utime(root)
            facts = os.statvfs(root)
        except (SegmentRefused, OSError):
            return 0
        used = self.folder.bytes_in_use()
        if used >= budget // 2:
            return 0
        return min(budget - used, facts.f_bavail * facts.f_frsize * (FREE_SHARE_MIN - 1) // FREE_SHARE_MIN)

    def publish(self, writer: SegmentWriter, identity: SegmentIdentity) -> Published | None:
        published = writer.publish(identity, lease_seconds=self.lease_seconds)
        if writer.refusal == "small":
            return None  # never meant to have one
        self.counters.admission_attempts += 1
        if published is None:
            self.counters.refuse(writer.refusal or "system")
        else:
            self.counters.admission_success += 1
        return published

    def adopt(self, path: Path, identity: SegmentIdentity, length: int) -> Published | None:
        self.counters.admission_attempts += 1
        try:
            published = adopt(self.folder, path, identity, length=length, lease_seconds=self.lease_seconds)
        except SegmentRefused as error:
            self.counters.refuse(error.reason)
            return None
        self.counters.admission_success += 1
        return published

    def hint(self, sha256: str, published: Published) -> dict[str, dict[str, object]]:
        until = datetime.fromtimestamp(published.until_us / 1_000_000, UTC)
        text = until.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {sha256: {"node": self.node_id, "name": published.name, "until": text}}

    def find(self, reference: Reference, key: str) -> TableContent | None:
        """A segment by the hint of a reference, or by the name that one of this payload must have."""
        self.counters.read_attempts += 1
        reasons: list[str] = []
        for name in self._names(reference, key, reasons):
            try:
                content = attach(self.folder, name, Wanted(key=key, reference=reference))
            except SegmentMiss as miss:
                reasons.append(miss.reason)
                continue
            self.counters.read_hits += 1
            return content
        self.counters.read_misses[reasons[0] if reasons else "no_segment"] += 1
        return None

    def _names(self, reference: Reference, key: str, reasons: list[str]) -> Iterator[str]:
        """Where to look; why the hint is of no use comes to the reasons."""
        hint = (reference.ipc or {}).get(reference.sha256)
        tried = None
        if isinstance(hint, Mapping):
            name = hint.get("name")
            if hint.get("node") != self.node_id:
                reasons.append("foreign")
            elif isinstance(name, str):
                tried = name
                yield name
        yield from (name for name in self.folder.find(key) if name != tried)
