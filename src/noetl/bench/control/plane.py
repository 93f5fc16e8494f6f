"""`control`: status, projection lag and checkpoint age while 5,000 events a second are appended.

Server and projector are processes, each as an operator would start it; the appends come from this one, and who asks for
a status is a third."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp

from noetl.adapters.postgres.ledger import PostgresLedger
from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.system.ids import SnowflakeIds
from noetl.bench.control.appending import Appends
from noetl.bench.control.asking import Answered, asker
from noetl.bench.control.stories import told_again
from noetl.bench.control.watching import Watch, quantile, reading
from noetl.bench.ground import DATABASE, BareGround, bare_grounds
from noetl.bench.measure import Metric, Report
from noetl.bench.processes import address_of, process
from noetl.bench.remote import START_SECONDS_MAX
from noetl.bench.runs import chain_playbook
from noetl.core.event import Event
from noetl.engine.append import GroupAppender
from noetl.settings import Settings

EVENTS_PER_SECOND = 5_000.0
SIDE_BY_SIDE = 32
WRITERS = 2
# A whole execution fits into one call: nobody else has anything to decide about it.
STEPS = 16
WARM_SECONDS = 5.0
SECONDS = 15.0
STATUS_P99_MS_MAX = 10.0
LAG_P95_MS_MAX = 500.0
AGE_P99_MS_MAX = 1_500.0


@dataclass(frozen=True, slots=True)
class _Place:
    database: str
    url: str
    token: str
    named: list[str]
    http: aiohttp.ClientSession


async def control(settings: Settings) -> Report:
    async with bare_grounds(settings, DATABASE) as (bare,), _serving(bare) as place:
        story = await _recorded(place)
        rate, watch, answered = await _measured(place, story, settings.shard_count)
    status_ms = [one.milliseconds for one in answered]
    return Report(
        "control",
        {
            "status_p99_ms": Metric(quantile(status_ms, 0.99), "ms", STATUS_P99_MS_MAX),
            "projection_lag_p95_ms": Metric(quantile(watch.lag_ms, 0.95), "ms", LAG_P95_MS_MAX),
            "checkpoint_age_p99_ms": Metric(quantile(watch.age_ms, 0.99), "ms", AGE_P99_MS_MAX),
            "events_per_s": Metric(rate, "1/s", EVENTS_PER_SECOND),
            "status_p50_ms": Metric(quantile(status_ms, 0.5), "ms"),
            "status_not_shown_pct": Metric(100 * sum(not one.is_shown for one in answered) / len(answered), "%"),
            "append_p99_ms": Metric(quantile([call.seconds * 1000 for call in watch.appends.answered], 0.99), "ms"),
        },
    )


@asynccontextmanager
async def _serving(bare: BareGround) -> AsyncIterator[_Place]:
    """A server without a worker, and the projector beside it."""
    token, worker_token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    async with AsyncExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-"))
        named = [f"NOETL_HOME={home}", f"NOETL_WORKER_TOKEN={worker_token}"]
        kept = f"NOETL_POSTGRES_DSN={bare.database}"
        serving = [*named, kept, "NOETL_PORT=0", f"NOETL_TOKEN={token}"]
        server = await stack.enter_async_context(process(serving, "server", "--no-projector"))
        await stack.enter_async_context(process([*named, kept], "projector"))
        url = await asyncio.wait_for(address_of(server), START_SECONDS_MAX)
        http = aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {token}"})
        await stack.enter_async_context(http)
        yield _Place(bare.database, url, token, named, http)


async def _recorded(place: _Place) -> list[Event]:
    """The events of one execution of a chain of steps, run by a worker that leaves again."""
    async with process(place.named, "worker", "--server", place.url):
        body = {"playbook": chain_playbook(STEPS)}
        async with place.http.post("/api/executions", json=body) as response:
            execution_id = (await response.json())["execution_id"]
        path = f"/api/executions/{execution_id}?wait=terminal&timeout_s=30"
        async with place.http.get(path) as response:
            final = await response.json()
        assert final["status"] == "COMPLETED", final
    reader = Reader(place.database, size_max=1)
    await reader.open()
    try:
        return list(await PostgresLedger(Writer(place.database), reader).read_execution(int(execution_id)))
    finally:
        await reader.close()


async def _measured(place: _Place, story: Sequence[Event], shard_count: int) -> tuple[float, Watch, list[Answered]]:
    ids = SnowflakeIds(node=1003)
    reader = Reader(place.database, size_max=1)
    writers = [Writer(place.database) for _ in range(WRITERS)]
    appender = GroupAppender(*(PostgresLedger(writer, reader) for writer in writers))
    begin = (told_again(story, ids, shard_count=shard_count) for _ in itertools.count())
    watch = Watch(Appends(appender, [next(begin) for _ in range(SIDE_BY_SIDE)], begin))
    try:
        async with (
            asker(place.url, place.token) as asking,
            reading(place.database) as lags,
            reading(place.database) as ages,
        ):
            async with asyncio.TaskGroup() as group:
                others = [
                    group.create_task(one)
                    for one in (appender.run(), watch.statuses(asking), watch.lags(lags), watch.ages(ages))
                ]
                await watch.appends.run(EVENTS_PER_SECOND, WARM_SECONDS)
                watch.forget()
                rate = await watch.appends.run(EVENTS_PER_SECOND, SECONDS)
                for one in others:
                    one.cancel()
            answered = (await asking.answers())[-watch.asked :]
    finally:
        for writer in writers:
            await writer.close()
    return rate, watch, answered
