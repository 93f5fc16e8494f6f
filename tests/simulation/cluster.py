"""Several servers on one database: they join, die, stand still for longer than their leases, come back and leave, while
clients start executions wherever somebody answers.  However that goes, the outcome is that of one server in peace."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from unittest import mock

from noetl.adapters.memory.database import MemoryDatabase
from noetl.adapters.memory.serving.processes import Presence
from noetl.core.errors import LedgerUnavailable, NoetlError, Transient
from noetl.engine.control import commands
from noetl.engine.sharing import shards
from tests.simulation.checks import check_cache, is_projected, require
from tests.simulation.clocks import SkewedClock
from tests.simulation.faults import Weather
from tests.simulation.loop import PROCESS, begin, run_simulated, the_loop
from tests.simulation.server import ServerLife
from tests.simulation.side import Surroundings
from tests.simulation.world import SETTLE_SECONDS, Outcome, Setting, World, leaves, set_up, simulate_fair, tuning_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSetting:
    """What a seed chooses for its servers; `one` is what each of them has."""

    one: Setting
    servers: int
    tail_seconds: float = 0.2
    others_seconds: float = 0.3


def cluster_of(seed: int) -> ClusterSetting:
    chance = random.Random(f"cluster {seed}")
    weather = Weather(
        seconds_max=chance.choice((0.01, 0.1, 0.5)),
        trouble=chance.choice((0.0, 0.02, 0.08)),
        crash=chance.choice((0.002, 0.005, 0.02)),
        crashes_max=chance.randint(0, 8),
        duplicate=chance.choice((0.0, 0.2)),
        stop=chance.choice((0.0, 0.5, 0.8)),
        skew_seconds_max=chance.choice((0.0, 2.0, 600.0)),
    )
    one = Setting(
        shards=chance.choice((1, 2, 5)),
        slots=chance.choice((1, 2, 4)),
        batch_inputs_max=chance.choice((1, 2, 128)),
        weather=weather,
        tuning=tuning_of(chance),
    )
    return ClusterSetting(one=one, servers=chance.choice((1, 2, 3)))


def intruded(seed: int) -> ClusterSetting:
    """The same, with somebody else in the database who locks shards."""
    chosen = cluster_of(seed)
    weather = replace(chosen.one.weather, locks=4)
    return replace(chosen, one=replace(chosen.one, shards=3, weather=weather))


def scattered(seed: int) -> ClusterSetting:
    """The same, with workers in different places and servers that want work near its data; playbooks of many loops."""
    chosen = cluster_of(seed)
    one = replace(chosen.one, loops=0.6, tuning=replace(chosen.one.tuning, is_spread=True))
    return replace(chosen, servers=3, one=one)


@dataclass(slots=True, eq=False)
class Member:
    """A server, and what became of it."""

    life: ServerLife
    process: asyncio.Task[None]
    is_gone: bool = False
    was_away: bool = False


class Cluster(World):
    def __init__(self, seed: int, setting: ClusterSetting, database: type[MemoryDatabase] = MemoryDatabase) -> None:
        super().__init__(seed, setting.one, database)
        self.cluster = setting
        self.presence = Presence(self.database)
        self.members: list[Member] = []

    # --- what happens to servers -----------------------------------------------------------------------------

    async def _keep_alive(self) -> None:
        """Have about so many servers; whoever dies is replaced by somebody new."""
        while not self._is_over():
            self._raise_defects()
            if len(self._there) < self.cluster.servers:
                self._join()
            elif self.faults.seen["handed over"] < 4 and self.chance.random() < 0.05:
                self._change_size()
            await asyncio.sleep(self.chance.random())
        await self._settle_all()

    @property
    def _there(self) -> list[Member]:
        return [member for member in self.members if not (member.is_gone or member.process.done())]

    def _join(self) -> None:
        self.lives += 1
        weather, setting = self.setting.weather, self.setting
        life = ServerLife(
            self.presence,
            Surroundings(
                database=self.database,
                faults=self.faults,
                clock=SkewedClock(self.clock, self.chance, seconds_max=weather.skew_seconds_max),
                tuning=setting.tuning,
            ),
            large=self._large,
            chance=self.chance,
            weather=weather,
            slots=setting.slots,
            number=self.lives,
        )
        life.shelf.texts.update(self.shelf)
        self.members.append(Member(life, begin(life, life.run())))

    def _change_size(self) -> None:
        """One more than wanted, or one that leaves as it should."""
        self.faults.seen["handed over"] += 1
        if self.chance.random() < 0.5:
            self._join()
            return
        member = self.chance.choice(self._there)
        if member.life.is_open.is_set():
            member.is_gone = True
            begin(None, self._leave(member))

    async def _leave(self, member: Member) -> None:
        member.process.cancel()
        await asyncio.wait([member.process], timeout=60)
        leaving = begin(member.life, member.life.leave())
        await asyncio.wait([leaving], timeout=60)
        the_loop().stop_process(member.life)

    def _crash(self) -> None:
        """Whoever runs now dies, or stands still until its leases are long over."""
        life = PROCESS.get()
        member = next((member for member in self.members if member.life is life), None)
        if member is None:
            return
        the_loop().stop_process(life)
        if self.chance.random() < self.setting.weather.stop:
            member.was_away = True
            self._dead.append(begin(None, self._wake(member)))
        else:
            member.is_gone = True

    async def _wake(self, member: Member) -> None:
        await asyncio.sleep(self.chance.random() * 3 * self.setting.tuning.lease_seconds)
        self.faults.seen["zombies"] += 1
        the_loop().continue_process(member.life)

    def _raise_defects(self) -> None:
        """A server that cannot reach the database may fail to start; once it runs, nothing may end it."""
        for member in self.members:
            if not member.process.done() or member.is_gone:
                continue
            member.is_gone = True
            error = None if member.process.cancelled() else member.process.exception()
            is_starting = not member.life.is_open.is_set()
            if error is not None and not (is_starting and all(isinstance(e, LedgerUnavailable) for e in leaves(error))):
                raise error

    async def _settle_all(self) -> None:
        """When everything has ended, every slot of every server is free, and what it remembers is true."""
        self.faults.is_active = False
        await asyncio.gather(*self._dead)
        await asyncio.sleep(SETTLE_SECONDS)
        self._raise_defects()
        for member in self._there:
            life = member.life
            if life.is_open.is_set():
                free = life.sessions.free_slots
                held = [dict(one.holds) for one in life.sessions.connected.values()]
                require(free == self.setting.slots, f"{free} slots of server {life.number} are free; it holds {held}")
                check_cache(self.database, life.states)
            the_loop().stop_process(life)

    def _is_over(self) -> bool:
        if len(self.started) < len(self.playbooks):
            return False
        tables = self.database.tables
        is_closed = all(tables.streams[e].closed for e in self.started.values())
        return is_closed and not tables.commands and not tables.timers and is_projected(self.database)

    # --- clients ---------------------------------------------------------------------------------------------

    async def _client(self, number: int) -> None:
        """Ask any server; after an unknown outcome ask again, perhaps another one, with the same key."""
        await asyncio.sleep(self.chance.random() * 3)
        request = self._request(number)
        while number not in self.started:
            there = [member for member in self._there if member.life.is_open.is_set()]
            if not there:
                await asyncio.sleep(0.25)
                continue
            member = self.chance.choice(there)
            started = await self._answered(member, member.life.service.start(request))
            if started is not None:
                self.started[number] = started.execution_id
            else:
                await asyncio.sleep(self.chance.random())

    async def _answered(self, member: Member, question: Coroutine[Any, Any, T]) -> T | None:
        """What a server answered; None when nobody knows.  A client does not wait for ever."""
        asked = begin(member.life, question)
        await asyncio.wait([asked], timeout=30)
        if not asked.done() or asked.cancelled():
            return None
        error = asked.exception()
        if error is None:
            return asked.result()
        require(isinstance(error, NoetlError) and isinstance(error, Transient), f"start: {error!r}")
        return None


@contextmanager
def spread(setting: ClusterSetting) -> Iterator[None]:
    """Servers that look less often: time costs nothing here, looking does."""
    with (
        mock.patch.object(shards, "TAIL_SECONDS", setting.tail_seconds),
        mock.patch.object(commands, "OTHERS_SECONDS", setting.others_seconds),
        set_up(setting.one),
    ):
        yield


def simulate_cluster(
    seed: int, setting: ClusterSetting | None = None, database: type[MemoryDatabase] = MemoryDatabase
) -> Outcome:
    chosen = setting or cluster_of(seed)
    world = Cluster(seed, chosen, database)
    with spread(chosen):
        return run_simulated(world.run(), world.clock, random.Random(f"loop {seed}"))


def in_peace(seed: int, setting: ClusterSetting | None = None) -> Outcome:
    """The same playbooks, one server, nothing goes wrong."""
    chosen = setting or cluster_of(seed)
    return simulate_fair(seed, chosen.one)
