"""Results of steps, found and opened for whoever asks from outside."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from noetl.core.codec import canonical_bytes, sha256_hex
from noetl.core.dataset import MEDIA_DATASET
from noetl.core.errors import NoetlError, ResultNotTabular, ResultUnknown
from noetl.core.execution.state import StepResult
from noetl.core.limits import RESULT_CHUNK_BYTES
from noetl.core.reference import STORE_SMALL, Reference, reference_from_json
from noetl.core.results.members import Members, Path, at, lists_in, natural_rows, opened, shown
from noetl.core.results.parts import Table
from noetl.engine.executions import ExecutionService
from noetl.engine.payloads import Payloads
from noetl.engine.reading.encoding import RowEncoder
from noetl.engine.reading.pieces import JsonPieces, gathered
from noetl.engine.reading.rows import ListRows, Rows, TableRows
from noetl.engine.reading.steps import result_of
from noetl.engine.stored.reader import Reader
from noetl.engine.stored.sources import settled
from noetl.engine.stored.tables import open_table
from noetl.ports.data.payloads import LargePayloadStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSummary:
    """What is known of a step's result without reading it.  `rows` and `columns` are those of its natural table."""

    step: str
    run: int
    status: str
    media_type: str | None
    bytes: int
    rows: int | None
    columns: tuple[str, ...] | None
    problem: str | None = None


