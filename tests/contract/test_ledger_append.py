"""The ledger port: appending facts, alone and through the group appender."""

from __future__ import annotations

import asyncio

import pytest

from noetl.core import kinds
from noetl.core.errors import (
    AppendOverloaded,
    EnvelopeInvalid,
    ExecutionClosed,
    PayloadMissing,
    TransitionConflict,
    VersionConflict,
)
from noetl.core.event import Event, seal
from noetl.core.limits import APPEND_QUEUE_EVENTS_MAX
from noetl.core.reference import Result
from noetl.engine import append
from noetl.engine.append import GroupAppender
from noetl.ports.ledger import Offer
from tests.support.aio import asynchronous
from tests.support.backends import Backend, OpenBackend, appender
from tests.support.events import ORGANIZATION, TENANT, offer, unchecked

OTHER = Result(status="ok", context={"other": True}).to_json()


def numbers(events: list[Event]) -> list[tuple[int, int]]:
    return [(event.position, event.stream_version) for event in events]


async def is_stored(backend: Backend, content: bytes) -> bool:
    payload = backend.make.payload(content)
    try:
        await backend.payloads.get(payload.reference, tenant_id=TENANT, organization_id=ORGANIZATION)
    except PayloadMissing:
        return False
    return True


@asynchronous
async def test_an_append_gives_gap_free_positions_per_shard_and_versions_per_stream(
    backend: OpenBackend,
) -> None:
    async with backend() as b:
        before = await b.heads()
        one, two, other = (b.make.execution_id() for _ in range(3))
        outcome = await b.ledger.append(
            [
                offer(3, b.make.initialized(one), b.make.issued(one)),
                offer(5, b.make.initialized(other)),
                offer(3, b.make.initialized(two)),
                offer(3, b.make.completed(one)),
            ]
        )
        first = before[3].next_position
        assert outcome.left_out == {}
        assert outcome.first_positions == {3: first, 5: before[5].next_position}
        assert numbers(await b.ledger.read_execution(one)) == [(first, 1), (first + 1, 2), (first + 3, 3)]
        assert numbers(await b.ledger.read_execution(two)) == [(first + 2, 1)]
        assert numbers(await b.ledger.read_execution(other)) == [(before[5].next_position, 1)]
        after = await b.heads()
        assert after[3].next_position == first + 4
        assert after[3].decided_position == before[3].decided_position
        assert {s: h for s, h in after.items() if s not in (3, 5)} == {
            s: h for s, h in before.items() if s not in (3, 5)
        }


@asynchronous
async def test_a_shard_is_read_in_position_order_from_any_position(backend: OpenBackend) -> None:
    async with backend() as b:
        start = (await b.heads())[7].next_position - 1
        ids = [b.make.execution_id() for _ in range(5)]
        await b.ledger.append([offer(7, b.make.initialized(e)) for e in reversed(ids)])
        events = await b.ledger.read_shard(7, after_position=start)
        assert [event.execution_id for event in events] == list(reversed(ids))
        assert [event.position for event in events] == list(range(start + 1, start + 6))
        page = await b.ledger.read_shard(7, after_position=start + 1, limit=2)
        assert [event.position for event in page] == [start + 2, start + 3]
        assert await b.ledger.read_execution(ids[0], after_position=start + 5) == []
        assert await b.ledger.read_shard(7, after_position=start + 5) == []


@asynchronous
async def test_an_equal_duplicate_is_success_with_the_old_position(backend: OpenBackend) -> None:
    async with backend() as b, appender(b.ledger) as group:
        execution = b.make.execution_id()
        first = await group.append(offer(1, b.make.initialized(execution), b.make.issued(execution)))
        head = (await b.heads())[1]
        # Other ids, times and meta: none of them is content.
        again = await group.append(
            offer(1, b.make.initialized(execution), b.make.issued(execution, meta={"step": "elsewhere"}))
        )
        assert [one.position for one in again] == [one.position for one in first]
        assert [one.is_duplicate for one in first + again] == [False, False, True, True]
        assert (await b.heads())[1] == head


@asynchronous
async def test_a_claim_that_is_told_again_from_elsewhere_is_the_same_claim(backend: OpenBackend) -> None:
    async with backend() as b, appender(b.ledger) as group:
        execution = b.make.execution_id()
        await group.append(offer(1, b.make.initialized(execution), b.make.issued(execution)))
        taken = []
        for node in ("n1", "n2"):
            placement = {"distance": "node", "max_distance": "any", "within_max_distance": True}
            meta = {"attempt": 1, "session": "9", "locality": {"node": node}, "placement": placement}
            key = kinds.claimed_key("start#1", 1)
            claim = b.make.event(execution, kinds.COMMAND_CLAIMED, key, command_id="start#1", meta=meta)
            taken += await group.append(offer(1, claim))
        assert [one.is_duplicate for one in taken] == [False, True]
        assert taken[0].position == taken[1].position


