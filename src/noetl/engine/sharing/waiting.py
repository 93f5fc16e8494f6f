"""What waits to be recorded, and the patience that goes with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import ParamSpec, TypeVar

from noetl.core import kinds
from noetl.core.errors import LedgerUnavailable, NoetlError
from noetl.engine.children.inputs import CHILD_REPORTED, ChildStartInput
from noetl.engine.control.batch import Batch
from noetl.engine.control.inputs import CancelInput, DecideInput, FactInput, Input, RestoreInput, StartInput
from noetl.ports.ledger import Ledger
from noetl.ports.session import Stop

RETRY_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0)
log = logging.getLogger("noetl.decider")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Waiting:
    """An input whose sender waits for its answer.  One that was tried and whose outcome is unknown is uncertain."""

    input: Input
    answer: asyncio.Future[None]
    is_uncertain: bool = False
    shard_id: int | None = None
    """Where its execution is, once that was looked up."""

    def succeed(self) -> None:
        if not self.answer.done():
            self.answer.set_result(None)

    def refuse(self, error: NoetlError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(slots=True)
class Attempt:
    """A commit on its way: what it is about, and the shards in which it held."""

    batch: Batch
    taken: list[Waiting]
    held: frozenset[int] = frozenset()


def unheard(one: Input) -> Waiting:
    """An input for whose answer nobody waits; a refusal is not an unhandled error."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return Waiting(one, future)


async def patiently(read: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Ask for as long as Postgres is away: a decider outlives its database."""
    for seconds in chain(RETRY_SECONDS, repeat(RETRY_SECONDS[-1])):
        try:
            return await read(*args, **kwargs)
        except LedgerUnavailable as error:
            log.warning("read failed", extra={"event": "ledger.unavailable", "reason": str(error)})
            await asyncio.sleep(seconds)
    raise AssertionError("unreachable")


class Turns:
    """Whoever waits for an answer of this process gets a turn behind so many events: to fold and to decide takes the
    processor, and what others recorded may be much."""

    EVENTS = 32

    def __init__(self) -> None:
        self._taken = 0

    async def take(self, events: int) -> None:
        self._taken += events
        if self._taken >= self.EVENTS:
            self._taken = 0
            await asyncio.sleep(0)


async def is_recorded(ledger: Ledger, one: Input) -> bool:
    """Whether the ledger already holds what an uncertain commit tried to write."""
    if not isinstance(one, FactInput | ChildStartInput | CancelInput | StartInput):
        return False
    events = await ledger.read_execution(one.execution_id)
    if isinstance(one, StartInput):
        return bool(events)
    if isinstance(one, CancelInput):
        return any(event.event_type == kinds.CANCEL_REQUESTED for event in events)
    kind = CHILD_REPORTED if isinstance(one, ChildStartInput) else (one.fact.event_type,)
    return any(
        (event.frame_id or event.command_id) == one.fact.command_id
        and event.event_type in kind
        and event.meta.get("attempt") == one.fact.attempt
        # Of several words of one kind about an attempt, this one; the others number themselves.
        and event.meta.get("n") == one.fact.meta.get("n", event.meta.get("n"))
        for event in events
    )


def apart(taken: Sequence[Waiting]) -> list[list[Waiting]]:
    """Smaller commits for inputs that are refused together.  What others recorded goes first and stays together as long
    as there is anything else: any other commit moves the mark behind which it would be found again."""
    recorded = [waiting for waiting in taken if getattr(waiting.input, "undecided", ())]
    rest = [waiting for waiting in taken if not getattr(waiting.input, "undecided", ())]
    if recorded and rest:
        return [recorded, *([waiting] for waiting in rest)]
    return [[waiting] for waiting in taken]


def one_each(taken: Iterable[Waiting]) -> tuple[list[Waiting], list[Waiting], list[Stop]]:
    """Of inputs that bring an execution up to what is recorded the first one only, since it will be made anew; all
    other inputs; and what the first had to stop."""
    recorded: dict[int, Waiting] = {}
    others: list[Waiting] = []
    stops: list[Stop] = []
    for waiting in taken:
        if isinstance(waiting.input, RestoreInput):
            stops += waiting.input.stops
        if isinstance(waiting.input, RestoreInput | DecideInput):
            recorded.setdefault(waiting.input.execution_id, waiting)
        else:
            others.append(waiting)
    return list(recorded.values()), others, stops
