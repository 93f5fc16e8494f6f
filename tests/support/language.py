"""The world of the language's tests: one engine, one stand-in and one database of work tables for a whole folder.

Tests are plain functions.  The loop of the engine turns only while a test asks it something, so nothing of it runs
beside tests of other folders."""

from __future__ import annotations

import asyncio
import contextlib
import json
import textwrap
import urllib.request
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest

from noetl.core.execution.state import Status
from noetl.engine.control import timers
from noetl.engine.executions import StartRequest
from tests.support.databases import connected, empty_database, fresh_database
from tests.support.engine import OWNER, Running, Told, _Owner, running_engine
from tests.support.postgres import shared_server
from tests.support.spark_tool import share_spark
from tests.support.standin import standin_process

T = TypeVar("T")
FOLDER = Path(__file__).parents[1] / "language" / "playbooks"
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
# What the playbooks call the credential of the database with the work tables.
CREDENTIAL = "pg_work"
# Values that nothing may show.
KEYCHAIN_SECRET = "canary/keychain&5b0d 77"
CREDENTIAL_SECRET = "canary/credential+9e21%3a"
SECONDS_MAX = 120.0
# Timers are looked at more often than in a host: a test has few of them and waits for each.
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Case:
    """A playbook with its payload, known by name."""

    name: str
    text: str
    payload: Mapping[str, object] = field(default_factory=dict)

    def given(self, **payload: object) -> Case:
        """The same playbook with another payload."""
        return Case(self.name, self.text, {**self.payload, **payload})


# Every playbook of the checklist, by name: what is written in a test also takes part in the replay.
CASES: dict[str, Case] = {}


def case(name: str, body: str, **payload: object) -> Case:
    """A playbook from everything below `metadata`."""
    assert name not in CASES, name
    head = f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: 'item {name}', path: checklist/{name}}}\n"
    made = Case(name, head + textwrap.dedent(body), payload)
    CASES[name] = made
    return made


def filed(name: str, **payload: object) -> Case:
    """A playbook of the folder."""
    return Case(name, (FOLDER / f"{name}.yaml").read_text(), payload)