@asynchronous
async def test_a_key_offered_twice_at_once_is_written_once(backend: OpenBackend) -> None:
    async with backend() as b, appender(b.ledger) as group:
        execution = b.make.execution_id()
        answers = await asyncio.gather(*(group.append(offer(1, b.make.initialized(execution))) for _ in range(8)))
        assert len({one.position for (one,) in answers}) == 1
        assert sum(one.is_duplicate for (one,) in answers) == 7
        assert len(await b.ledger.read_execution(execution)) == 1


@asynchronous
async def test_other_content_is_a_conflict_and_nothing_of_that_offer_is_written(backend: OpenBackend) -> None:
    async with backend() as b, appender(b.ledger) as group:
        execution, bystander = b.make.execution_id(), b.make.execution_id()
        await group.append(offer(2, b.make.initialized(execution), b.make.completed(execution)))
        payload = b.make.payload(f"of a refused offer {execution}".encode())
        conflicting = offer(
            2,
            b.make.issued(execution, "next#1"),
            b.make.completed(execution, result=OTHER),
            payloads=[payload],
        )
        refused, kept = await asyncio.gather(
            group.append(conflicting),
            group.append(offer(2, b.make.initialized(bystander))),
            return_exceptions=True,
        )
        assert isinstance(refused, TransitionConflict)
        assert "command.terminal/start#1" in str(refused)
        assert not isinstance(kept, BaseException)
        assert len(await b.ledger.read_execution(execution)) == 2
        assert not await is_stored(b, payload.content)
        head = (await b.heads())[2]
        assert head.next_position == kept[0].position + 1


@pytest.mark.parametrize(
    "changes",
    [
        {"writes": [{"path": ["a"], "v": 1}]},
        {"result": OTHER},
        {"event_type": "command.failed"},
    ],
    ids=lambda changes: next(iter(changes)),
)
@asynchronous
async def test_type_result_and_writes_are_content(backend: OpenBackend, changes: dict[str, object]) -> None:
    async with backend() as b, appender(b.ledger) as group:
        execution = b.make.execution_id()
        await group.append(offer(2, b.make.initialized(execution), b.make.completed(execution)))
        with pytest.raises(TransitionConflict):
            await group.append(offer(2, b.make.completed(execution)._replace(**changes)))


@asynchronous
async def test_an_append_to_a_closed_execution_is_refused(backend: OpenBackend) -> None:
    async with backend() as b, appender(b.ledger) as group:
        execution = b.make.execution_id()
        await group.append(offer(4, b.make.initialized(execution), b.make.issued(execution)))
        closing = await group.append(offer(4, b.make.ended(execution)))
        with pytest.raises(ExecutionClosed):
            await group.append(offer(4, b.make.completed(execution)))
        # What was recorded before the end is still an equal duplicate, not a late fact.
        again = await group.append(offer(4, b.make.issued(execution), b.make.ended(execution)))
        assert [one.is_duplicate for one in again] == [True, True]
        assert again[1].position == closing[0].position
        assert len(await b.ledger.read_execution(execution)) == 3


@asynchronous
async def test_a_fact_behind_the_end_in_the_same_batch_is_refused(backend: OpenBackend) -> None:
    async with backend() as b, appender(b.ledger) as group:
        execution = b.make.execution_id()
        await group.append(offer(4, b.make.initialized(execution)))
        ended, late = await asyncio.gather(
            group.append(offer(4, b.make.ended(execution))),
            group.append(offer(4, b.make.issued(execution))),
            return_exceptions=True,
        )
        assert not isinstance(ended, BaseException)
        assert isinstance(late, ExecutionClosed)


@asynchronous
async def test_an_offer_is_refused_whole_when_one_of_its_streams_is_closed(backend: OpenBackend) -> None:
    async with backend() as b, appender(b.ledger) as group:
        closed, still_open = b.make.execution_id(), b.make.execution_id()
        await group.append(offer(4, b.make.initialized(closed), b.make.ended(closed)))
        await group.append(offer(4, b.make.initialized(still_open)))
        with pytest.raises(ExecutionClosed):
            await group.append(offer(4, b.make.issued(still_open), b.make.issued(closed)))
        assert len(await b.ledger.read_execution(still_open)) == 1


@asynchronous
async def test_an_expected_version_is_kept(backend: OpenBackend) -> None:
    async with backend() as b, appender(b.ledger) as group:
        execution = b.make.execution_id()
        await group.append(offer(6, b.make.initialized(execution), expected_version=0))
        right = offer(6, b.make.issued(execution), b.make.completed(execution), expected_version=1)
        await group.append(right)
        for wrong in (0, 2, 4):
            with pytest.raises(VersionConflict, match=f"at version 3, not {wrong}"):
                await group.append(offer(6, b.make.issued(execution, "next#1"), expected_version=wrong))
        # A retried request meets its own events, not the version that they made.
        again = await group.append(right)
        assert all(one.is_duplicate for one in again)
        assert [version for _, version in numbers(await b.ledger.read_execution(execution))] == [1, 2, 3]


