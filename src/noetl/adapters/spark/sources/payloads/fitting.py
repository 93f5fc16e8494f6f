"""Columns in exactly the types that Spark was told."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from noetl.adapters.arrow.datasets.partitions import constant
from noetl.adapters.arrow.stored.casting import to_stored
from noetl.core.errors import PayloadCorrupt


def declared(struct: StructType) -> pa.Schema:
    """What Spark compares the first batch of a task with."""
    return to_arrow_schema(struct, timezone="UTC")


def fitted(batch: pa.RecordBatch, target: pa.Schema, constants: Mapping[str, pa.Array], uri: str) -> pa.RecordBatch:
    """The columns of the target, from a batch and from what is the same in all its rows.  Raises PayloadCorrupt for a
    column that is missing or is something else."""
    if batch.schema.equals(target):
        return batch
    columns = []
    for field in target:
        column = constants.get(field.name)
        place = batch.schema.get_field_index(field.name)
        if column is None and place < 0:
            raise PayloadCorrupt(f"{uri} has no column {field.name!r}")
        columns.append(_cast(batch.column(place) if column is None else column, field, uri))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def repeated(partition: Mapping[str, str | None], types: Mapping[str, pa.DataType], rows: int) -> dict[str, pa.Array]:
    """The columns that stand in no file, for so many rows."""
    schema = pa.schema([(name, types[name]) for name in partition])
    columns = [constant(text, types[name], rows) for name, text in partition.items()]
    stored = to_stored(pa.RecordBatch.from_arrays(columns, schema=schema))
    return {name: stored.column(name) for name in partition}


def _cast(column: pa.Array, field: pa.Field, uri: str) -> pa.Array:
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        message = f"{uri}: column {field.name!r} is {column.type} and cannot be read as {field.type}"
        raise PayloadCorrupt(message) from error
