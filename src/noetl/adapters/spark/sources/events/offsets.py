"""How far a reader of the ledger is: the last position it has read of every shard, in one life of the ledger.

Positions have no gaps and are given in the order of commits.  So an offset is all that a reader must remember, and the
same two offsets always enclose the same events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from noetl.core.errors import LedgerCorrupt, RequestInvalid
from noetl.ports.data.sources import LedgerHeads


@dataclass(frozen=True, slots=True)
class Offset:
    incarnation: str
    positions: Mapping[int, int]

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it in its checkpoints."""
        positions = {str(shard): position for shard, position in sorted(self.positions.items())}
        return {"incarnation": self.incarnation, "positions": positions}

    def at(self, shard_id: int) -> int:
        """0 for a shard that was made after this offset."""
        return self.positions.get(shard_id, 0)


def offset_from(document: Mapping[str, Any]) -> Offset:
    """Raises RequestInvalid."""
    try:
        positions = {int(shard): int(position) for shard, position in document["positions"].items()}
        incarnation = document["incarnation"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestInvalid(f"not an offset of noetl_events: {document!r:.200}") from error
    if not isinstance(incarnation, str) or any(position < 0 for position in positions.values()):
        raise RequestInvalid(f"not an offset of noetl_events: {document!r:.200}")
    return Offset(incarnation, positions)


def end_of(heads: LedgerHeads) -> Offset:
    return Offset(heads.incarnation, heads.positions)


def beginning(heads: LedgerHeads) -> Offset:
    return Offset(heads.incarnation, dict.fromkeys(heads.positions, 0))


def check_life(known: Offset, heads: LedgerHeads) -> None:
    """A ledger that was restored has other events at positions that were read before.  Raises LedgerCorrupt."""
    if known.incarnation != heads.incarnation:
        raise LedgerCorrupt(
            f"the ledger has begun another life since this offset was read ({known.incarnation} became "
            f"{heads.incarnation}): it was restored or moved; start the stream anew with another checkpoint"
        )


def advanced(start: Offset, heads: LedgerHeads, events_max: int | None) -> Offset:
    """The furthest offset with at most so many events behind `start`, every shard getting its turn.  Raises
    LedgerCorrupt."""
    check_life(start, heads)
    waiting = {shard: max(head - start.at(shard), 0) for shard, head in heads.positions.items()}
    left = sum(waiting.values()) if events_max is None else min(events_max, sum(waiting.values()))
    taken = dict.fromkeys(waiting, 0)
    while left:
        open_ = [shard for shard in waiting if taken[shard] < waiting[shard]]
        share = max(1, left // len(open_))
        for shard in open_:
            more = min(share, waiting[shard] - taken[shard], left)
            taken[shard] += more
            left -= more
    return Offset(start.incarnation, {shard: start.at(shard) + count for shard, count in taken.items()})
