"""From Spark to Arrow."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from noetl.adapters.arrow.stored.text import schema_from_text
from noetl.adapters.arrow.stored.types import TypeUnsupported, stored_type
from noetl.adapters.spark.types.plan import MARK, check_names, natural_type, spark_type
from noetl.core.errors import EnvelopeInvalid


def arrow_schema_of(struct: spark.StructType) -> pa.Schema:
    """The columns as their readers shall see them, by their marks where Spark kept them.  Raises TypeUnsupported."""
    check_names(struct.names)
    return pa.schema(
        [pa.field(field.name, marked_type(field) or natural_type(field.dataType, field.name)) for field in struct]
    )


def marked_type(field: spark.StructField) -> pa.DataType | None:
    """The type that the column had, if it is still stored in the same way."""
    text = field.metadata.get(MARK)
    if not isinstance(text, str):
        return None
    try:
        kind = schema_from_text(text).field(0).type
        is_same = _bare(spark_type(kind, stored_type(kind, field.name))) == _bare(field.dataType)
    except (EnvelopeInvalid, TypeUnsupported, IndexError):
        return None
    return kind if is_same else None


def _bare(kind: spark.DataType) -> str:
    return kind.simpleString()


def storable(frame: DataFrame) -> DataFrame:
    """The same rows, of which Parquet can hold every column: one without a type becomes text that is always null."""
    if not any(_has_void(field.dataType) for field in frame.schema):
        return frame
    columns = [_stored_column(field) for field in frame.schema]
    return frame.select(*columns)


def _stored_column(field: spark.StructField) -> Column:
    quoted = f"`{field.name.replace('`', '``')}`"
    if not _has_void(field.dataType):
        return F.col(quoted)
    if not isinstance(field.dataType, spark.NullType):
        raise TypeUnsupported(field.name, "has values without a type inside: cast it to one")
    return F.col(quoted).cast("string").alias(field.name, metadata=field.metadata)


def _has_void(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.ArrayType):
        return _has_void(kind.elementType)
    if isinstance(kind, spark.MapType):
        return _has_void(kind.keyType) or _has_void(kind.valueType)
    if isinstance(kind, spark.StructType):
        return any(_has_void(field.dataType) for field in kind)
    return isinstance(kind, spark.NullType)
