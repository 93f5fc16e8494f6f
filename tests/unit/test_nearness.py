"""Work goes to whoever is near its data, nobody is passed over for long, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.adapters.memory.clock import VirtualClock
from noetl.core.codec import canonical_json
from noetl.core.locator.locality import NOWHERE, Distance, Place
from noetl.engine.control.sessions import Sessions
from noetl.engine.placing.nearness import AHEAD_ROWS, PATIENCE_SECONDS, WAITING_ROWS_MAX
from noetl.engine.placing.wishes import Wish, wish_in
from noetl.ports.ledger import QueuedCommand
from noetl.ports.serving.roster import SessionRow
from noetl.ports.session import CommandMessage
from tests.simulation.loop import run_simulated
from tests.unit.test_solitude import Worker

KINDS = frozenset({"noop"})
A = Place(region="eu", zone="a", node="n1")
A2 = Place(region="eu", zone="a", node="n2")
B = Place(region="eu", zone="b", node="n3")
FAR = Place(region="us", zone="x", node="n9")


def play(story: Coroutine[Any, Any, None]) -> None:
    run_simulated(story, VirtualClock(), random.Random(1))


def of(*places: Place, slots: int = 2, preference: Distance = Distance.ANY, **keys: Any) -> Sessions:
    sessions = Sessions(preference)
    for number, place in enumerate(places, start=1):
        sessions.connect(Worker(number, slots), place=place, worker_id=f"w{number}", **keys)
    return sessions


def wish(source: Place, most: Distance | None = None, name: str = "each#1/1") -> Wish:
    return Wish((7, name), source, most)


def row(name: str, source: Place | None, most: Distance | None = None, **fields: Any) -> QueuedCommand:
    locality = None if source is None else wish(source, most, name).text
    fields = {"shard_id": 0, "tenant_id": "t", "organization_id": "o", "tool_kind": "noop", "body": "{}", **fields}
    return QueuedCommand(execution_id=7, command_id=name, locality=locality, **fields)


def names(rows: list[QueuedCommand]) -> list[str]:
    return [one.command_id for one in rows]


# --- who takes a command -----------------------------------------------------------------------------------


def test_the_nearest_session_takes_a_command_until_it_has_no_slot() -> None:
    async def story() -> None:
        sessions = of(FAR, B, A2, A)
        taken = [sessions.reserve(KINDS, wish=wish(A)) for _ in range(9)]
        assert taken == [4, 4, 3, 3, 2, 2, 1, 1, None]

    play(story())


def test_of_sessions_that_are_equally_near_the_one_with_the_most_free_slots_takes_it() -> None:
    async def story() -> None:
        sessions = of(A, A, A)
        assert [sessions.reserve(KINDS, wish=wish(A)) for _ in range(4)] == [1, 2, 3, 1]

    play(story())


def test_without_known_places_it_is_as_if_there_were_no_wish() -> None:
    async def story() -> None:
        plain, placed = of(NOWHERE, NOWHERE, slots=3), of(NOWHERE, NOWHERE, slots=3)
        wished = [placed.reserve(KINDS, wish=wish(A)) for _ in range(7)]
        assert wished == [plain.reserve(KINDS) for _ in range(7)]

    play(story())


def test_who_is_too_far_waits_for_somebody_nearer_who_is_busy() -> None:
    async def story() -> None:
        sessions = of(A, B, slots=1)
        assert sessions.reserve(KINDS, wish=wish(A, Distance.ZONE)) == 1
        assert sessions.reserve(KINDS, wish=wish(A, Distance.ZONE)) is None
        assert sessions.reserve(KINDS, wish=wish(A, Distance.REGION)) == 2

    play(story())


def test_who_is_too_far_takes_it_at_once_when_nobody_nearer_is_there() -> None:
    async def story() -> None:
        for sessions in (of(B), of(B, A, pool="other")):
            pool = next(iter(sessions.pools.served))
            if pool == "other":
                sessions.connected[2].kinds = frozenset({"http"})  # near, and cannot run it
            assert sessions.reserve(KINDS, pool=pool, wish=wish(A, Distance.NODE)) == 1
        draining = of(B, A)
        draining.disconnect(2, drain=True)
        assert draining.reserve(KINDS, wish=wish(A, Distance.NODE)) == 1

    play(story())


def test_the_servers_preference_holds_for_what_says_nothing_itself() -> None:
    async def story() -> None:
        sessions = of(A, B, slots=1, preference=Distance.ZONE)
        assert sessions.reserve(KINDS, wish=wish(A)) == 1
        assert sessions.reserve(KINDS, wish=wish(A)) is None
        assert sessions.reserve(KINDS, wish=wish(A, Distance.ANY)) == 2

    play(story())


def test_sessions_of_other_servers_are_waited_for_while_they_are_near_or_not_known() -> None:
    async def story() -> None:
        sessions = of(B)
        near = SessionRow(session_id=90, worker_id="w", pool="default", kinds=None, slots=2, place=A)
        sessions.nearness.elsewhere = None
        assert sessions.reserve(KINDS, wish=wish(A, Distance.ZONE)) is None
        assert sessions.nearness.is_asked
        sessions.nearness.elsewhere = [near]
        assert sessions.reserve(KINDS, wish=wish(A, Distance.ZONE)) is None
        sessions.nearness.elsewhere = []
        assert sessions.reserve(KINDS, wish=wish(A, Distance.ZONE)) == 1

    play(story())


# --- what a free slot takes --------------------------------------------------------------------------------


def test_a_free_slot_takes_the_nearest_of_the_commands_that_wait() -> None:
    async def story() -> None:
        rows = [row("far", FAR), row("zone", A2), row("node", A)]
        assert names(of(A).nearness.chosen("default", rows, 2)) == ["node", "zone"]

    play(story())


def test_what_has_no_place_stands_back_for_nobody() -> None:
    async def story() -> None:
        rows = [row("zone", A2), row("first", None), row("node", A), row("last", None)]
        assert names(of(A, slots=4).nearness.chosen("default", rows, 3)) == ["first", "node", "last"]

    play(story())


def test_a_backlog_does_not_make_the_look_wider_and_wider() -> None:
    async def story() -> None:
        sessions = of(A, B, slots=1)
        rows = [row(f"c{n}", FAR if n % 2 else A) for n in range(5_000)]
        for _ in range(20):
            width = 2 + sessions.nearness.ahead("default")
            sessions.nearness.chosen("default", rows[:width], 2)
        assert sessions.nearness.ahead("default") == AHEAD_ROWS

    play(story())


def test_what_waits_for_its_place_does_not_hide_the_others() -> None:
    async def story() -> None:
        sessions = of(A, B, slots=1)
        assert sessions.reserve(KINDS, wish=wish(A)) == 1
        rows = [*(row(f"near{n}", A, Distance.NODE) for n in range(500)), row("any", None)]
        found: list[str] = []
        for _ in range(30):
            width = 1 + sessions.nearness.ahead("default")
            found = names(sessions.nearness.chosen("default", rows[:width], 1))
            if found:
                break
        assert found == ["any"]

    play(story())


def test_slots_of_several_places_each_take_what_is_near_to_them() -> None:
    async def story() -> None:
        rows = [row("a1", A), row("a2", A), row("a3", A), row("b1", B), row("b2", B)]
        assert sorted(names(of(A, B).nearness.chosen("default", rows, 4))) == ["a1", "a2", "b1", "b2"]

    play(story())


def test_what_is_far_from_all_free_slots_is_given_out_when_nothing_nearer_is_left() -> None:
    async def story() -> None:
        rows = [row("a1", A), row("a2", A), row("a3", A)]
        assert names(of(B, slots=3).nearness.chosen("default", rows, 3)) == ["a1", "a2", "a3"]

    play(story())


def test_nobody_is_passed_over_for_longer_than_the_patience() -> None:
    async def story() -> None:
        sessions, given, begun = of(A, slots=1), False, asyncio.get_running_loop().time()
        for number in range(1_000):
            # There is always something nearer, and it keeps coming.
            rows = [row("far", FAR), row(f"near{number}", A), row(f"near{number}b", A)]
            given = names(sessions.nearness.chosen("default", rows, 1)) == ["far"]
            if given:
                break
            await asyncio.sleep(0.05)
        assert given
        assert PATIENCE_SECONDS <= asyncio.get_running_loop().time() - begun <= PATIENCE_SECONDS + 0.1

    play(story())


def test_what_waits_for_a_nearer_slot_is_looked_at_again_in_time_and_then_goes_far() -> None:
    async def story() -> None:
        sessions = of(A, B, slots=1)
        assert sessions.reserve(KINDS, wish=wish(A)) == 1
        waiting = [row("near", A, Distance.ZONE), row("other", None)]
        assert names(sessions.nearness.chosen("default", waiting, 1)) == ["other"]
        assert sessions.nearness.is_holding_back("default")
        sessions.pools.looked_at("default")
        sessions.pools.changed.clear()
        begun = asyncio.get_running_loop().time()
        await sessions.pools.changed.wait()
        assert asyncio.get_running_loop().time() - begun <= PATIENCE_SECONDS + 0.01
        assert names(sessions.nearness.chosen("default", waiting, 1)) == ["near"]
        assert not sessions.nearness.is_holding_back("default")
        assert sessions.reserve(KINDS, wish=wish_in((7, "near"), str(waiting[0].locality))) == 2

    play(story())


def test_a_nearer_slot_that_becomes_free_within_the_patience_wins() -> None:
    async def story() -> None:
        sessions = of(A, B, slots=1)
        assert sessions.reserve(KINDS, wish=wish(A)) == 1
        waiting = [row("near", A, Distance.ZONE)]
        assert sessions.nearness.chosen("default", waiting, 1) == []
        sessions.unreserve(1)
        assert names(sessions.nearness.chosen("default", waiting, 2)) == ["near"]
        assert sessions.reserve(KINDS, wish=wish(A, Distance.ZONE, "near")) == 1

    play(story())


def test_without_known_places_nothing_more_is_looked_at_and_the_order_is_that_of_the_queue() -> None:
    async def story() -> None:
        for sessions in (of(NOWHERE, NOWHERE), of(A, A)):
            assert sessions.nearness.ahead("default") == 0
            rows = [row(f"c{n}", None) for n in range(9)]
            assert sessions.nearness.chosen("default", rows, 4) == rows[:4]
            assert sessions.nearness.ahead("default") == 0
        one_node = of(A, A)
        rows = [row(f"c{n}", A if n % 2 else None) for n in range(9)]
        for _ in range(30):  # also when some of them have waited for long
            assert one_node.nearness.chosen("default", rows, 4) == rows[:4]
            assert one_node.nearness.ahead("default") == 0
            await asyncio.sleep(0.1)
            rows = [*rows[1:], row(f"{rows[-1].command_id}x", A)]

    play(story())


def test_more_is_looked_at_when_places_differ_and_never_without_a_bound() -> None:
    async def story() -> None:
        sessions = of(A, B)
        assert sessions.nearness.ahead("default") == AHEAD_ROWS
        assert sessions.reserve(KINDS, wish=wish(A)) == sessions.reserve(KINDS, wish=wish(A)) == 1
        rows = [row(f"c{n}", A, Distance.NODE) for n in range(WAITING_ROWS_MAX + 50)]
        assert sessions.nearness.chosen("default", rows, 2) == []
        assert sessions.nearness.ahead("default") == AHEAD_ROWS + WAITING_ROWS_MAX

    play(story())


# --- what is recorded --------------------------------------------------------------------------------------


def test_a_claim_tells_as_much_as_is_known() -> None:
    sessions = of(A, NOWHERE)
    told = sessions.nearness.told
    near, nowhere = sessions.connected[1], sessions.connected[2]
    assert told(nowhere, None, "acme", "sales") == {}
    assert told(near, None, "acme", "sales") == {
        "locality": {"region": "eu", "zone": "a", "node": "n1"},
        "worker_locator": "noetl://tenant/acme/org/sales/region/eu/zone/a/node/n1/worker/w1",
    }
    found = told(near, wish(B, Distance.NODE), "acme", "sales")
    assert found["source_locality"] == {"region": "eu", "zone": "b", "node": "n3"}
    assert found["placement"] == {"distance": "region", "max_distance": "node", "within_max_distance": False}
    assert told(nowhere, wish(B), "acme", "sales")["placement"] == {
        "distance": "any",
        "max_distance": "any",
        "within_max_distance": True,
    }


def test_a_wish_comes_back_from_the_queue_as_it_was() -> None:
    for one in (wish(A), wish(B, Distance.ZONE), wish(Place(node='ä"/\\'), Distance.ANY)):
        assert wish_in(one.key, one.text) == one
        assert canonical_json(one.source.to_json()) in one.text


# --- nothing waits for ever --------------------------------------------------------------------------------

PLACES = st.sampled_from((A, A2, B, FAR, NOWHERE))
MOST = st.none() | st.sampled_from(Distance)


@settings(max_examples=60, deadline=None)
@given(
    workers=st.lists(st.tuples(PLACES, st.integers(1, 3)), min_size=1, max_size=5),
    commands=st.lists(st.tuples(st.none() | PLACES, MOST), min_size=1, max_size=30),
    preference=st.sampled_from(Distance),
    seed=st.integers(0, 2**32),
)
def test_everything_is_given_out_while_anybody_has_capacity(
    workers: list[tuple[Place, int]], commands: list[tuple[Place | None, Distance | None]], preference: Any, seed: int
) -> None:
    """Whatever is near or far, and whoever takes long: one worker is enough."""
    chance = random.Random(seed)

    async def story() -> None:
        sessions = Sessions(preference)
        for number, (place, slots) in enumerate(workers, start=1):
            sessions.connect(Worker(number, slots), place=place)
        if chance.random() < 0.3:
            sessions.nearness.elsewhere = None
        waiting = [row(f"c{n}", source, most) for n, (source, most) in enumerate(commands)]
        endless = chance.choice(list(sessions.connected)) if len(sessions.connected) > 1 else None
        held: list[tuple[int, str]] = []
        for _ in range(3_000):
            if not waiting:
                return
            free = sessions.pools.free_in("default")
            ahead = sessions.nearness.ahead("default")
            for one in sessions.nearness.chosen("default", waiting[: free + ahead], free) if free else []:
                key = (one.execution_id, one.command_id)
                found = sessions.reserve(KINDS, wish=None if one.locality is None else wish_in(key, one.locality))
                if found is not None:
                    waiting.remove(one)
                    held.append((found, one.command_id))
                    sessions.deliver(found, CommandMessage(7, "t", "o", one.command_id, 1, {}))
            await asyncio.sleep(0.05)
            # One worker never ends anything; the others end what they have sooner or later.
            for ended in [one for one in held if one[0] != endless and chance.random() < 0.5]:
                held.remove(ended)
                sessions.finish(ended[0], 7, ended[1], 1)
        raise AssertionError(f"{len(waiting)} commands were never given out")

    play(story())
