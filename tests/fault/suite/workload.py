"""Workload W0: executions with large results and frame loops whose rows have effects that the oracle counts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
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
# A row fails, or all of it is cancelled, when others run and more wait: what runs comes to its end or is stopped, what
# waits is taken back.  Row `items` fails, if there is one.
UNHAPPY = (
    HEAD % "w0_unhappy"
    + """
workflow:
  - step: rows
    loop:
      in: "{{ range(60) | list }}"
      iterator: n
      spec: {mode: parallel, max_in_flight: 6, frame: {max_rows: 2, max_attempts: 100}}
    tool:
      kind: python
      input: {n: "{{ n }}", items: "{{ items }}"}
      code: |
        import time
        time.sleep(0.1)
        result = 1 // (n - items)
"""
)
FAILING_ROW, NO_ROW = 5, -1
FAILED, CANCELLED_OR_NOT = ("playbook.failed",), ("execution.cancelled", "playbook.completed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """How much of it.  `open_max` runs are under way at a time, for as long as the driver drives."""

    open_max: int = 8
    loop_share: float = 0.2
    items: int = 200
    parts: int = 10
    unhappy_share: float = 0.1
    """Of runs that fail by themselves or that somebody cancels: the same holds of them."""


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
    ends: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """How executions may end that need not complete."""
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
                    is_unhappy = self.chance.random() < self.volume.unhappy_share
                    task = group.create_task(self.submit_unhappy() if is_unhappy else self.submit())
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                else:
                    await asyncio.sleep(0.1)

    def stop(self) -> None:
        self._is_over.set()

    async def submit(self, *, is_loop: bool | None = None, items: int | None = None) -> str:
        """One run, asked for until it is acknowledged."""
        is_loop = self.chance.random() < self.volume.loop_share if is_loop is None else is_loop
        count = (items or self.volume.items) if is_loop else 1
        return await self._acknowledged(LOOP if is_loop else CHAIN, count=count, expected=count)

    async def submit_unhappy(self, *, is_cancelled: bool | None = None) -> str:
        """A run that fails, or one that is cancelled in the middle unless it is faster.  Nobody counts its effects."""
        is_cancelled = self.chance.random() < 0.5 if is_cancelled is None else is_cancelled
        if not is_cancelled:
            run = await self._acknowledged(UNHAPPY, count=FAILING_ROW, expected=0)
            self.ends[self.acknowledged[run]] = FAILED
            return run
        run = await self._acknowledged(UNHAPPY, count=NO_ROW, expected=0)
        self.ends[self.acknowledged[run]] = CANCELLED_OR_NOT
        await asyncio.sleep(self.chance.uniform(0.1, 0.5))
        await self._cancelled(self.acknowledged[run])
        return run

    async def _acknowledged(self, playbook: str, *, count: int, expected: int) -> str:
        run = f"{self.prefix}-{next(self._numbers)}"
        payload = {"run": run, "items": count, "parts": self.volume.parts}
        self.expected[run] = expected
        body = {"playbook": playbook, "payload": payload}
        for url in self._urls():
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

    async def _cancelled(self, execution_id: int) -> None:
        """Asked for until somebody has heard it; that it has ended before is an answer too."""
        for url in self._urls():
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                status, answer = await self.cluster.request(
                    "POST", f"/api/executions/{execution_id}/cancel", body={}, url=url
                )
                if status < 300 or answer.get("code") == "execution_closed":
                    return
                if status < 500:
                    self.wrong[f"{status} {answer.get('code')}"] += 1
                    return
            await asyncio.sleep(self.chance.uniform(0.05, 0.3))

    def _urls(self) -> Iterator[str]:
        urls = list(self.cluster.worker_urls)
        self.chance.shuffle(urls)
        return itertools.cycle(urls)

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
