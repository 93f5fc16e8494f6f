"""The ground the simulation stands on: processes that stand still, go on late, and die without a last word."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from noetl.adapters.memory.clock import VirtualClock
from tests.simulation.loop import Stuck, begin, run_simulated, the_loop


def played(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_simulated(story(), VirtualClock(), random.Random("loop"))


async def ticks(seen: list[float], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        seen.append(asyncio.get_running_loop().time())


def test_a_stopped_process_does_nothing_and_goes_on_late() -> None:
    async def story() -> None:
        loop, stopped, other = the_loop(), [], []  # type: ignore[var-annotated]
        begin("one", ticks(stopped, 1.0))
        begin("other", ticks(other, 1.0))
        await asyncio.sleep(3.5)
        loop.stop_process("one")
        await asyncio.sleep(10)
        assert (len(stopped), len(other)) == (3, 13)
        loop.continue_process("one")
        await asyncio.sleep(0.25)
        # The timer that ran out meanwhile fires once, now.
        assert stopped[3:] == [pytest.approx(13.5)]
        await asyncio.sleep(2)
        assert len(stopped) == 6

    played(story)


def test_a_timer_that_has_not_run_out_waits_for_its_time() -> None:
    async def story() -> None:
        loop, seen = the_loop(), []  # type: ignore[var-annotated]
        begin("one", ticks(seen, 60.0))
        await asyncio.sleep(1)
        loop.stop_process("one")
        await asyncio.sleep(1)
        loop.continue_process("one")
        await asyncio.sleep(57)
        assert seen == []
        await asyncio.sleep(2)
        assert seen == [pytest.approx(60.0)]

    played(story)


def test_an_answer_to_a_stopped_process_is_heard_when_it_goes_on() -> None:
    async def story() -> None:
        loop, heard = the_loop(), []  # type: ignore[var-annotated]
        answer = loop.create_future()

        async def asks() -> None:
            heard.append(await answer)

        begin("one", asks())
        await asyncio.sleep(0.1)
        loop.stop_process("one")
        answer.set_result("yes")
        await asyncio.sleep(5)
        assert heard == []
        loop.continue_process("one")
        await asyncio.sleep(0.1)
        assert heard == ["yes"]

    played(story)


def test_a_killed_process_has_no_last_word() -> None:
    words: list[str] = []

    async def story() -> None:
        async def speaks() -> None:
            try:
                await asyncio.sleep(1)
            finally:
                words.append(f"last at {asyncio.get_running_loop().time():.0f}")

        begin("one", speaks())
        await asyncio.sleep(0.5)
        the_loop().stop_process("one")
        await asyncio.sleep(100)
        assert words == []

    played(story)


def test_where_only_stopped_processes_are_left_nothing_can_happen() -> None:
    async def story() -> None:
        task = begin("one", ticks([], 1.0))
        the_loop().stop_process("one")
        await task

    with pytest.raises(Stuck):
        played(story)
