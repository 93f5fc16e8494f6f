"""A worker that ends itself, or stands still, at a named point of a cursor's frame.  It is a real one: only the ports
around a claim are watched.

    python -m tests.support.mortal_worker <point> <signal> <times> worker --server …

The points, in order: `claimed` the claim has run; `persisted` its rows are stored; `recorded` the ledger has them;
`committed` the transaction is committed; `heartbeat` rows are persisted while the frame runs; `worked` all rows have
run; `ended` the frame's end is in the ledger.  One more, `sending`, is for those that stand still:
nothing is looked at any more before the end of a frame goes to the server."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from noetl.adapters.session import http_stream_facts
from noetl.adapters.session.http_stream import HttpSession
from noetl.cli.main import main
from noetl.core import kinds
from noetl.ports.cursor import ClaimCall, OpenClaim
from noetl.ports.session import Fact
from noetl.tools.postgres.tool import PostgresTool

POINTS = ("claimed", "persisted", "recorded", "committed", "heartbeat", "worked", "ended")
_BEFORE = {kinds.CURSOR_CLAIMED: "persisted", kinds.FRAME_COMMITTED: "worked"}
_AFTER = {kinds.CURSOR_CLAIMED: "recorded", kinds.FRAME_HEARTBEAT: "heartbeat", kinds.FRAME_COMMITTED: "ended"}


class Watch:
    """The point at which this process is hit when it comes there for the n-th time."""

    def __init__(self, point: str, number: int, times: int) -> None:
        self._point, self._number, self._times = point, number, times

    def at(self, point: str | None) -> None:
        if point == self._point:
            self._times -= 1
            if self._times == 0:
                os.kill(os.getpid(), self._number)


class Watched:
    def __init__(self, claim: OpenClaim, watch: Watch) -> None:
        self._claim, self._watch = claim, watch
        self.rows, self.transaction_id, self.place = claim.rows, claim.transaction_id, claim.place

    async def commit(self) -> None:
        await self._claim.commit()
        if self.rows:
            self._watch.at("committed")


def install(watch: Watch) -> None:
    claim_of: Any = PostgresTool.claim
    report_of: Any = HttpSession.report
    post_of: Any = http_stream_facts._Sender.post

    @asynccontextmanager
    async def claim(self: PostgresTool, call: ClaimCall) -> AsyncIterator[Watched]:
        async with claim_of(self, call) as found:
            if found.rows:
                watch.at("claimed")
            yield Watched(found, watch)

    async def report(self: HttpSession, fact: Fact) -> None:
        has_rows = "claim" not in fact.meta
        watch.at(_BEFORE.get(fact.event_type) if has_rows else None)
        await report_of(self, fact)
        watch.at(_AFTER.get(fact.event_type) if has_rows else None)

    async def post(self: Any, body: bytes) -> bytes:
        if kinds.FRAME_COMMITTED.encode() in body:
            watch.at("sending")
        content: bytes = await post_of(self, body)
        return content

    http_stream_facts._Sender.post = post  # type: ignore[method-assign]
    PostgresTool.claim = claim  # type: ignore[method-assign, assignment]
    HttpSession.report = report  # type: ignore[method-assign]


if __name__ == "__main__":
    point, name, times, *words = sys.argv[1:]
    install(Watch(point, getattr(signal, name), int(times)))
    sys.argv = ["noetl", *words]
    sys.exit(main())
