"""A worker's logs over memory: bounded, in order, without secrets, durable before the end of their command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from noetl.adapters.memory.clock import VirtualClock
from noetl.adapters.memory.faults import Faults, Mishap, Outcome
from noetl.adapters.memory.logs.chunks import MemoryLogs
from noetl.adapters.memory.payloads import Contents, MemoryPayloads
from noetl.core import limits
from noetl.core.logs.lines import LogLine, decoded
from noetl.core.reference import reference_from_json
from noetl.core.secret import Secret
from noetl.engine.payloads import Payloads
from noetl.engine.work.calling.redact import Redactor
from noetl.engine.work.logs.shipper import WorkerLogs
from noetl.engine.work.logs.task_log import TaskLog
from noetl.ports.data.logs import StoredChunk
from noetl.ports.secrets import Credential
from noetl.ports.session import CommandMessage
from tests.support.aio import asynchronous

OWNER = {"tenant_id": "acme", "organization_id": "sales"}
SECRET = "canary-Zq8fX2"


def message(command_id: str = "load#1", attempt: int = 1) -> CommandMessage:
    return CommandMessage(1, "acme", "sales", command_id, attempt, {"step": "load"})


class World:
    """Logs, what they are written to, and who speaks."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.kept = MemoryLogs(self.faults)
        self.contents: Contents = {}
        self.clock = VirtualClock()
        store = MemoryPayloads(self.contents)
        self.payloads = Payloads(small=store, large=store)
        self.logs = WorkerLogs(self.kept, self.payloads, self.clock)
        self.redactor = Redactor()

    def speaker(self, about: CommandMessage | None = None, *, task: str = "t", row: int | None = None) -> TaskLog:
        return TaskLog(partial(self.logs.of, about or message()), self.redactor, task=task, row=row, tried=1)

    async def chunks(self) -> list[StoredChunk]:
        return await self.kept.read(1, **OWNER, after=0, step=None, limit=10_000)

    async def lines(self) -> list[LogLine]:
        found: list[LogLine] = []
        for stored in await self.chunks():
            content = stored.chunk.content
            if content is None:
                assert stored.chunk.reference is not None
                content = await self.payloads.read(reference_from_json(stored.chunk.reference), **OWNER)
            found += decoded(content)
        return found

    async def texts(self) -> list[str]:
        return [line.text for line in await self.lines()]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    found = World()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(found.logs.run())
        yield found
        running.cancel()


@asynchronous
async def test_what_was_said_is_durable_when_the_command_ends() -> None:
    async with world() as here:
        log = here.speaker(row=3)
        here.clock.advance(2.5)
        log("one\ntw", stream="stdout")
        log("o\n", stream="stdout")
        log("half", stream="stderr")
        log.end()
        assert await here.logs.end(message()) == {"lines": 3, "bytes": 10}
        lines = await here.lines()
        assert [(line.stream, line.text, line.row, line.task) for line in lines] == [
            ("stdout", "one", 3, "t"),
            ("stdout", "two", 3, "t"),
            ("stderr", "half", 3, "t"),
        ]
        assert lines[0].at_ms == 1_767_225_602_500


@asynchronous
async def test_a_command_that_says_nothing_has_no_log() -> None:
    async with world() as here:
        here.speaker().end()
        assert await here.logs.end(message()) is None
        assert await here.chunks() == []


@asynchronous
async def test_lines_are_durable_while_their_command_still_runs() -> None:
    async with world() as here:
        here.speaker()("first\nsecond is not comple", stream="stdout")
        while not await here.chunks():
            await asyncio.sleep(0.01)
        assert await here.texts() == ["first"]
        # Of a command that is told to stop nobody ends the task: its open line is kept all the same.
        await here.logs.end(message())
        assert await here.texts() == ["first", "second is not comple"]


@asynchronous
async def test_many_commands_share_a_write_and_attempts_are_told_apart() -> None:
    async with world() as here:
        here.faults.script("write_logs", Mishap(seconds_before=0.05))
        abouts = [message(f"c#{number}", attempt) for number in range(30) for attempt in (1, 2)]
        for about in abouts:
            here.speaker(about)(f"{about.command_id} {about.attempt}\n")
        await asyncio.gather(*(here.logs.end(about) for about in abouts))
        chunks = [stored.chunk for stored in await here.chunks()]
        assert {(one.command_id, one.attempt) for one in chunks} == {(a.command_id, a.attempt) for a in abouts}
        assert sorted(await here.texts()) == sorted(f"{a.command_id} {a.attempt}" for a in abouts)


@pytest.mark.parametrize("outcome", [Outcome.NOT_DONE, Outcome.REPLY_LOST])
@asynchronous
async def test_a_sink_that_is_away_for_a_moment_loses_and_doubles_nothing(outcome: Outcome) -> None:
    async with world() as here:
        here.faults.script("write_logs", Mishap(outcome=outcome))
        here.speaker()("kept\n")
        await here.logs.end(message())
        assert await here.texts() == ["kept"]


