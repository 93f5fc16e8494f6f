"""Ids and ordinals.  A snowflake id is 41 bits of milliseconds since 2024-01-01Z, 10 bits of node and 12 bits
of sequence, so ids are ordered by time and an id range is a time range."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import NewType

ExecutionId = NewType("ExecutionId", int)
EventId = NewType("EventId", int)
ShardId = NewType("ShardId", int)
Position = NewType("Position", int)
Attempt = NewType("Attempt", int)
SessionId = NewType("SessionId", int)

EPOCH = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
NODE_BITS = 10
SEQUENCE_BITS = 12
NODE_NUMBER_MAX = (1 << NODE_BITS) - 1
_SEQUENCE_MAX = (1 << SEQUENCE_BITS) - 1
_TIME_SHIFT = NODE_BITS + SEQUENCE_BITS
SYSTEM_ID_LIMIT = 1 << _TIME_SHIFT


def is_system(execution_id: int) -> bool:
    """Whether an execution is one of the reserved ones, in which the system keeps its own facts: nobody started it,
    nothing decides it, no list shows it."""
    return execution_id < SYSTEM_ID_LIMIT


def system_execution_of(shard_id: int) -> ExecutionId:
    """The reserved execution of a shard."""
    return ExecutionId(shard_id + 1)


def milliseconds_of(moment: datetime.datetime) -> int:
    """Milliseconds between the id epoch and a moment."""
    return (moment - EPOCH) // datetime.timedelta(milliseconds=1)


def first_id_at(moment: datetime.datetime) -> int:
    """The smallest id that can be made at a moment; partition bounds are such ids."""
    return milliseconds_of(moment) << _TIME_SHIFT


def time_of(snowflake: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=snowflake >> _TIME_SHIFT)


def following_id(last: int, *, now_ms: int, node: int) -> int:
    """The next id of a node after `last`.

    A clock that stands or steps back never repeats an id: the sequence goes on in the last millisecond and
    borrows from the next one when it is used up.  A clock before the epoch never reaches the system's ids.
    """
    assert 0 <= node <= NODE_NUMBER_MAX, "node number out of range"
    last_ms, last_sequence = last >> _TIME_SHIFT, last & _SEQUENCE_MAX
    now_ms = max(now_ms, 1)
    if now_ms > last_ms:
        milliseconds, sequence = now_ms, 0
    elif last_sequence < _SEQUENCE_MAX:
        milliseconds, sequence = last_ms, last_sequence + 1
    else:
        milliseconds, sequence = last_ms + 1, 0
    return milliseconds << _TIME_SHIFT | node << SEQUENCE_BITS | sequence


@dataclass(frozen=True, slots=True)
class Quarter:
    """A calendar quarter, the unit in which the ledger is partitioned."""

    year: int
    number: int

    @property
    def name(self) -> str:
        return f"{self.year}q{self.number}"

    @property
    def start(self) -> datetime.datetime:
        return datetime.datetime(self.year, 3 * self.number - 2, 1, tzinfo=datetime.UTC)

    def following(self) -> Quarter:
        return Quarter(self.year + 1, 1) if self.number == 4 else Quarter(self.year, self.number + 1)

    def id_bounds(self) -> tuple[int, int]:
        """First id inside and first id after; the system's own ids stay below the very first quarter."""
        return max(first_id_at(self.start), SYSTEM_ID_LIMIT), first_id_at(self.following().start)


def quarter_named(name: str) -> Quarter | None:
    """The quarter of a name; None for any other text."""
    year, mark, number = name.partition("q")
    if mark and year.isascii() and year.isdigit() and number in ("1", "2", "3", "4"):
        return Quarter(int(year), int(number))
    return None


def quarter_of(moment: datetime.datetime) -> Quarter:
    moment = moment.astimezone(datetime.UTC)
    return Quarter(moment.year, (moment.month + 2) // 3)


def quarters_from(moment: datetime.datetime, count: int) -> list[Quarter]:
    quarters = [quarter_of(moment)]
    while len(quarters) < count:
        quarters.append(quarters[-1].following())
    return quarters