class ResultService:
    def __init__(
        self, *, executions: ExecutionService, payloads: Payloads, large: LargePayloadStore, encoder: RowEncoder
    ) -> None:
        self.encoder = encoder
        self._executions = executions
        self._payloads = payloads
        self._large = large

    async def find(self, execution_id: int, step: str, *, tenant_id: str, organization_id: str) -> StepReading:
        """Raises ExecutionUnknown, ResultUnknown and ResultUnfinished."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        state = await self._executions.state(execution_id, **owner)
        return StepReading(step, result_of(state, step), payloads=self._payloads, large=self._large, owner=owner)

    async def listed(
        self, execution_id: int, *, offset: int, limit: int, tenant_id: str, organization_id: str
    ) -> tuple[int, list[ResultSummary]]:
        """How many steps have results, and some of them in the order in which they first ended."""
        owner = {"tenant_id": tenant_id, "organization_id": organization_id}
        state = await self._executions.state(execution_id, **owner)
        names = list(state.step_results)
        readings = [
            StepReading(name, state.step_results[name], payloads=self._payloads, large=self._large, owner=owner)
            for name in names[offset : offset + limit]
        ]
        return len(names), [await one.summary() for one in readings]


class StepReading:
    """The result of one step.  Nothing is read before somebody asks for it."""

    def __init__(
        self, step: str, result: StepResult, *, payloads: Payloads, large: LargePayloadStore, owner: Mapping[str, str]
    ) -> None:
        self.step = step
        self.result = result
        self._payloads = payloads
        self._large = large
        self._owner = dict(owner)
        self._reader = Reader(payloads, **self._owner)
        self._view = self._reader.step(result.to_json())

    @property
    def reference(self) -> Reference | None:
        """Where the bytes are."""
        document: Any = self.result.reference
        return None if document is None else reference_from_json(document)

    @property
    def is_failed(self) -> bool:
        return self.result.status == "error"

    def digest(self, *choice: object) -> str:
        """Of what was asked for: the same question about the same result has the same one."""
        sha256 = None if self.reference is None else self.reference.sha256
        return sha256_hex(canonical_bytes([sha256, self.result.status, self.result.error, *choice]))

    # --- the value -----------------------------------------------------------------------------------------

    async def json(self, path: Path) -> AsyncGenerator[bytes]:
        """The plain result, or a part of it, as JSON in pieces.  Raises ResultUnknown."""
        value = await settled(lambda: at(self._view, path))
        pieces = JsonPieces(self._payloads, self._reader, self._owner).of(value)
        return gathered(pieces)

    # --- its rows ------------------------------------------------------------------------------------------

    async def rows(self, path: Path) -> Rows:
        """The rows of the result, or of a part of it, to be closed by the caller.  Raises ResultUnknown and
        ResultNotTabular."""
        found = await self.located(path)
        if isinstance(found, ListRows):
            return found
        return TableRows(await open_table(self._payloads, found, **self._owner))

    async def located(self, path: Path) -> Mapping[str, Any] | ListRows:
        """Where these rows are: the reference of a table or dataset, which is not opened, or the list that they are.
        Raises ResultUnknown and ResultNotTabular."""
        value = await settled(lambda: at(self._view, path))
        found = await settled(lambda: natural_rows(value))
        if found is None:
            raise ResultNotTabular(await self._not_tabular(value, path))
        level = found[1]
        return level._reference if isinstance(level, Table) else ListRows(level, self._reader)

    async def _not_tabular(self, value: object, path: Path) -> str:
        what = shown(path) or f"the result of step {self.step[:100]!r}"
        lists = [shown((*path, name)) for name in await settled(lambda: lists_in(value))]
        hint = f"choose one of its lists with path: {', '.join(lists)}" if lists else "ask for json"
        return f"{what} has no rows: {hint}"

    async def parquet(self, path: Path) -> Reference | None:
        """The stored file that has the rows of the result, or of a part of it, and nothing else; None when there is
        none, or several.  Raises ResultUnknown."""
        datasets = self._payloads.datasets
        if datasets is None or self.is_failed:
            return None
        value = await settled(lambda: at(self._view, path))
        found = await settled(lambda: natural_rows(value))
        if found is None or not isinstance(found[1], Table) or found[1]._reference["media_type"] != MEDIA_DATASET:
            return None
        dataset = reference_from_json(found[1]._reference)
        part = await datasets.sole_part(dataset, **self._owner)
        return None if part is None else replace(part, row_count=dataset.row_count)

    # --- its bytes -----------------------------------------------------------------------------------------

    def raw(self) -> Reference:
        """The reference of the bytes as they are stored.  Raises ResultUnknown."""
        if self.reference is None:
            raise ResultUnknown(f"the result of step {self.step[:100]!r} is null: there are no stored bytes")
        return self.reference

    async def stored_bytes(self, first: int, length: int, reference: Reference | None = None) -> AsyncGenerator[bytes]:
        """Some of the stored bytes, of the result itself or of a file in it.  When all are asked for, all are verified
        before the last of them is given."""
        reference = reference or self.raw()
        if reference.store == STORE_SMALL:
            content = await self._payloads.read(reference, **self._owner)
            yield content[first : first + length]
        elif (first, length) == (0, reference.bytes):
            async with aclosing(_held_back(self._large.get_stream(reference, **self._owner))) as chunks:
                async for chunk in chunks:
                    yield chunk
        else:
            for start in range(first, first + length, RESULT_CHUNK_BYTES):
                size = min(RESULT_CHUNK_BYTES, first + length - start)
                yield await self._large.get_range(reference, offset=start, length=size, **self._owner)

    # --- what is known of it -------------------------------------------------------------------------------

    async def summary(self) -> ResultSummary:
        """With what can be seen without reading all of it.  What cannot be read has a problem and no rows."""
        reference = self.reference
        rows, columns, problem = None, None, None
        try:
            rows, columns = await self._shape()
        except NoetlError as error:
            problem = str(error)
        finally:
            self._reader.forget()
        return ResultSummary(
            step=self.step,
            run=self.result.run,
            status=self.result.status,
            media_type=None if reference is None else reference.media_type,
            bytes=0 if reference is None else reference.bytes,
            rows=rows,
            columns=columns,
            problem=problem,
        )

    async def _shape(self) -> tuple[int | None, tuple[str, ...] | None]:
        found = await settled(lambda: natural_rows(self._view))
        if found is None:
            return None, None
        level: Any = found[1]
        if not len(level):
            return 0, None
        if isinstance(level, Table):
            table = await open_table(self._payloads, level._reference, **self._owner)
            try:
                return table.row_count, tuple(table.schema.names)
            finally:
                table.close()
        items = ListRows(level, self._reader)
        async with aclosing(items.views(0, 1)) as views:
            first = await anext(views)
        row = await settled(lambda: opened(first[0]))
        return len(level), tuple(row) if isinstance(row, dict | Members) else None


async def _held_back(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The same chunks, each when the next one is there: bytes that turn out to be wrong at their end never become a
    whole answer."""
    held: bytes | None = None
    async for chunk in chunks:
        if held is not None:
            yield held
        held = chunk
    if held is not None:
        yield held
