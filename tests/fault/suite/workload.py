"""Workload W0: executions with large results and frame loops whose rows have effects that the oracle counts."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import aiohttp

from tests.fault.suite.cluster import Cluster, login
from tests.fault.suite.oracle import ACKNOWLEDGED, REFUSED, UNKNOWN, Oracle

CREDENTIAL = "oracle"
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: %s}\nworkload: {run: none, items: 1, parts: 1}\n"
CHAIN = (
    HEAD % "w0_chain"
    + """
workflow:
  - step: first
    tool: {kind: python, code: "result = {'text': run * 20000, 'n': 1}", input: {run: "{{ run }}"}}
    next: second
  - step: second
    tool:
      kind: postgres
      auth: oracle
      command: "INSERT INTO effect (run, item, part) VALUES ('{{ run }}', 0, 1)"
    next: third
  - step: third
    tool: {kind: python, code: "result = {'n': n + 1}", input: {n: "{{ first.n }}"}}
"""
)
LOOP = (
    HEAD % "w0_loop"
    + """
workflow:
  - step: start
    tool: {kind: python, code: "result = list(range(items))", input: {items: "{{ items }}"}}
    next: rows
  - step: rows
    loop:
      in: "{{ start }}"
      iterator: n
      spec: {mode: parallel, max_in_flight: 16, frame: {max_rows: 50, max_attempts: 100}}
    tool:
      kind: postgres
      auth: oracle
      command: |
        INSERT INTO effect (run, item, part) SELECT '{{ run }}', {{ n }}, g FROM generate_series(1, {{ parts }}) g
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """How much of it.  `open_max` runs are under way at a time, for as long as the driver drives."""

    open_max: int = 8
    loop_share: float = 0.2
    items: int = 200
    parts: int = 10


@dataclass(slots=True)
class Driver:
    """A client with the manners of a good one: an answer that did not come is asked for again, under the same key."""

    cluster: Cluster
    oracle: Oracle
    chance: random.Random
    volume: Volume
    expected: dict[str, int] = field(default_factory=dict)
    """Items that a run must have had an effect for, by run."""
    acknowledged: dict[str, int] = field(default_factory=dict)
    wrong: Counter[str] = field(default_factory=Counter)
    """Answers that blame the client for what happened to the servers."""
    prefix: str = "run"
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def prepare(self) -> None:
        await self.oracle.make()
        body = {"type": "postgres", "data": login(self.cluster)}
        status, answer = await self.cluster.any_server("PUT", f"/api/credentials/{CREDENTIAL}", body=body)
        assert status == 200, answer

    async def drive(self) -> None:
        """Keep runs under way until somebody says that it is enough."""
        async with asyncio.TaskGroup() as group:
            under_way: set[asyncio.Task[str]] = set()
            while not self._is_over.is_set():
                open_now = await open_executions(self.cluster)
                if open_now is not None and open_now + len(under_way) < self.volume.open_max:
                    task = group.create_task(self.submit())
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                else:
                    await asyncio.sleep(0.1)

    def stop(self) -> None:
        self._is_over.set()

    async def submit(self, *, is_loop: bool | None = None, items: int | None = None) -> str:
        """One run, asked for until it is acknowledged."""
        is_loop = self.chance.random() < self.volume.loop_share if is_loop is None else is_loop
        run = f"{self.prefix}-{next(self._numbers)}"
        count = (items or self.volume.items) if is_loop else 1
        payload = {"run": run, "items": count, "parts": self.volume.parts}
        self.expected[run] = count
        body = {"playbook": LOOP if is_loop else CHAIN, "payload": payload}
        urls = list(self.cluster.worker_urls)
        self.chance.shuffle(urls)
        for url in itertools.cycle(urls):
            try:
                status, answer = await self.cluster.request(
                    "POST", "/api/executions", body=body, url=url, headers={"Idempotency-Key": run}
                )
            except (aiohttp.ClientError, TimeoutError):
                await self.oracle.note(run, UNKNOWN)
            else:
                if status in (200, 201):
                    self.acknowledged[run] = int(answer["execution_id"])
                    await self.oracle.note(run, ACKNOWLEDGED, int(answer["execution_id"]))
                    return run
                if status < 500:
                    self.wrong[f"{status} {answer.get('code')}"] += 1
                await self.oracle.note(run, REFUSED)
            await asyncio.sleep(self.chance.uniform(0.05, 0.3))
        raise AssertionError("unreachable")

    async def until_quiet(self, *, seconds: float) -> float:
        """Wait for the end of everything that was begun; how long that took."""
        begun = time.monotonic()
        while True:
            left = await open_executions(self.cluster)
            if left == 0:
                return time.monotonic() - begun
            if time.monotonic() - begun > seconds:
                return float("inf")
            await asyncio.sleep(0.1)


async def open_executions(cluster: Cluster) -> int | None:
    """How many there are; None while the database does not say."""
    found = await cluster.look.rows(
        "SELECT count(*) AS n FROM noetl.stream WHERE NOT closed AND execution_id >= 4194304"
    )
    return None if found is None else int(found[0]["n"])