@dataclass(slots=True)
class World:
    runner: asyncio.Runner
    engine: Running
    host: asyncio.Task[None]
    home: Path
    api: str
    work_address: str
    _told: dict[str, Told] = field(default_factory=dict)

    # --- playbooks -----------------------------------------------------------------------------------------

    def wait(self, work: Coroutine[Any, Any, T], *, seconds: float = SECONDS_MAX) -> T:
        """Turn the loop until something is done.  An engine that ended is an error at once, not a timeout."""

        async def race() -> T:
            task = asyncio.ensure_future(work)
            await asyncio.wait({task, self.host}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return await task
            task.cancel()
            if self.host.done():
                await self.host
            raise TimeoutError(f"not done in {seconds:g} s")

        return self.runner.run(race())

    def start(self, what: Case) -> int:
        payload = {**({"api": self.api} if "workload.api" in what.text else {}), **what.payload}
        request = StartRequest(text=what.text, file=f"{what.name}.yaml", payload=payload, idempotency_key=None, **OWNER)
        return self.wait(self.engine.engine.service.start(request)).execution_id

    def finish(self, execution_id: int) -> Told:
        return self.wait(self.engine.finish(execution_id))

    def play(self, what: Case) -> Told:
        """Run a playbook to its end; with the same payload only once."""
        key = json.dumps([what.name, what.text, what.payload], sort_keys=True)
        if key not in self._told:
            self._told[key] = self.finish(self.start(what))
        return self._told[key]

    def completed(self, what: Case) -> Any:
        """The result of a playbook that must complete."""
        told = self.play(what)
        assert told.state.status is Status.COMPLETED, told.state.failure
        return told.result

    def failed(self, what: Case) -> dict[str, Any]:
        """Step and error of a playbook that must fail."""
        told = self.play(what)
        assert told.state.status is Status.FAILED, told.result
        assert told.state.failure is not None
        failure: dict[str, Any] = dict(told.state.failure)
        return failure

    @property
    def told(self) -> list[Told]:
        """Everything that was played so far."""
        return list(self._told.values())

    # --- what is around them -------------------------------------------------------------------------------

    def register(self, what: Case) -> None:
        """Put a playbook into the catalog, under the path of its metadata."""
        self.wait(self.engine.engine.catalog.register(what.text, file=f"{what.name}.yaml", owner=_Owner()))

    def sql(self, statement: str, *, control: bool = False) -> list[dict[str, Any]]:
        """Ask the database of the work tables, or that of the ledger."""

        async def ask() -> list[dict[str, Any]]:
            async with connected(self.control_address if control else self.work_address) as connection:
                return [dict(row) for row in await connection.fetch(statement)]

        return self.wait(ask())

    control_address: str = ""

    def ask(self, path: str, *, method: str = "GET") -> Any:
        """Ask the stand-in, behind the back of the engine."""
        request = urllib.request.Request(f"{self.api}{path}", method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())


def most_events(events: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
    """How many there may be, by type and meta: a ledger does not grow by what nobody asked for.  Jobs, children, the
    claims of a cursor and frames that last longer than intended have events of their own, and what waits for a child is
    begun again."""
    told = list(events)
    count = Counter(event_type for event_type, _ in told)
    skipped = sum(1 for _, meta in told if meta.get("outcome") == "skipped")
    bound = 4 * count["command.issued"] + 3 * count["frame.dispatched"] + 4 * count["stage.opened"] + skipped + 2
    apart = ("job.", "child.", "cursor.", "frame.heartbeat", "loop.fanout.", "loop.shard.", "loop.fanin.")
    own = sum(number for name, number in count.items() if name.startswith(apart))
    return bound + own + count["child.terminal"]


@contextmanager
def running_world(home: Path) -> Iterator[World]:
    control, work = fresh_database(), empty_database()
    with (
        pytest.MonkeyPatch.context() as patch,
        standin_process(rate_limit=0) as api,
        asyncio.Runner() as runner,
    ):
        patch.setattr(timers, "LOOK_SECONDS_MAX", _LOOK_SECONDS)
        share_spark(patch)
        opened: list[Running] = []
        loop = runner.get_loop()
        host = loop.create_task(_host(control, home, opened))

        async def ready() -> None:
            while not opened and not host.done():
                await asyncio.sleep(0.005)
            if host.done():
                await host
            for name, (kind, data) in credentials(work).items():
                await opened[0].engine.credentials.put(name, type=kind, data=data, owner=_Owner())

        runner.run(ready())
        world = World(runner, opened[0], host, home, api, work)
        world.control_address = control
        for path in (*sorted((FOLDER / "lib").glob("*.yaml")), *EXAMPLES):
            world.register(Case(path.stem, path.read_text()))
        try:
            yield world
        finally:
            host.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                runner.run(_ended(host))


async def _host(address: str, home: Path, opened: list[Running]) -> None:
    async with running_engine(address, home) as running:
        opened.append(running)
        await asyncio.Event().wait()


async def _ended(host: asyncio.Task[None]) -> None:
    await host


def credentials(work: str) -> dict[str, tuple[str, dict[str, object]]]:
    """What the playbooks and the examples name: type and data."""
    server, database = shared_server().address, urlsplit(work).path.strip("/")
    login = {"db_host": str(server.socket_dir), "db_port": server.port, "db_user": "noetl", "db_name": database}
    return {
        CREDENTIAL: ("postgres", login),
        # On a laptop it is there by itself.
        "noetl_data": ("postgres", login),
        "partner_api": ("generic", {"client": "me", "secret": "open-sesame"}),
        "s10_partner": ("generic", {"secret": KEYCHAIN_SECRET}),
        "s10_token": ("bearer", {"token": CREDENTIAL_SECRET}),
    }
