"""The input of a call as inputs of a job: tables and datasets as files of this machine, the rest as what it is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from noetl.core.dataset import MEDIA_DATASET
from noetl.core.limits import SPARK_INPUTS_MAX
from noetl.core.locator import is_ours
from noetl.core.playbook.spark.shapes import FieldInvalid, check_inputs
from noetl.ports.data.compute import JobCredential, JobInput
from noetl.ports.tool import Place, TableInput, ToolCall, ToolSettings
from noetl.tools.artifact.contents import unpacked, value_of
from noetl.tools.spark.failures import failed
from noetl.tools.spark.sources import Sources, is_path, of_path

FOLDER = "given"


class Inputs:
    """Lays out the inputs of one call.  Tables stay open until the stack is left."""

    def __init__(self, call: ToolCall, settings: ToolSettings, folder: Path, stack: AsyncExitStack) -> None:
        self._call = call
        self._roots = settings.artifact_roots
        self._sources = Sources(call.auth, settings)
        self._folder = folder / FOLDER
        self._stack = stack

    @property
    def credentials(self) -> Mapping[str, JobCredential]:
        """What the data sources of the job need; complete when all inputs are laid out."""
        return self._sources.credentials

    async def laid_out(self) -> tuple[JobInput, ...]:
        """Raises ToolFailed."""
        given = self._call.input
        try:
            check_inputs(given)
        except FieldInvalid as error:
            raise failed("config", f"inputs: {error}") from error
        if len(given) > SPARK_INPUTS_MAX:
            raise failed("config", f"{len(given)} inputs, the limit is {SPARK_INPUTS_MAX}")
        return tuple([await self._one(name, value) for name, value in given.items()])

    async def _one(self, name: str, value: object) -> JobInput:
        tables = self._call.given_tables
        table = tables.get((name,)) or tables.get((name, "rows"))
        if table is not None:
            return await self._table(name, table)
        deeper = [place for place in tables if place[0] == name]
        if deeper:
            raise failed("config", f"input {name!r} has tables inside: name one of {_places(deeper)} as an input")
        if isinstance(value, str):
            return await self._text(name, value)
        if isinstance(value, Mapping):
            return self._mapping(name, value)
        return JobInput(name=name, kind="value", value=value)

    async def _text(self, name: str, text: str) -> JobInput:
        if is_ours(text):
            return await self._stored(name, text)
        if is_path(text):
            return of_path(name, {"path": text}, self._roots)
        return JobInput(name=name, kind="value", value=text)

    def _mapping(self, name: str, value: Mapping[str, object]) -> JobInput:
        if set(value) == {"value"}:
            return JobInput(name=name, kind="value", value=value["value"])
        source = self._sources.described(name, value)
        if source is not None:
            return source
        return _plain(name, value)

    async def _stored(self, name: str, uri: str) -> JobInput:
        """What a locator names: a dataset, a table, a result with rows, or any JSON."""
        if self._call.artifacts is None:
            raise failed("unsupported", "this worker has no store of results")
        found = await self._call.artifacts.read(uri)
        reference = found.parts.get(()) or found.parts.get(("rows",))
        if reference is not None:
            return await self._referenced(name, reference)
        if found.parts:
            raise failed(
                "config", f"input {name!r}: {uri} has tables at {_places(list(found.parts))}: name one of them"
            )
        if found.content is None:
            return _plain(name, found.value)
        content = unpacked(found.content, is_compressed=found.compression == "gzip")
        return _plain(name, value_of(content, found.content_type)[0])

    async def _referenced(self, name: str, reference: Mapping[str, object]) -> JobInput:
        if reference.get("media_type") == MEDIA_DATASET:
            return await self._dataset(name, reference)
        assert self._call.artifacts is not None
        return await self._table(name, self._call.artifacts.table(reference))

    async def _table(self, name: str, table: TableInput) -> JobInput:
        if table.reference.get("media_type") == MEDIA_DATASET:
            return await self._dataset(name, table.reference)
        opened = await table.open()
        self._stack.callback(opened.close)
        file = await opened.looked(opened.mapped)
        return JobInput(name=name, kind="arrow", path=str(file.path), offset=file.offset, length=file.length)

    async def _dataset(self, name: str, reference: Mapping[str, object]) -> JobInput:
        if self._call.datasets is None:
            raise failed("unsupported", "this worker has no store of datasets")
        local = await self._call.datasets.laid_out(reference, self._folder / name)
        return JobInput(
            name=name,
            kind="dataset",
            path=str(local.root),
            arrow_schema=local.manifest.arrow_schema,
            partition_by=tuple(local.manifest.partition_by),
        )


def _plain(name: str, value: object) -> JobInput:
    """A result with rows that are plain data is its rows, as it is when they are a table."""
    rows = value.get("rows") if isinstance(value, Mapping) else None
    return JobInput(name=name, kind="value", value=rows if isinstance(rows, list | tuple) else value)


def _places(places: list[Place]) -> str:
    return ", ".join(".".join(map(str, place)) for place in sorted(places, key=str)[:5])
