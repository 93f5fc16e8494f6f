"""Giving work to whoever is near its data.

The nearest session with a free slot takes a command; a free slot takes the nearest of the commands that wait.  Whoever
is farther than a command allows gets it when nobody nearer is connected, or when those who are had no slot for it
within the patience.  So nothing waits for ever for its place, and nothing is passed over for longer than that."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from noetl.core.errors import LocatorInvalid
from noetl.core.locator import worker_locator
from noetl.core.locator.locality import NOWHERE, Distance, Place, distance_between, placement
from noetl.engine.placing.connected import Connected
from noetl.engine.placing.pools import Pools
from noetl.engine.placing.wishes import Key, Wish, wish_in
from noetl.ports.ledger import QueuedCommand
from noetl.ports.serving.roster import SessionRow

PATIENCE_SECONDS = 1.0
"""How long a command waits for a slot that is near enough, and how long one is passed over for nearer ones."""
AHEAD_ROWS = 32
"""How many rows beyond the free slots are looked at for nearer ones."""
WAITING_ROWS_MAX = 1_000


@dataclass(slots=True)
class _Group:
    """Free slots that are as good as each other."""

    place: Place
    kinds: frozenset[str] | None
    free: int

    def takes(self, kinds: Collection[str]) -> bool:
        return self.free > 0 and (self.kinds is None or self.kinds.issuperset(kinds))


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at what waits: the free slots, the wishes of those rows that have one, and who has waited enough."""

    groups: list[_Group]
    wishes: Mapping[Key, Wish]
    old: Collection[Key]
    from_source: dict[Place, list[tuple[Distance, _Group]]] = field(default_factory=dict)
    """The free slots by how near they are to a place."""

    def nearest(self, row: QueuedCommand) -> tuple[_Group | None, Distance]:
        """The nearest free slots for a row, and how near they are."""
        kinds, wish = row.tool_kind.split("+"), self.wishes.get(_key(row))
        if wish is None:
            able = (group for group in self.groups if group.takes(kinds))
            return max(able, key=lambda group: group.free, default=None), Distance.ANY
        if wish.source not in self.from_source:
            found = [(distance_between(group.place, wish.source), group) for group in self.groups]
            self.from_source[wish.source] = sorted(found, key=lambda one: one[0])
        for distance, group in self.from_source[wish.source]:
            if group.takes(kinds):
                return group, distance
        return None, Distance.ANY

    def ranks(self, rows: Sequence[QueuedCommand]) -> dict[Key, int]:
        """What comes first: negative for what has waited long enough, else how near it is."""
        near = {_key(row): int(self.nearest(row)[1]) for row in rows if _key(row) in self.wishes}
        best = min(near.values())
        return {_key(row): -1 if _key(row) in self.old else near.get(_key(row), best) for row in rows}


