"""From Arrow to Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types as kinds
from pyspark.sql import types as spark

from noetl.adapters.arrow.stored.casting import to_stored
from noetl.adapters.arrow.stored.text import schema_text
from noetl.adapters.arrow.stored.types import TypeUnsupported, is_list, stored_schema

MARK = "noetl.arrow"
"""Metadata of a column: a schema, as text, with one field of the type that the column had."""

_FLAT: dict[pa.DataType, Callable[[], spark.DataType]] = {
    pa.bool_(): spark.BooleanType,
    pa.int8(): spark.ByteType,
    pa.int16(): spark.ShortType,
    pa.int32(): spark.IntegerType,
    pa.int64(): spark.LongType,
    pa.float32(): spark.FloatType,
    pa.float64(): spark.DoubleType,
    pa.string(): spark.StringType,
    pa.binary(): spark.BinaryType,
    pa.date32(): spark.DateType,
    pa.time64("us"): spark.TimeType,
    pa.timestamp("us"): spark.TimestampNTZType,
    pa.timestamp("us", "UTC"): spark.TimestampType,
}


@dataclass(frozen=True, slots=True)
class TypePlan:
    """What the columns of a schema become."""

    schema: pa.Schema
    stored: pa.Schema
    """As they are in Parquet."""
    struct: spark.StructType
    """As Spark knows them, with marks."""

    def stored_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Raises TypeUnsupported for values that would change."""
        return to_stored(batch)


def plan_of(schema: pa.Schema) -> TypePlan:
    """Raises TypeUnsupported with the name of the column that Spark cannot have."""
    check_names(schema.names)
    stored = stored_schema(schema)
    pairs = zip(schema, stored, strict=True)
    return TypePlan(schema, stored, spark.StructType([_field(one, other) for one, other in pairs]))


def check_names(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name:
            raise TypeUnsupported(name, "has no name: name it in the step before")
        if name.lower() in seen:
            raise TypeUnsupported(name, "is there twice, and Spark does not tell capital letters apart: rename it")
        seen.add(name.lower())


def _field(field: pa.Field, stored: pa.Field) -> spark.StructField:
    kind = spark_type(field.type, stored.type)
    marks = {} if natural_type(kind, field.name).equals(field.type) else {MARK: schema_text(_alone(field))}
    return spark.StructField(field.name, kind, nullable=True, metadata=marks)


def _alone(field: pa.Field) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type)])


def spark_type(kind: pa.DataType, stored: pa.DataType) -> spark.DataType:
    """The type that Spark gives a column of this Arrow type, which is stored as another one."""
    if isinstance(kind, pa.BaseExtensionType):
        return spark_type(kind.storage_type, stored)
    if kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind):
        return spark_type(kind.value_type, stored)
    if kinds.is_map(kind):
        key, value = spark_type(kind.key_type, stored.key_type), spark_type(kind.item_type, stored.item_type)
        return spark.MapType(key, value)
    if is_list(kind):
        return spark.ArrayType(spark_type(kind.value_type, stored.value_type))
    if kinds.is_struct(kind):
        fields = zip(kind, stored, strict=True)
        return spark.StructType([spark.StructField(f.name, spark_type(f.type, s.type)) for f, s in fields])
    if kinds.is_duration(kind):
        return spark.DayTimeIntervalType()
    if kinds.is_decimal(stored):
        return spark.DecimalType(stored.precision, stored.scale)
    return _FLAT[stored]()


def natural_type(kind: spark.DataType, column: str) -> pa.DataType:
    """The Arrow type of a Spark type.  Raises TypeUnsupported."""
    if isinstance(kind, spark.UserDefinedType):
        return natural_type(kind.sqlType(), column)
    if isinstance(kind, spark.ArrayType):
        return pa.list_(pa.field("element", natural_type(kind.elementType, f"{column}[]")))
    if isinstance(kind, spark.MapType):
        value = pa.field("value", natural_type(kind.valueType, f"{column}.value"))
        return pa.map_(natural_type(kind.keyType, f"{column}.key"), value)
    if isinstance(kind, spark.StructType):
        return pa.struct([pa.field(f.name, natural_type(f.dataType, f"{column}.{f.name}")) for f in kind])
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark.DayTimeIntervalType):
        return pa.duration("us")
    if isinstance(kind, spark.NullType):
        return pa.null()
    if isinstance(kind, spark.StringType | spark.CharType | spark.VarcharType):
        return pa.string()
    for arrow, made in _FLAT.items():
        if type(kind) is made:
            return arrow
    hint = _HINTS.get(type(kind).__name__, "cast it to a type that Arrow has")
    raise TypeUnsupported(column, f"Spark's type {kind.simpleString()} cannot be kept: {hint}")


_HINTS = {
    "YearMonthIntervalType": "cast it to a number of months",
    "CalendarIntervalType": "make a day-time interval or a number of it",
    "VariantType": "make text of it with to_json",
    "GeometryType": "make text or bytes of it with ST_AsBinary",
    "GeographyType": "make text or bytes of it with ST_AsBinary",
}
