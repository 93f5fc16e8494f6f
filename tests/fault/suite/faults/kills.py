"""F1 to F4: processes that are killed, at random and at every named moment, and processes that stand still."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field

from noetl.points import POINTS
from tests.fault.suite.cluster import Node, Shape, instance_of
from tests.fault.suite.nemesis import Holdings, Strike, asked, held, holdings, until_let_go
from tests.fault.suite.stage import Outcome, Stage, stage
from tests.fault.suite.workload import Volume

LEASE_SECONDS = 1.5
RESUME_SECONDS_MAX = 5.0
HIT_SECONDS_MAX = 60.0
LATE_SECONDS_MAX = 15.0
# Moments that a process comes to a few times at most.
RARE = frozenset(
    (
        *("server.owned", "server.restored", "server.registered", "server.released", "server.handed_over"),
        *("reaper.released", "projector.owned"),
    )
)
# Moments to which only the death of another process leads, or its return.
PROVOKED = {
    "server.registered": ("worker",),
    "server.released": ("worker",),
    "server.handed_over": ("server",),
    # A worker that lives tells the next server what it held: its own must die with it.
    "reaper.released": ("worker", "server"),
}


_BUSIEST = """
SELECT r.instance, count(*) AS commands
FROM noetl.command AS c JOIN noetl.session AS s USING (session_id) JOIN noetl.runtime AS r USING (runtime_id)
GROUP BY r.instance ORDER BY commands DESC, r.instance LIMIT 1
"""


@dataclass(slots=True)
class Armed:
    """The processes that have the point in them, also after they were started again."""

    spec: str
    nodes: list[Node]
    by_pid: dict[int, Node] = field(default_factory=dict)

    async def start(self, node: Node) -> None:
        if node not in self.nodes:
            await node.start()
            return
        await node.start(spec=self.spec)
        self.by_pid[node.pid] = node


async def at_random(seed: int, shape: Shape, *, kills: int, pause: tuple[float, float] = (0.5, 1.5)) -> Outcome:
    roles = [role for role in ("server", "worker", "projector") if getattr(shape, f"{role}s")]
    async with stage("F1", f"SIGKILL at random, {kills} of each role", seed=seed, shape=shape) as found:
        async with found.driven():
            await found.nemesis.at_random(dict.fromkeys(roles, kills), pause=pause)
        await found.judge()
        _expect_recovery(found)
    return found.outcome


def _expect_recovery(found: Stage) -> None:
    times = [strike.seconds for strike in found.nemesis.strikes if strike.seconds is not None]
    if times:
        found.outcome.expect(
            "seconds until nothing was held by the dead, after the lease",
            max(times) - LEASE_SECONDS,
            at_most=RESUME_SECONDS_MAX,
        )


async def at_points(seed: int, shape: Shape, *, names: tuple[str, ...] | None = None, action: str = "kill") -> Outcome:
    """One process is started again with a point in it that ends it; then the next point."""
    wanted = names if names is not None else tuple(POINTS)
    says = f"SIGKILL at each of {len(wanted)} named moments" if action == "kill" else "lost answers at named moments"
    async with stage("F2", says, seed=seed, shape=shape, volume=Volume(open_max=6, items=100)) as found:
        async with found.driven():
            for name in wanted:
                await strike_point(found, name, action)
        await found.judge()
        hit = {line.split()[0] for line in found.cluster.marks()}
        found.outcome.missed.extend(f"failure point {name} was never hit" for name in wanted if name not in hit)
        _expect_recovery(found)
    return found.outcome


async def strike_point(found: Stage, name: str, action: str) -> None:
    """Every process that may come to the moment is started anew with the point in it; the first one is hit."""
    nodes = [node for role in _roles_of(found, name) for node in found.cluster.of(role)]
    # Which of several servers has the role, the shard or the workers, nobody knows before.
    if nodes[0].role != "server":
        nodes = [found.chance.choice(nodes)]
    times = 1 if name in RARE else found.chance.randint(1, 3)
    before = len(found.cluster.marks())
    armed = Armed(f"{name}:{action}:{times}", nodes)
    for node in nodes:
        node.kill()
        await armed.start(node)
    hit = await _until_hit(found, name, before, armed)
    if hit is None:
        await _disarm(nodes)
        return
    if action != "kill":
        found.nemesis.strikes.append(Strike(POINTS[name][0], f"the answer is lost at {name}"))
        return
    victim = armed.by_pid[hit]
    what, since = found.watched.get(instance_of(hit), Holdings([], [])), time.monotonic()
    strike = Strike(POINTS[name][0], name)
    found.nemesis.strikes.append(strike)
    if victim.pid == hit:
        assert victim.process is not None
        await asyncio.to_thread(victim.process.wait)
    async with asyncio.TaskGroup() as group:
        letting_go = group.create_task(until_let_go(found.cluster, what, since))
        group.create_task(_disarm(nodes))
    strike.seconds = letting_go.result()


async def _disarm(nodes: list[Node]) -> None:
    """New processes without the point, also for those that did not come to it."""
    for node in nodes:
        if node.is_alive:
            node.kill()
        await node.start()


async def _until_hit(found: Stage, name: str, before: int, armed: Armed) -> int | None:
    """The process that came to the moment; None when nobody did."""
    deadline = time.monotonic() + HIT_SECONDS_MAX
    provoke = time.monotonic() + 0.5
    while not (marks := [line for line in found.cluster.marks()[before:] if line.startswith(f"{name} ")]):
        if time.monotonic() > deadline:
            return None
        if name in PROVOKED and time.monotonic() > provoke:
            await _provoked(found, PROVOKED[name], armed)
            provoke = time.monotonic() + 5.0
        # While it lives: afterwards its rows may be somebody else's.
        for node in found.cluster.nodes:
            if node.is_alive:
                found.watched[node.instance] = await holdings(found.cluster, node.instance)
        await asyncio.sleep(0.02)
    return int(marks[0].split()[2])


async def _provoked(found: Stage, roles: tuple[str, ...], armed: Armed) -> None:
    """Some moments follow only from the death of other processes, or from their coming."""
    nodes = [found.chance.choice(found.cluster.of("server"))] if "server" in roles else []
    if nodes and "worker" in roles:
        rows = await asked(found.cluster, _BUSIEST)
        # What it holds in the name of its workers is what must be left behind.
        nodes = [node for node in found.cluster.of("server") if rows and node.instance == rows[0][0]]
        if not nodes:
            return
    if "worker" in roles:
        workers = found.cluster.of("worker")
        # Of a server that dies, all: nobody knows which of them were its own.
        nodes = [*(workers if nodes else [found.chance.choice(workers)]), *nodes]
    for node in nodes:
        if node.is_alive:
            node.kill()
    # A server that comes back cleans up behind itself: the others need the time to do it first.
    await asyncio.sleep({1: 1.5, 2: 4.0}[len(roles)] * LEASE_SECONDS if "server" in roles else 0.0)
    for node in nodes:
        await armed.start(node)


def _roles_of(found: Stage, name: str) -> list[str]:
    """Where the code of a component runs: roles and stores are parts of servers, projections have their own process or
    are part of a server."""
    component = POINTS[name][0]
    if component in ("projector", "snapshotter"):
        return ["projector"] if found.cluster.of("projector") else ["server"]
    return [component] if component == "worker" else ["server"]


# Moments at which a write is ready and not sent: whoever stands still there writes when it wakes up.  By what the
# refusal is counted, and by whom.
LATE = {"worker.sending": "noetl_facts_late_total", "server.advancing": "noetl_commit_misses_total"}


async def standing_still(seed: int, shape: Shape, *, times: int, late_times: int = 2) -> Outcome:
    """F4: whoever wakes up after its lease must not write in its old name."""
    says = f"SIGSTOP for three leases, {times} times at random, {late_times} times before each of {len(LATE)} writes"
    async with stage("F4", says, seed=seed, shape=shape) as found:
        refused = dict.fromkeys(LATE, 0.0)
        async with found.driven():
            for _ in range(times):
                await asyncio.sleep(found.chance.uniform(0.2, 0.8))
                await _still(found, found.chance.choice([node for node in found.cluster.nodes if node.is_up()]))
            # Counted before any server begins anew.
            facts = await found.cluster.counted(LATE["worker.sending"], found.cluster.of("server"))
            found.outcome.figures["late facts that were refused, at random"] = facts
            for name in LATE:
                for _ in range(late_times):
                    refused[name] += await _still_at(found, name)
        await found.judge()
        for name, count in refused.items():
            found.outcome.expect(f"late writes that were refused ({name})", count, at_least=late_times)
    return found.outcome


async def _still(found: Stage, node: Node) -> None:
    found.nemesis.strikes.append(Strike(node.role, "stands still for 3 leases"))
    node.signal(signal.SIGSTOP)
    await asyncio.sleep(3 * LEASE_SECONDS)
    node.signal(signal.SIGCONT)


async def _still_at(found: Stage, name: str) -> float:
    """A new process stands still right before a write; returns how many were refused when it woke up."""
    node = found.chance.choice(found.cluster.of(POINTS[name][0]))
    before = len(found.cluster.marks())
    node.kill()
    # Of a server the very first decision: whatever it counts afterwards began with that one.
    node.spawn(spec=f"{name}:stop:{1 if node.role == 'server' else found.chance.randint(1, 3)}")
    if not await _is_standing(found, name, before):
        found.outcome.missed.append(f"nobody stood still at {name}")
        return 0.0
    found.nemesis.strikes.append(Strike(node.role, f"stands still for 3 leases at {name}"))
    what = await holdings(found.cluster, node.instance)
    had = await held(found.cluster, what)
    await asyncio.sleep(3 * LEASE_SECONDS)
    if not had or await held(found.cluster, what):
        found.outcome.missed.append(f"what stood still at {name} did not hold anything, or holds it still")
    servers = [node] if node.role == "server" else found.cluster.of("server")
    counted = 0.0 if node.role == "server" else await found.cluster.counted(LATE[name], servers)
    node.signal(signal.SIGCONT)
    deadline = time.monotonic() + LATE_SECONDS_MAX
    refused = 0.0
    while not refused and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
        if all(one.is_up() for one in servers):
            refused = await found.cluster.counted(LATE[name], servers) - counted
    return min(refused, 1.0)


async def _is_standing(found: Stage, name: str, before: int) -> bool:
    deadline = time.monotonic() + HIT_SECONDS_MAX
    while not any(line.startswith(f"{name} stop ") for line in found.cluster.marks()[before:]):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True