class Nearness:
    """`preference` is how far from its data anything may run that does not say so itself.  `elsewhere` are sessions of
    other servers; None when there may be some that are not known, and `is_asked` that somebody wants to know."""

    def __init__(self, connected: Mapping[int, Connected], pools: Pools, preference: Distance = Distance.ANY) -> None:
        self._connected = connected
        self._pools = pools
        self.preference = preference
        self.elsewhere: Sequence[SessionRow] | None = ()
        self.is_asked = False
        # Since when the commands of the last look wait, by pool.
        self._since: dict[str, dict[Key, float]] = {}
        # The pools in which not everything that waits is equally near.
        self._mixed: set[str] = set()
        self._waiting: dict[str, int] = {}
        self._alarms: set[str] = set()

    # --- who takes a command ---------------------------------------------------------------------------------

    def nearest(self, able: Iterable[Connected], wish: Wish, kinds: Collection[str] | None) -> Connected | None:
        """The nearest of those that can take a command, of several the one with the most free slots; None when it is
        to wait for somebody nearer."""
        found = min(able, key=lambda held: (distance_between(held.place, wish.source), -held.free), default=None)
        return None if found is None or self.is_too_far(found, wish, kinds) else found

    def is_too_far(self, held: Connected, wish: Wish, kinds: Collection[str] | None) -> bool:
        """Whether a session must leave a command to somebody nearer, who has or may soon have a slot for it."""
        most = self.allowed(wish)
        if most is Distance.ANY or distance_between(held.place, wish.source) <= most:
            return False
        self.is_asked = True
        return not self._is_patient(held.pool, wish.key) and self._is_somebody_near(wish, kinds, held.pool)

    def wait(self, pool: str, key: Key) -> None:
        """The patience of a command begins, unless it has begun."""
        waiting = self._since.setdefault(pool, {})
        waiting.setdefault(key, _now())
        if len(waiting) > WAITING_ROWS_MAX:
            del waiting[next(iter(waiting))]

    def allowed(self, wish: Wish) -> Distance:
        return self.preference if wish.max_distance is None else wish.max_distance

    def _is_patient(self, pool: str, key: Key) -> bool:
        """Whether a command has waited long enough."""
        since = self._since.get(pool, {}).get(key)
        return since is not None and _now() - since >= PATIENCE_SECONDS

    def _is_somebody_near(self, wish: Wish, kinds: Collection[str] | None, pool: str) -> bool:
        most = self.allowed(wish)
        for held in self._connected.values():
            if held.slots > 0 and held.serves(kinds, pool) and distance_between(held.place, wish.source) <= most:
                return True
        if self.elsewhere is None:
            return True
        return any(
            row.pool == pool
            and (row.kinds is None or kinds is None or row.kinds.issuperset(kinds))
            and distance_between(row.place, wish.source) <= most
            for row in self.elsewhere
        )

    # --- what a free slot takes ------------------------------------------------------------------------------

    def ahead(self, pool: str) -> int:
        """How many more rows to look at than there are free slots; what waits for its place must not hide the rest."""
        waiting = self._waiting.get(pool, 0)
        if not waiting and pool not in self._mixed and len({held.place for held in self._connected.values()}) <= 1:
            return 0
        return min(waiting, WAITING_ROWS_MAX) + AHEAD_ROWS

    def is_holding_back(self, pool: str) -> bool:
        """Whether something waits there that a free slot could run, and did not get."""
        return self._waiting.get(pool, 0) > 0

    def chosen(self, pool: str, rows: Sequence[QueuedCommand], free: int) -> list[QueuedCommand]:
        """What is given to the free slots of a pool: what has waited long enough, then the nearest, all else in the
        order in which it came.  What is to wait for a nearer slot is left out, and looked at again in time.

        What has no place is as near as anything can be: nobody is to wait for having nothing to read."""
        wishes = {_key(row): wish_in(_key(row), row.locality) for row in rows if row.locality is not None}
        self._waiting.pop(pool, None)
        now, known = _now(), self._since.get(pool, {})
        if not wishes:
            # A wish that is younger than its row is not seen here, and waits all the same.
            self._since[pool] = {_key(row): known[_key(row)] for row in rows if _key(row) in known} if known else {}
            self._mixed.discard(pool)
            return list(rows[:free])
        since = self._since[pool] = {_key(row): known.get(_key(row), now) for row in rows}
        look = _Look(
            self._groups(pool), wishes, {key for key, first in since.items() if now - first >= PATIENCE_SECONDS}
        )
        ranks = look.ranks(rows)
        is_mixed = len({ranks[key] for key in wishes if key not in look.old}) > 1
        (self._mixed.add if is_mixed else self._mixed.discard)(pool)
        taken, later, held_back = [], [], []
        for row in sorted(rows, key=lambda row: ranks[_key(row)]):
            group, distance = look.nearest(row)
            if group is not None and self._waits(pool, row, look, distance):
                held_back.append(since[_key(row)])
            elif group is None or (0 <= ranks[_key(row)] < distance and _key(row) in wishes):
                later.append(row)  # the near slots are used up: those that are left may be near to others
            else:
                group.free -= 1
                taken.append(row)
        if held_back:
            self._waiting[pool] = len(held_back)
            self._look_again(pool, PATIENCE_SECONDS - (now - min(held_back)))
        return (taken + later)[:free]

    def _waits(self, pool: str, row: QueuedCommand, look: _Look, distance: Distance) -> bool:
        wish = look.wishes.get(_key(row))
        if wish is None or wish.key in look.old or distance <= self.allowed(wish):
            return False
        self.is_asked = True
        return self._is_somebody_near(wish, row.tool_kind.split("+"), pool)

    def _groups(self, pool: str) -> list[_Group]:
        found: dict[tuple[Place, frozenset[str] | None], _Group] = {}
        for held in self._connected.values():
            free = held.can_be_looked_for(pool)
            if free > 0:
                found.setdefault((held.place, held.kinds), _Group(held.place, held.kinds, 0)).free += free
        return list(found.values())

    def _look_again(self, pool: str, seconds: float) -> None:
        if pool not in self._alarms:
            self._alarms.add(pool)
            asyncio.get_running_loop().call_later(max(seconds, 0.0), self._ring, pool)

    def _ring(self, pool: str) -> None:
        self._alarms.discard(pool)
        self._pools.expect(pool)

    # --- what is recorded ------------------------------------------------------------------------------------

    def told(
        self, held: Connected | None, wish: Wish | None, tenant_id: str, organization_id: str
    ) -> dict[str, object]:
        """What a claim says about places, as far as they are known."""
        found: dict[str, object] = {}
        place = NOWHERE if held is None else held.place
        if held is not None and place != NOWHERE:
            found["locality"] = place.to_json()
            with suppress(LocatorInvalid):  # names that together are too long for one: the place itself is told
                found["worker_locator"] = worker_locator(tenant_id, organization_id, held.worker_id, place)
        if wish is not None:
            found["source_locality"] = wish.source.to_json()
            found["placement"] = placement(place, wish.source, self.allowed(wish)).to_json()
        return found


def _key(row: QueuedCommand) -> Key:
    return row.execution_id, row.command_id


def _now() -> float:
    return asyncio.get_running_loop().time()