@asynchronous
async def test_a_sink_that_does_not_come_back_holds_up_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl.engine.work.logs.shipper.LOG_DURABLE_SECONDS_MAX", 0.05)
    monkeypatch.setattr("noetl.engine.work.logs.shipper.LAST_SECONDS_MAX", 0.05)
    async with world() as here:
        here.faults.script("write_logs", *[Mishap(outcome=Outcome.NOT_DONE)] * 1_000)
        here.speaker()("lost\n")
        assert await here.logs.end(message()) == {"lines": 1, "bytes": 4}


@asynchronous
async def test_a_worker_that_is_told_to_end_writes_its_last_lines() -> None:
    async with world() as here:
        here.speaker()("last words\n")
        await asyncio.sleep(0)
    assert await here.texts() == ["last words"]


# --- bounds ----------------------------------------------------------------------------------------------------


@asynchronous
async def test_of_a_long_log_the_beginning_and_the_end_are_kept_and_the_gap_is_said() -> None:
    async with world() as here:
        log = here.speaker()
        line = "x" * 1_000
        count = 2 * limits.LOG_COMMAND_BYTES_MAX // 1_000
        for first in range(0, count, 1_000):
            log("".join(f"{n} {line}\n" for n in range(first, first + 1_000)))
            while here.logs.of(message()).has_waiting:
                await asyncio.sleep(0)
                await here.logs._flush()
        log(f"{count} the end\n")
        said = await here.logs.end(message())
        assert said is not None
        texts = await here.texts()
        assert texts[0].startswith("0 x")
        assert texts[-1] == f"{count} the end"
        (gap,) = [text for text in texts if text.startswith("…")]
        assert gap.endswith(" MB left out")
        kept = {int(text.split()[0]) for text in texts if not text.startswith("…")}
        missing = set(range(count + 1)) - kept
        assert missing == set(range(min(missing), max(missing) + 1)), "there is one gap"
        assert said["bytes"] <= limits.LOG_COMMAND_BYTES_MAX + limits.LOG_TAIL_BYTES_MAX + 1_000
        assert said["left_out_bytes"] >= limits.LOG_COMMAND_BYTES_MAX - limits.LOG_TAIL_BYTES_MAX


@asynchronous
async def test_lines_without_text_are_bounded_too() -> None:
    async with world() as here:
        log = here.speaker()
        for _ in range(20):
            log("\n" * 100_000)
        said = await here.logs.end(message())
        assert said is not None
        assert said["lines"] <= limits.LOG_WAITING_BYTES_MAX // limits.LOG_LINE_BYTES + 2
        assert said["left_out_bytes"] > 0


@asynchronous
async def test_what_a_tool_lost_is_said() -> None:
    async with world() as here:
        log = here.speaker()
        log("a\n")
        log.left_out(5 * 1024 * 1024)
        log.end()
        assert await here.logs.end(message()) == {"lines": 2, "bytes": 18, "left_out_bytes": 5 * 1024 * 1024}
        assert await here.texts() == ["a", "… 5 MB left out"]


@asynchronous
async def test_a_large_chunk_is_a_payload_and_a_small_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAYLOAD_INLINE_BYTES_MAX", 3_000)
    async with world() as here:
        for size in (10, 2_000):
            log = here.speaker()
            log("".join(f"{n * 7919 % 100_003}\n" for n in range(size)))
            log.end()
            await here.logs._flush()
        small, large = [stored.chunk for stored in await here.chunks()]
        assert (small.reference, large.content) == (None, None)
        assert len(here.contents) == 1
        assert len(await here.lines()) == 2_010
        await here.logs.end(message())


# --- secrets and lies --------------------------------------------------------------------------------------------


@asynchronous
async def test_a_secret_is_scrubbed_character_by_character_and_in_each_stream() -> None:
    async with world() as here:
        here.redactor.learn(Credential(name="x", type="bearer", data=Secret({"token": SECRET})))
        log = here.speaker()
        for number, character in enumerate(f"is {SECRET} seen\n"):
            log(character, stream="stdout")
            log(SECRET.encode().hex()[2 * number : 2 * number + 2], stream="stderr")
        log(f"cut off: {SECRET}", stream="log")
        log.end()
        await here.logs.end(message())
        assert sorted(await here.texts()) == ["***", "cut off: ***", "is *** seen"]
        everything = b"".join(stored.chunk.content or b"" for stored in await here.chunks())
        assert SECRET.encode() not in everything


@asynchronous
async def test_a_moment_outside_of_the_attempt_is_not_believed() -> None:
    async with world() as here:
        here.clock.advance(100)
        log = here.speaker()
        log("\n", at=100.0)
        here.clock.advance(10)
        for at in (105.0, 99.0, 1e300, float("nan"), float("-inf")):
            log("\n", at=at)
        await here.logs.end(message())
        seconds = [(line.at_ms - 1_767_225_600_000) / 1_000 for line in await here.lines()]
        assert seconds == [100, 105, 110, 110, 110, 110]


@asynchronous
async def test_who_speaks_after_the_end_is_not_heard() -> None:
    async with world() as here:
        log = here.speaker()
        log("heard\n")
        log.end()
        log("late\n")
        log.left_out(1)
        await here.logs.end(message())
        log("too late\n")
        assert await here.logs.end(message()) is None
        assert await here.texts() == ["heard"]