@asynchronous
async def test_one_of_two_offers_with_the_same_expected_version_wins(backend: OpenBackend) -> None:
    async with backend() as b, appender(b.ledger) as group:
        execution = b.make.execution_id()
        await group.append(offer(6, b.make.initialized(execution)))
        answers = await asyncio.gather(
            *(group.append(offer(6, b.make.issued(execution, f"step{n}#1"), expected_version=1)) for n in range(4)),
            return_exceptions=True,
        )
        assert sum(isinstance(answer, VersionConflict) for answer in answers) == 3
        assert len(await b.ledger.read_execution(execution)) == 2


@asynchronous
async def test_a_poisoned_offer_fails_alone(backend: OpenBackend) -> None:
    async with backend() as b, appender(b.ledger) as group:
        ids = [b.make.execution_id() for _ in range(20)]
        poison = unchecked(b.make.initialized(ids[13]), result='{"status":"ok"}')
        offers = [Offer(shard_id=8, events=[poison if e == ids[13] else seal(b.make.initialized(e))]) for e in ids]
        answers = await asyncio.gather(*map(group.append, offers), return_exceptions=True)
        assert [n for n, one in enumerate(answers) if isinstance(one, BaseException)] == [13]
        assert isinstance(answers[13], EnvelopeInvalid)
        positions = sorted(one[0].position for one in answers if not isinstance(one, BaseException))
        assert positions == list(range(positions[0], positions[0] + 19))


@pytest.mark.parametrize("field", ["transition_key", "tenant_id", "organization_id"])
@asynchronous
async def test_an_event_without_key_or_owner_is_refused_by_seal_and_by_the_ledger(
    backend: OpenBackend, field: str
) -> None:
    async with backend() as b, appender(b.ledger) as group:
        execution = b.make.execution_id()
        event = b.make.initialized(execution)
        with pytest.raises(EnvelopeInvalid):
            seal(event._replace(**{field: ""}))
        good = seal(event)
        for text in (
            good.text.replace(f'"{field}":"{getattr(event, field)}"', f'"{field}":null'),
            good.text.replace(f'"{field}":"{getattr(event, field)}"', f'"{field}":""'),
        ):
            assert text != good.text
            with pytest.raises(EnvelopeInvalid):
                await group.append(Offer(shard_id=0, events=[good._replace(text=text)]))
        assert await b.ledger.read_execution(execution) == []


@asynchronous
async def test_an_offer_for_a_shard_that_is_not_there_is_refused_loudly(backend: OpenBackend) -> None:
    async with backend() as b, appender(b.ledger) as group:
        lost, fine = b.make.execution_id(), b.make.execution_id()
        refused, kept = await asyncio.gather(
            group.append(offer(999, b.make.initialized(lost))),
            group.append(offer(9, b.make.initialized(fine))),
            return_exceptions=True,
        )
        assert isinstance(refused, EnvelopeInvalid)
        assert not isinstance(kept, BaseException)
        assert await b.ledger.read_execution(lost) == []
        assert len(await b.ledger.read_execution(fine)) == 1


@asynchronous
async def test_payloads_arrive_with_their_event(backend: OpenBackend) -> None:
    async with backend() as b, appender(b.ledger) as group:
        one, two = b.make.execution_id(), b.make.execution_id()
        shared = b.make.payload(f"shared by {one}".encode())
        await asyncio.gather(
            group.append(offer(1, b.make.initialized(one), payloads=[shared, shared])),
            group.append(offer(2, b.make.initialized(two), payloads=[shared])),
        )
        assert await is_stored(b, shared.content)


@asynchronous
async def test_a_full_queue_is_an_answer_and_not_a_wait(backend: OpenBackend) -> None:
    async with backend() as b, appender(b.ledger) as group:
        execution = b.make.execution_id()
        event = seal(b.make.initialized(execution))
        with pytest.raises(AppendOverloaded):
            await group.append(Offer(shard_id=0, events=[event] * (APPEND_QUEUE_EVENTS_MAX + 1)))


@asynchronous
async def test_the_bytes_and_the_age_of_what_waits_are_bounded_too(
    backend: OpenBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backend() as b, appender(b.ledger) as group:
        offers = [offer(1, b.make.initialized(b.make.execution_id())) for _ in range(3)]
        size = len(offers[0].events[0].text)
        with monkeypatch.context() as patched:
            patched.setattr(append, "APPEND_QUEUE_BYTES_MAX", int(1.5 * size))
            with pytest.raises(AppendOverloaded, match="bytes"):
                await together(group, offers[:2])
        with monkeypatch.context() as patched:
            # Everything that waits is too old.
            patched.setattr(append, "APPEND_QUEUE_SECONDS_MAX", -1.0)
            with pytest.raises(AppendOverloaded) as refused:
                await together(group, offers[1:])
            assert refused.value.retry_after_seconds is not None
        for one in offers:
            await group.append(one)


async def together(group: GroupAppender, offers: list[Offer]) -> None:
    """All at once; raises the first refusal when all are answered."""
    for outcome in await asyncio.gather(*(group.append(one) for one in offers), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


@asynchronous
async def test_the_incarnation_stays_the_same(backend: OpenBackend) -> None:
    async with backend() as b:
        incarnation = await b.ledger.incarnation()
        assert len(incarnation) == 36
        assert await b.ledger.incarnation() == incarnation
