"""New datasets.

Tasks put Parquet parts into the payload store and say what they put.  Nothing names a part before the driver's commit
has all accounts, one for each partition, and writes the manifest.  What a task left that failed, was killed or ran
twice is named by nothing, and the collector of payloads takes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from noetl.adapters.arrow.codec import schema_digest
from noetl.adapters.spark.sources.payloads.finding import Owner, owner_of
from noetl.adapters.spark.sources.payloads.landing import Landing
from noetl.adapters.spark.sources.payloads.options import WriteOptions
from noetl.adapters.spark.sources.payloads.pointer import path_of, read_pointer, turn, write_pointer
from noetl.adapters.spark.sources.telling import told
from noetl.adapters.spark.sources.waiting import check_owner, waited
from noetl.adapters.spark.types import arrow_schema_of, schema_from_text, schema_text
from noetl.adapters.spark.types.plan import natural_type
from noetl.core.dataset import MEDIA_DATASET, MEDIA_PARQUET, DatasetPart, Manifest, manifest_from
from noetl.core.errors import RequestInvalid
from noetl.core.reference import Reference
from noetl.ports.data.payloads import AdoptsFiles
from noetl.ports.data.sources import SourceAccess, SourceStores


@dataclass(frozen=True)
class Account(WriterCommitMessage):
    """What one attempt of a task has put into the store."""

    partition_id: int
    attempt: int
    parts: tuple[DatasetPart, ...] = ()
    schema: str | None = None
    """Of the rows as readers shall see them; None when there were none."""


@dataclass
class DatasetWriter(DataSourceArrowWriter):
    access: SourceAccess = field(repr=False)
    struct: StructType
    options: WriteOptions
    is_overwriting: bool

    @told
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Account:
        """In a task."""
        context = TaskContext.get()
        assert context is not None
        number, attempt = context.partitionId(), context.attemptNumber()
        with Landing(self.access.landing, self.struct, self.options.partition_by, mark=str(number)) as landing:
            for batch in iterator:
                landing.add(batch)
            landed = landing.finish()
            if not landed:
                return Account(number, attempt)
            schema = landing.schema()

            async def put(stores: SourceStores) -> tuple[DatasetPart, ...]:
                parts = []
                for one in landed:
                    assert isinstance(stores.large, AdoptsFiles)
                    names = {"tenant_id": self.access.tenant_id, "organization_id": self.access.organization_id}
                    kept = await stores.large.put_file(one.path, media_type=MEDIA_PARQUET, **names)
                    reference = replace(kept, row_count=one.row_count)
                    parts.append(DatasetPart(reference=reference, row_count=one.row_count, partition=one.partition))
                return tuple(parts)

            return Account(number, attempt, waited(self.access, put), schema_text(schema))

    @told
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver's planner, when every partition has a task that succeeded."""
        accounts = winners(messages)
        output = path_of(self.options.output).absolute()
        with turn(output):
            before = None if self.is_overwriting else read_pointer(output)
            write_pointer(output, waited(self.access, lambda stores: self._published(stores, accounts, before)))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was published.  Parts are not deleted here: equal content may be another's."""

    async def _published(
        self, stores: SourceStores, accounts: Sequence[Account], before: Reference | None
    ) -> Reference:
        manifest = manifest_of(self.struct, accounts, self.options.partition_by)
        if before is not None:
            belongs_to = owner_of(before)
            check_owner(self.access, belongs_to.tenant_id, belongs_to.organization_id)
            manifest = await _appended(stores, before, manifest)
        owner = Owner(self.access.tenant_id, self.access.organization_id)
        return await keep_manifest(stores, manifest, owner)


def winners(messages: Sequence[WriterCommitMessage | None]) -> list[Account]:
    """One account for each partition, in their order.  Of two attempts at one partition the first to be listed counts,
    and nothing of the other one."""
    found: dict[int, Account] = {}
    for message in messages:
        if not isinstance(message, Account):
            raise RequestInvalid("a task gave no account of what it wrote: nothing was published")
        found.setdefault(message.partition_id, message)
    return [found[number] for number in sorted(found)]


def manifest_of(struct: StructType, accounts: Sequence[Account], partition_by: tuple[str, ...]) -> Manifest:
    schema = _agreed(struct, [schema_from_text(one.schema) for one in accounts if one.schema is not None])
    parts = tuple(part for one in accounts for part in one.parts)
    return Manifest(
        arrow_schema=schema_text(schema),
        schema_digest=schema_digest(schema),
        row_count=sum(part.row_count for part in parts),
        parts=parts,
        partition_by=partition_by,
    )


def _agreed(struct: StructType, schemas: Sequence[pa.Schema]) -> pa.Schema:
    """A narrow type stays only where the rows of all tasks fit it."""
    if not schemas:
        return arrow_schema_of(struct)
    fields = []
    for field_, wanted in zip(struct, schemas[0], strict=True):
        is_same = all(schema.field(wanted.name).type.equals(wanted.type) for schema in schemas)
        fields.append(wanted if is_same else pa.field(wanted.name, natural_type(field_.dataType, field_.name)))
    return pa.schema(fields)


async def _appended(stores: SourceStores, before: Reference, added: Manifest) -> Manifest:
    if before.media_type != MEDIA_DATASET:
        raise RequestInvalid(f"{before.uri} is no dataset: nothing can be appended to it; write with mode overwrite")
    known = manifest_from(await stores.content(before, **owner_of(before).names()))
    if (known.schema_digest, known.partition_by) != (added.schema_digest, added.partition_by):
        raise RequestInvalid(
            f"the rows have other columns or another partitioning than {before.uri}, to which they should be appended: "
            "make them equal, or write with mode overwrite"
        )
    return replace(known, row_count=known.row_count + added.row_count, parts=(*known.parts, *added.parts))


async def keep_manifest(stores: SourceStores, manifest: Manifest, owner: Owner) -> Reference:
    content = manifest.to_bytes()

    async def chunks() -> AsyncIterator[bytes]:
        yield content

    kept = await stores.large.put_stream(chunks(), media_type=MEDIA_DATASET, **owner.names())
    return replace(kept, row_count=manifest.row_count, schema_digest=manifest.schema_digest)
