"""Permits of shared limits over HTTP: one word of the worker about all its calls, answered when there is news."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from noetl.adapters.session.http_stream_lease import Lease
from noetl.adapters.session.http_stream_link import ServerLink
from noetl.core.errors import HostUnavailable, LeaseLost, NoetlError
from noetl.core.permits.rates import Allowance
from noetl.ports.serving.permits import PermitGrant, PermitUse

ANSWER_SECONDS_MAX = 10.0
"""Beyond what the server was asked to wait."""


class HttpPermits:
    """`lease` is the session that counts now; what was granted to an earlier one is others' by now."""

    def __init__(self, link: ServerLink, lease: Callable[[], Lease | None]) -> None:
        self._link = link
        self._lease = lease

    async def ask(self, turn: int, uses: Sequence[PermitUse], *, wait_seconds: float) -> Sequence[PermitGrant]:
        lease = self._lease()
        if lease is None:
            if not uses:
                return ()
            raise HostUnavailable("there is no session now")
        body = {"turn": turn, "wait_s": wait_seconds, "uses": [_document(use) for use in uses]}
        found = await self._answer(lease, f"/api/worker/sessions/{lease.session_id}/permits", body, wait_seconds)
        known = {(use.key.name, str(use.execution_id)): use for use in uses}
        return [grant for one in found for grant in _grants(one, known)]

    async def _answer(self, lease: Lease, path: str, body: object, wait_seconds: float) -> list[Any]:
        """The answer, unless the session is lost before it comes: a server that stands still is not waited for."""
        outcome: list[Any] | NoetlError | None = None

        async def ask() -> None:
            nonlocal outcome
            try:
                async with asyncio.timeout(wait_seconds + ANSWER_SECONDS_MAX):
                    permits: Any = (await self._link.ask("POST", path, body=body)).get("permits")
                    outcome = permits if isinstance(permits, list) else HostUnavailable("the answer has no permits")
            except NoetlError as error:
                outcome = error
            except TimeoutError:
                outcome = HostUnavailable(f"the server at {self._link.place.url} does not answer")

        async with asyncio.TaskGroup() as group:
            asking, losing = group.create_task(ask()), group.create_task(lease.lost.wait())
            await asyncio.wait([asking, losing], return_when=asyncio.FIRST_COMPLETED)
            asking.cancel()
            losing.cancel()
        if isinstance(outcome, NoetlError):
            raise outcome
        if outcome is None or not lease.is_good:
            raise LeaseLost("the session is lost, and its permits with it")
        return outcome


def _document(use: PermitUse) -> dict[str, object]:
    return {
        "execution_id": str(use.execution_id),
        "limit": use.key.name,
        "rate": use.allowance.rate,
        "concurrency": use.allowance.concurrency,
        "returned": use.returned,
        "in_use": use.in_use,
        "waiting": use.waiting,
    }


def _grants(found: Any, known: dict[tuple[str, str], PermitUse]) -> list[PermitGrant]:
    try:
        use = known.get((found["limit"], found["execution_id"]))
        allowance = Allowance(rate=found["rate"], concurrency=found["concurrency"])
        granted, keep = int(found["granted"]), float(found["keep_s"])
        return [] if use is None else [PermitGrant(use.key, use.execution_id, granted, allowance, keep)]
    except (KeyError, TypeError, ValueError) as error:
        raise HostUnavailable(f"the server's answer about permits cannot be read: {error!r}") from error
