"""Results of steps in stores of this process, read by somebody who has not written them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pyarrow as pa

from noetl.adapters.arrow.files.later import table_formats
from noetl.adapters.arrow.tables import ArrowTables
from noetl.adapters.memory.payloads import MemoryPayloads
from noetl.core.execution.state import StepResult
from noetl.core.reference import MEDIA_FRAME, MEDIA_JSON, MEDIA_LOOP, Reference
from noetl.engine.payloads import Payloads
from noetl.engine.reading.encoding import RowEncoder, window_of
from noetl.engine.reading.service import StepReading

OWNER = {"tenant_id": "acme", "organization_id": "sales"}


class CountingStore(MemoryPayloads):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__({})
        self.opened: list[str] = []
        self.bytes_read = 0

    async def get(self, reference: Reference, *, tenant_id: str, organization_id: str) -> bytes:
        content = await super().get(reference, tenant_id=tenant_id, organization_id=organization_id)
        self.opened.append(reference.sha256)
        self.bytes_read += len(content)
        return content

    async def get_range(
        self, reference: Reference, *, offset: int, length: int, tenant_id: str, organization_id: str
    ) -> bytes:
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        self.bytes_read += length
        return await super().get_range(reference, offset=offset, length=length, **owner)


class ResultShelf:
    """A store with results in it."""

    def __init__(self) -> None:
        self.store = CountingStore()

    async def keep(self, value: object, media_type: str = MEDIA_JSON) -> dict[str, Any]:
        payloads = Payloads(small=self.store, large=self.store)
        payload = await payloads.keep_json(value, media_type=media_type, **OWNER)
        await payloads.store(payload)
        return payload.reference.to_json()

    async def keep_table(self, table: pa.Table) -> dict[str, Any]:
        return (await ArrowTables(self.store).keep(table, tenant_id="acme", organization_id="sales")).to_json()

    async def keep_loop(self, rows: Sequence[object], frame_rows: int) -> dict[str, Any]:
        """The result of a loop whose frames had so many rows each."""
        frames = []
        for first in range(0, len(rows), frame_rows):
            some = rows[first : first + frame_rows]
            reference = await self.keep({"records": [{"v": row} for row in some]}, MEDIA_FRAME)
            frames.append({"first": first, "rows": len(some), "ref": reference})
        counts = {"total": len(rows), "success": len(rows), "failed": 0, "status": "ok"}
        return await self.keep({**counts, "frames": frames}, MEDIA_LOOP)

    def reading(self, reference: dict[str, Any] | None, status: str = "ok", **more: Any) -> StepReading:
        """With nothing in any cache."""
        payloads = Payloads(small=self.store, large=self.store, tables=ArrowTables(self.store))
        self.store.opened, self.store.bytes_read = [], 0
        result = StepResult(run=1, status=status, reference=reference, atoms={}, **more)
        return StepReading("s", result, payloads=payloads, large=self.store, owner=OWNER)


async def all_of(pieces: AsyncGenerator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def page(
    reading: StepReading,
    name: str,
    *,
    offset: int = 0,
    limit: int | None = None,
    columns: Sequence[str] | None = None,
    path: tuple[str | int, ...] = (),
) -> bytes:
    """Some rows of a result in a format."""
    rows = await reading.rows(path)
    window = window_of(rows, offset=offset, limit=limit, columns=columns)
    return await all_of(RowEncoder(table_formats).encoded(rows, window, name))


def lines(content: bytes) -> list[Any]:
    return [json.loads(line) for line in content.splitlines()]
