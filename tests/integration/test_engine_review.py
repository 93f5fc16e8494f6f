"""What once broke the engine: commits that are tried again, inputs that poison, stores that race."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from noetl.core.errors import LedgerUnavailable, TransitionConflict
from noetl.core.execution.state import Status
from noetl.ports.ledger import Advance
from tests.support.aio import asynchronous
from tests.support.databases import empty_database
from tests.support.engine import Running, running_engine


@pytest.fixture(scope="module")
def address() -> str:
    return empty_database()


Failing = Callable[[int, Advance], None]


def disturb(engine: Running, *, before: Failing, after: Failing) -> None:
    """Let commits fail by their number: `before` one is sent, or `after` it is stored and the reply is lost."""
    ledger, numbers = engine.engine.ledger, iter(range(1_000_000))
    advance = ledger.advance

    async def disturbed(one: Advance) -> frozenset[int]:
        number = next(numbers)
        await asyncio.sleep(0.01)  # the worker prepares meanwhile what was announced
        before(number, one)
        held = await advance(one)
        after(number, one)
        return held

    ledger.advance = disturbed  # type: ignore[method-assign]


def nothing(_number: int, _advance: Advance) -> None:
    return


def lost(number: int, _advance: Advance) -> None:
    if number % 3 == 0:
        raise LedgerUnavailable("lost on the way")


def refused(_number: int, advance: Advance) -> None:
    if len({sealed.event.execution_id for sealed in advance.events}) > 1:
        raise TransitionConflict("somebody else in this commit")


@pytest.mark.parametrize(
    ("before", "after"), [(lost, nothing), (refused, nothing), (nothing, lost)], ids=["unsent", "refused", "unheard"]
)
@asynchronous
async def test_commits_that_are_tried_again_end_well(
    address: str, tmp_path: Path, before: Failing, after: Failing
) -> None:
    log = tmp_path / "log"
    body = f"""
    workflow:
      - step: start
        tool: {{kind: python, code: 'open("{log}", "a").write("x"); result = 1'}}
        next: end
      - step: end
        tool: {{kind: noop}}
    """
    async with running_engine(address, tmp_path) as engine:
        disturb(engine, before=before, after=after)
        started = await asyncio.gather(*(engine.start(body, key=f"{before} {after} {n}") for n in range(6)))
        told = [await engine.finish(execution_id) for execution_id in started]
        free = engine.engine.sessions.free_slots
        open_gates = engine.engine.session._gates
    assert [one.state.status for one in told] == [Status.COMPLETED] * 6
    assert log.read_text() == "x" * 6
    assert (free, open_gates) == (16, {})
