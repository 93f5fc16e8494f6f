"""Permits of shared limits: what workers say about them, and the books where all servers see who has how many.

The books are no authority: everything in them is said again by whoever uses the limit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from noetl.core.permits.dealing import Ask, Book, Dealt
from noetl.core.permits.rates import Allowance


class LimitKey(NamedTuple):
    """A limit is shared by its name within a tenant and organization."""

    tenant_id: str
    organization_id: str
    name: str


class PermitUse(NamedTuple):
    """What a worker says about one limit and one execution.  `returned` only grows."""

    key: LimitKey
    execution_id: int
    allowance: Allowance
    returned: int
    in_use: int
    waiting: int


class PermitGrant(NamedTuple):
    """`granted` is the sum of all permits so far, those that were returned included; `allowance` is what holds, which
    may be stricter than what was declared.  For `keep_seconds` a permit that a call has done with may be used by the
    next one of the same execution, because nobody else waits."""

    key: LimitKey
    execution_id: int
    granted: int
    allowance: Allowance
    keep_seconds: float = 0.0


class PermitSource(Protocol):
    """The worker's end."""

    async def ask(self, turn: int, uses: Sequence[PermitUse], *, wait_seconds: float) -> Sequence[PermitGrant]:
        """Say everything that is in use or wanted, and wait for the first news.  `turn` rises from word to word: one
        that comes after a later one changes nothing.  What is not said is not in use any more."""
        ...


@dataclass(frozen=True, slots=True)
class LimitUser:
    """An execution at a limit."""

    execution_id: int
    in_use: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitView:
    name: str
    allowance: Allowance
    granted: int
    users: Sequence[LimitUser]


class PermitBooks(Protocol):
    async def turn(self, key: LimitKey, asks: Sequence[Ask], *, own: Collection[int]) -> Dealt | None:
        """Deal permits to these sessions, those of them that are alive.  None when others had their turns for too long:
        then nothing has happened."""
        ...

    async def sweep(self, *, unused_seconds: float) -> int:
        """Forget limits that nobody used for so long, some of them at a time; returns how many."""
        ...

    async def look(self, *, tenant_id: str, organization_id: str) -> list[LimitView]:
        """The limits that somebody uses, by name."""
        ...


def view_of(name: str, dealt: int, book: Book, now: float) -> LimitView:
    """A limit as it is shown; an execution may sit in several sessions."""
    sums: dict[int, list[int]] = {}
    for seat in book.seats:
        if seat.is_kept_at(now):
            known = sums.setdefault(seat.execution_id, [0, 0])
            known[0] += seat.in_use
            known[1] += seat.waiting_at(now)
    users = tuple(LimitUser(one, in_use, waiting) for one, (in_use, waiting) in sorted(sums.items()))
    return LimitView(name=name, allowance=book.allowance_at(now), granted=dealt, users=users)
