"""Requests under way: which row runs in which child, whose answer came, and what becomes of the rows behind it.

Invariants: a child runs one row at a time; a row that was started is never given to another child; one that was
not is not failed by what its child does.  What a child answers is not believed before its ticket is checked.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from noetl.core.errors import Failure
from noetl.tools.python import wire
from noetl.tools.python.links import Call, CallOwner, ChildLink, Row

TIMEOUT_SECONDS_MAX = 30 * 86_400.0

CLOSED = Failure(kind="cancelled", code="PY_POOL_CLOSED", message="the worker is shutting down")
_FORGED = Failure(
    kind="python", code="RESULT_INVALID", message="the code wrote to the connection of its Python process"
)


class Exchange:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        on_free: Callable[[ChildLink], None],
        on_spoilt: Callable[[ChildLink], None],
    ) -> None:
        """A free child has no call any more; a spoilt one is to be killed."""
        self.requests_total = 0
        self.tasks_total = 0
        self._loop = loop
        self._on_free = on_free
        self._on_spoilt = on_spoilt
        self._tickets = 0

    def send(
        self,
        child: ChildLink,
        rows: list[Row],
        request: tuple[bytes, ...],
        timeout_seconds: float,
        owner: CallOwner | None,
    ) -> Call:
        """Send rows to a free child.  Whatever goes wrong with them ends this child and nothing else."""
        # Tickets may be guessed: what code could write ahead arrives while its own ticket is the current one.  What it
        # wrote to the pipe of its output is thrown away here, while nobody has a ticket.
        child.output.receive()
        call = child.call = Call(rows, child=child, ticket=self._tickets, owner=owner)
        self._tickets += len(rows)
        self.requests_total += 1
        for row in rows:
            row.call = call
            row.pid = child.pid
        seconds = min(max(timeout_seconds, 0.0), TIMEOUT_SECONDS_MAX)
        call.progress_at = self._loop.time()
        call.timer = self._loop.call_later(seconds, self._expire, call, seconds)
        if child.is_dying:  # it ended between being assigned and now
            self.fail(child, ended(None, None))
            return call
        if owner is not None:
            child.permit(len(rows))
        child.send(wire.with_ticket(request, call.ticket))
        return call

    def catch_up(self, call: Call, *, take_all: bool = False) -> None:
        """Take back the rows behind the running one, and read what the child has answered until now.

        In this order: the answer of a row is written before the permit of the next one is taken, so that
        afterwards at most one row that was started is without an answer, and that one is running.
        """
        self._take_back(call, take_all=take_all)
        call.child.receive()

    def abandon(self, row: Row) -> None:
        """Nobody waits for this row any more.  If it is running, it ends with its child."""
        call = row.call
        if call is None:
            return
        self.catch_up(call, take_all=True)
        if row.call is call:
            self.fail(call.child, CLOSED)
            self._on_spoilt(call.child)

    def lost(self, call: Call) -> None:
        """The child is about to be killed, or is gone: take back what it has not started, and now cannot.

        A row that two children in turn did not live to start stays and fails, or it would go on for ever.
        """
        first = call.rows[call.answered] if call.answered < len(call.rows) else None
        if first is None:
            return
        self._take_back(call, take_all=call.answered > 0 or not first.was_lost)
        if first.call is None:
            first.was_lost = True

    def fail(self, child: ChildLink, failure: Failure) -> None:
        """The child answers no more: the running row fails, those behind it are for another child."""
        call = child.call
        if call is None:
            return
        self.lost(call)
        child.output.receive()  # its last words
        for row in call.rows[call.answered :]:
            row.finish(failure, self._loop.time() - call.progress_at)
        self._close_call(call)

    # --- answers -----------------------------------------------------------------------------------------

    def answered(self, child: ChildLink, payload: bytes) -> None:
        call = child.call
        ticket, mark, seconds, needed_seconds = wire.read_prefix(payload)
        if mark & wire.PRINTED:
            mark ^= wire.PRINTED
            child.output.receive()  # before its row is over
        if ticket == child.last_ticket:
            # A row had answered for itself, and this is our own answer for it: only the child is spoilt.
            self._spoil(child)
        elif call is None or ticket != call.ticket + call.answered:
            self._forged(child)
        elif call.answered < len(call.rows):
            if needed_seconds and call.owner is not None:
                call.owner.learn(needed_seconds)
            self._row_answered(call, payload, mark, seconds)
        elif mark == wire.RETURNED:
            call.is_returning = False
            self._conclude(call)
        else:
            self._forged(child)

    def _row_answered(self, call: Call, payload: bytes, mark: int, seconds: float) -> None:
        child, row = call.child, call.rows[call.answered]
        child.last_ticket = call.ticket + call.answered
        call.answered += 1
        call.progress_at = self._loop.time()
        child.tasks += 1
        self.tasks_total += 1
        row.finish(payload, seconds)
        if mark == wire.REUSABLE:
            self._conclude(call)
        else:
            self._spoil(child)

    def _conclude(self, call: Call) -> None:
        """Free the child if it is through with the call."""
        if call.answered == len(call.rows) and (call.child.is_spent or not call.is_returning):
            self._close_call(call)
            self._on_free(call.child)

    def _spoil(self, child: ChildLink) -> None:
        """This child gets no other row."""
        child.is_spent = True
        if child.call is None:
            self._on_spoilt(child)
        else:
            self._take_back(child.call, take_all=True)
            self._conclude(child.call)

    def _forged(self, child: ChildLink) -> None:
        """User code wrote to the socket, before our own answer for its row."""
        call = child.call
        child.is_spent = True
        if call is not None:
            self._take_back(call, take_all=True)
            if len(call.rows) > call.answered + 1:
                # It is over: others have started since, and what they did is on its way.
                call.rows[call.answered].finish(_FORGED, 0.0)
                return
        self.fail(child, _FORGED)
        self._on_spoilt(child)

    def _take_back(self, call: Call, *, take_all: bool) -> None:
        """Without `take_all` the next row stays, started or not: a child that is only late keeps something to do."""
        if call.owner is None:
            return
        count_max = len(call.rows) - call.answered - (0 if take_all else 1)
        count = call.child.withdraw_permits(count_max)
        if count == 0:
            return
        call.is_returning = True
        rows = call.rows[-count:]
        del call.rows[-count:]
        for row in rows:
            row.call = None
        call.owner.take_back(rows)

    def _close_call(self, call: Call) -> None:
        call.child.call = None
        if call.timer is not None:
            call.timer.cancel()
        if call.owner is not None:
            call.owner.ended(call)

    # --- time --------------------------------------------------------------------------------------------

    def _expire(self, call: Call, seconds: float) -> None:
        remaining = self._remaining(call, seconds)
        if remaining <= 0:
            self.catch_up(call)
            remaining = self._remaining(call, seconds)
        if call.child.call is not call:
            return
        if remaining > 0:  # it answered since the timer was set
            call.timer = self._loop.call_later(remaining, self._expire, call, seconds)
            return
        message = f"the code ran longer than its limit of {seconds:g} s and was killed"
        self.fail(call.child, Failure(kind="timeout", code="PY_TIMEOUT", message=message, retryable=True))
        self._on_spoilt(call.child)

    def _remaining(self, call: Call, seconds: float) -> float:
        return call.progress_at + seconds - self._loop.time()


def ended(status: int | None, reason: str | None) -> Failure:
    """What is known about a child that ended before it answered."""
    details: dict[str, object] = {}
    if status is None:
        text = reason or "no status is known"
    elif os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        details["signal"] = number
        text = f"killed by signal {number} ({_signal_name(number)})"
        if number == signal.SIGKILL:
            text += ", as when memory runs out or the code breaks its connection"
    else:
        details["exit_code"] = os.WEXITSTATUS(status)
        text = f"exit code {os.WEXITSTATUS(status)}"
    message = f"the Python process ended before the task did: {text}"
    return Failure(kind="python", code="PY_EXITED", message=message, details=details)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"
