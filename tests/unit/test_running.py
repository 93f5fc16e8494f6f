"""Work that is told to stop: at once, too early, or at the very moment when it ends."""

from __future__ import annotations

import asyncio

from noetl.core.limits import STOPS_KEPT_MAX
from noetl.engine.work.running import Running, Work
from noetl.ports.session import CommandMessage, Stop
from tests.support.aio import asynchronous

MESSAGE = CommandMessage(
    execution_id=1, tenant_id="acme", organization_id="sales", command_id="a#1", attempt=2, body={}
)
STOP = Stop(1, "a#1", 2)


async def perform(running: Running, doing: asyncio.Future[str]) -> str:
    """As a worker does it."""
    work = running.begin(MESSAGE)
    try:
        outcome = await doing
    except asyncio.CancelledError:
        if not work.is_stopped:
            raise
        outcome = "stopped"
    finally:
        running.end(MESSAGE, work)
    if work.is_stopped:
        await work.settle()
    await asyncio.sleep(0)  # the report: it must not be cancelled
    return outcome


def undone() -> asyncio.Future[str]:
    return asyncio.get_running_loop().create_future()


@asynchronous
async def test_work_is_stopped_and_its_task_goes_on_to_report() -> None:
    running, doing = Running(), undone()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(perform(running, doing))
        await asyncio.sleep(0)
        running.stop(STOP)
        running.stop(STOP)
        assert await task == "stopped"
    assert doing.cancelled()
    assert task.cancelling() == 0


@asynchronous
async def test_a_word_about_another_attempt_does_nothing() -> None:
    running, doing = Running(), undone()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(perform(running, doing))
        await asyncio.sleep(0)
        for stop in (STOP._replace(attempt=1), STOP._replace(command_id="b#1"), STOP._replace(execution_id=2)):
            running.stop(stop)
        await asyncio.sleep(0)
        doing.set_result("done")
        assert await task == "done"


@asynchronous
async def test_a_word_that_overtakes_its_command_is_remembered() -> None:
    running, doing = Running(), undone()
    running.stop(STOP)
    async with asyncio.TaskGroup() as group:
        assert await group.create_task(perform(running, doing)) == "stopped"


@asynchronous
async def test_only_so_many_early_words_are_kept() -> None:
    running = Running()
    for number in range(STOPS_KEPT_MAX + 1):
        running.stop(STOP._replace(execution_id=number))
    assert len(running._early) == STOPS_KEPT_MAX
    assert (0, "a#1", 2) not in running._early


@asynchronous
async def test_work_that_ends_at_the_moment_of_the_stop_reports_what_it_has() -> None:
    running, doing = Running(), undone()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(perform(running, doing))
        await asyncio.sleep(0)
        doing.set_result("done")
        running.stop(STOP)  # the task is already on its way: its cancellation comes at the next wait
        assert await task in ("done", "stopped")
    assert task.cancelling() == 0


@asynchronous
async def test_a_drain_reaches_work_that_can_drain_now_or_later() -> None:
    drained: list[str] = []

    async def draining() -> None:
        work = Work()
        work.drain()
        assert drained == []
        work.drains_by(lambda: drained.append("later"))
        work.drain()

    await draining()
    assert drained == ["later", "later"]


@asynchronous
async def test_the_end_of_a_withdrawn_announcement_leaves_the_next_one_alone() -> None:
    running = Running()
    first = running.begin(MESSAGE)
    second = running.begin(MESSAGE)
    running.end(MESSAGE, first)
    running.stop(STOP._replace(drain=True))
    assert second._is_draining
    running.end(MESSAGE, second)
    assert not running._works
