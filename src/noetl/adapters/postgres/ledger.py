"""The ledger port on Postgres: every append and every decision is one statement."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager

from noetl.adapters.postgres.advance import payload_columns, statement_of
from noetl.adapters.postgres.pool import Reader, Writer
from noetl.adapters.postgres.rows import (
    append_row,
    event_of,
    nul_shielded,
    refuse_nul_in_text,
)
from noetl.adapters.postgres.statements import composed, query
from noetl.core.errors import EnvelopeInvalid
from noetl.core.event import Event, Sealed
from noetl.core.kinds import KINDS
from noetl.core.reference import Payload
from noetl.points import point
from noetl.ports.data.counters import Histogram
from noetl.ports.ledger import (
    Advance,
    AppendOutcome,
    LeftOut,
    Offer,
    ShardHead,
)

_RESULT_BYTES_BOUNDS = (128, 256, 512, 1_024, 2_048, 4_096, 8_192)


class PostgresLedger:
    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader
        self.result_bytes = Histogram("noetl_event_result_bytes", _RESULT_BYTES_BOUNDS)
        """How large the results were that this process has appended."""

    async def append(self, offers: Sequence[Offer]) -> AppendOutcome:
        rows: list[str] = []
        in_shard: Counter[int] = Counter()
        in_stream: Counter[int] = Counter()
        payloads: list[tuple[int, Payload]] = []
        for place, offer in enumerate(offers):
            payloads.extend((place, payload) for payload in offer.payloads)
            for sealed in offer.events:
                extra = f'"shard_id":{offer.shard_id},'
                expected = offer.expects(sealed.event.execution_id)
                if expected is not None:
                    extra += f'"expected_version":{expected},'
                if KINDS[sealed.event.event_type].closes:
                    extra += '"closes":true,'
                execution_id = sealed.event.execution_id
                ordinals = in_shard[offer.shard_id], in_stream[execution_id]
                rows.append(append_row(sealed, number=len(rows), offer=place, ordinals=ordinals, extra=extra))
                in_shard[offer.shard_id] += 1
                in_stream[execution_id] += 1
        # All writers in the same order: two that store the same contents cannot deadlock.
        payloads.sort(key=lambda item: item[1].reference.uri)
        document, nul = nul_shielded(f"[{','.join(rows)}]")
        if nul is not None:
            refuse_nul_in_text(sealed.event for offer in offers for sealed in offer.events)
        streams = sorted({sealed.event.execution_id for offer in offers for sealed in offer.events})
        values: dict[str, object] = {
            "events": document,
            "nul": nul,
            "shards": sorted({offer.shard_id for offer in offers}),
            "streams": streams,
            "first_id": streams[0] if streams else 0,
            "last_id": streams[-1] if streams else 0,
            "payload_offers": [place for place, _ in payloads],
            **payload_columns([payload for _, payload in payloads]),
        }
        found = await self._writer.fetch(composed("append.sql", ("payloads",) if payloads else ()), values)
        point("server.appended")
        for offer in offers:
            self._measure(offer.events)
        first = {row["shard_id"]: row["next_position"] for row in found if row["shard_id"] is not None}
        unknown = {offer.shard_id for offer in offers} - first.keys()
        if unknown:
            raise EnvelopeInvalid(f"there is no shard {min(unknown)}: nothing was appended to it")
        return AppendOutcome(
            first_positions=first,
            left_out={
                row["n"]: LeftOut(
                    number=row["n"],
                    position=row["position"],
                    is_same=row["is_same"] is True,
                    is_closed=row["closed"],
                    version=row["version"],
                )
                for row in found
                if row["n"] is not None
            },
        )

    async def advance(self, advance: Advance) -> frozenset[int]:
        statement, values = statement_of(advance)
        point("server.advancing")
        rows = await self._writer.fetch(statement, values)
        point("server.advanced")
        self._measure(advance.events)
        return frozenset(row["shard_id"] for row in rows)

    @asynccontextmanager
    async def hold(self, shards: Collection[int]) -> AsyncIterator[None]:
        async with self._writer.transaction():
            await self._writer.fetch(query("serving.sql", "hold_shards"), {"shards": sorted(shards)})
            yield

    async def locked(self, shards: Collection[int]) -> frozenset[int]:
        asked = sorted(shards)
        rows = await self._reader.fetch(query("serving.sql", "free_shards"), shards=asked)
        return frozenset(asked) - {row["shard_id"] for row in rows}

    def _measure(self, events: Iterable[Sealed]) -> None:
        for sealed in events:
            if sealed.event.result is not None:
                self.result_bytes.add(sealed.result_bytes)

    async def read_execution(self, execution_id: int, *, after_position: int = 0, limit: int = 10_000) -> list[Event]:
        rows = await self._reader.fetch(
            query("reads.sql", "execution_events"),
            execution_id=execution_id,
            after_position=after_position,
            rows=limit,
        )
        return [event_of(row) for row in rows]

    async def read_shard(self, shard_id: int, *, after_position: int, limit: int = 10_000) -> list[Event]:
        rows = await self._reader.fetch(
            query("reads.sql", "shard_events"), shard_id=shard_id, after_position=after_position, rows=limit
        )
        return [event_of(row) for row in rows]

    async def heads(self) -> list[ShardHead]:
        rows = await self._reader.fetch(query("reads.sql", "heads"))
        return [ShardHead(r["shard_id"], r["next_position"], r["decided_position"], r["epoch"]) for r in rows]

    async def shard_of(self, execution_id: int) -> int | None:
        rows = await self._reader.fetch(query("serving.sql", "shard_of"), execution_id=execution_id)
        return rows[0]["shard_id"] if rows else None

    async def incarnation(self) -> str:
        rows = await self._reader.fetch(query("reads.sql", "incarnation"))
        return str(rows[0]["ledger_incarnation"])
