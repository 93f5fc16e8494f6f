"""Ten times more than a server can carry: it refuses at once, remembers what it accepted, and is its old self after."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

import pytest

from tests.support.databases import connected
from tests.support.load import UNANSWERED, Client, Replies, resident_bytes, sampled
from tests.support.server import Place, running_server
from tests.support.yaml import playbook, write

MEGABYTE = 1024 * 1024
OVERLOAD = 10.0
# A client that waits for its own connections offers a little less than it wants to.
OVERLOAD_MIN = 0.8 * OVERLOAD
RATE_MAX = 4_000.0
GROWTH_BYTES_MAX = 96 * MEGABYTE
RECOVERY_SECONDS_MAX = 30.0
ANSWER_SECONDS_MAX = 20.0
# Rendering it needs a process of its own: a start that costs a server some milliseconds.
WORK = playbook(
    """
    workload: {text: "{% for i in range(20000) %}{{ i }}{% endfor %}"}
    workflow:
      - step: only
        tool: {kind: noop}
    """
)


@dataclass(frozen=True, slots=True)
class Figures:
    capacity: float
    offered: float
    accepted: int
    refused: int
    p99_ms: float
    refusal_p99_ms: float
    grown_mb: float
    recovery_seconds: float
    new_run_seconds: float
    """From a submission after the flood, when all is normal again, to its end: behind whatever was accepted before."""
    drained_seconds: float

    @property
    def times(self) -> float:
        """How much was offered of what the server can carry."""
        return self.offered / self.capacity

    def __str__(self) -> str:
        return f"{self.times:.1f} times the capacity: {self!r}"


async def flooded(server: Place, seconds: float) -> Figures:
    headers = {"Authorization": f"Bearer {server.tokens['token']}", "Content-Type": "application/json"}
    body = json.dumps({"playbook": WORK}).encode()
    client = Client(server.url, headers, "/api/executions", body)
    pid = server.processes[0].pid
    try:
        await client.closed_loop(4, 0.5)
        capacity = await client.closed_loop(16, 1.5)
        normal, accepted = client.replies.quantile(0.99), client.replies.of(201)
        client.replies = flood = Replies()
        with sampled(lambda: resident_bytes(pid)) as memory:
            rate = min(OVERLOAD * capacity, RATE_MAX)
            await client.open_loop(rate, seconds)
        client.replies = Replies()
        recovery = await recovered(client, normal)
        new = await client.post()
    finally:
        client.close()
    check_answers(flood)
    assert new.status == 201, new
    accepted += [*flood.of(201), *client.replies.of(201)]
    first = await all_ended(server, [new.execution_id], behind=len(accepted))
    new_run = time.monotonic() - new.sent_at
    drained = first + await all_ended(server, [one.execution_id for one in accepted])
    return Figures(
        capacity=capacity,
        offered=len(flood.all) / seconds,
        accepted=len(flood.of(201)),
        refused=len(flood.of(503)),
        p99_ms=flood.quantile(0.99) * 1000,
        refusal_p99_ms=flood.quantile(0.99, 503) * 1000,
        grown_mb=(max(memory) - memory[0]) / MEGABYTE,
        recovery_seconds=recovery,
        new_run_seconds=new_run,
        drained_seconds=drained,
    )


def check_answers(flood: Replies) -> None:
    assert flood.of(503), "this was no overload"
    assert set(flood.statuses) <= {201, 503}, flood.statuses
    assert not flood.of(UNANSWERED)
    for one in flood.of(503):
        assert one.retry_after is not None
        assert int(one.retry_after) >= 1
        assert json.loads(one.content)["code"] == "append_overloaded"
    assert flood.of(201), "nobody was served"
    assert max(one.seconds for one in flood.all) < ANSWER_SECONDS_MAX


async def recovered(client: Client, normal_seconds: float) -> float:
    """Seconds until ten requests in a row are served as before."""
    begun, good = time.monotonic(), 0
    while good < 10:
        reply = await client.post()
        good = good + 1 if reply.status == 201 and reply.seconds <= 2 * normal_seconds + 0.1 else 0
        assert time.monotonic() - begun < RECOVERY_SECONDS_MAX, client.replies.all[-10:]
        await asyncio.sleep(0.02)
    return time.monotonic() - begun


async def all_ended(server: Place, execution_ids: list[int], *, behind: int = 0) -> float:
    """Seconds until the ledger has the good end of everything that was accepted, and nothing twice.  `behind` are those
    that were accepted before."""
    begun = time.monotonic()
    assert len(set(execution_ids)) == len(execution_ids)
    async with connected(server.environment["NOETL_POSTGRES_DSN"]) as database:
        begins = "SELECT count(*) FROM noetl.event WHERE execution_id = ANY($1) AND event_type = 'playbook.initialized'"
        assert await database.fetchval(begins, execution_ids) == len(execution_ids), "an accepted execution is lost"
        ends = "SELECT count(*) FROM noetl.event WHERE execution_id = ANY($1) AND event_type = 'playbook.completed'"
        while (ended := await database.fetchval(ends, execution_ids)) < len(execution_ids):
            assert time.monotonic() - begun < 30 + (behind + len(execution_ids)) / 50, (
                f"{ended} of {len(execution_ids)} ended"
            )
            await asyncio.sleep(0.2)
    return time.monotonic() - begun


def check(figures: Figures, server: Place) -> None:
    assert figures.grown_mb * MEGABYTE < GROWTH_BYTES_MAX, figures
    assert server.sessions() == 1, "the worker lost its session"
    refused = server.request("GET", "/metrics").content.decode()
    assert 'noetl_requests_refused_total{sort="starting"} 0' not in refused


def test_a_flood_is_refused_with_a_time_to_come_again_and_nothing_accepted_is_lost() -> None:
    with running_server(NOETL_PYTHON_CHILDREN_MAX="2") as server:
        figures = asyncio.run(flooded(server, seconds=2.0))
        print(figures)
        check(figures, server)


@pytest.mark.long
def test_a_minute_of_ten_times_too_much_leaves_the_server_as_it_was() -> None:
    with running_server(NOETL_PYTHON_CHILDREN_MAX="2") as server:
        # A client that waits as it is told comes through.
        patient = server.cli().spawn("run", write(server.home, WORK))
        figures = asyncio.run(flooded(server, seconds=60.0))
        print(figures)
        check(figures, server)
        assert figures.times >= OVERLOAD_MIN, "this was no tenfold overload"
        said, complained = patient.communicate(timeout=60)
        assert patient.returncode == 0, (said, complained)
