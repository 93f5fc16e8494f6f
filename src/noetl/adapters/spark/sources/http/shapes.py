"""The schema that JSON rows have: one type for each member that holds all of its values.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
)

VALUE = "value"
"""The column of rows that are no objects."""
_DEPTH_MAX = 12
_LONG_MAX = 2**63


def struct_of(items: Sequence[object]) -> StructType:
    """The schema of these rows.  A member that is always null is a text; one of several kinds is text too (JSON)."""
    if items and all(isinstance(item, Mapping) for item in items):
        merged = _settled(_merged(_shape(item, 0) for item in items))
        assert isinstance(merged, StructType)
        return merged
    return StructType([StructField(VALUE, _settled(_merged(_shape(item, 0) for item in items)))])


def _shape(value: object, depth: int) -> DataType:
    if value is None:
        return NullType()
    if isinstance(value, bool):
        return BooleanType()
    if isinstance(value, int):
        return LongType() if -_LONG_MAX <= value < _LONG_MAX else StringType()
    if isinstance(value, float):
        return DoubleType()
    if depth >= _DEPTH_MAX or isinstance(value, str):
        return StringType()
    if isinstance(value, Mapping):
        fields = [StructField(str(name), _shape(member, depth + 1)) for name, member in value.items()]
        # Spark has no structure without members.
        return StructType(fields) if fields else NullType()
    if isinstance(value, list):
        return ArrayType(_merged(_shape(item, depth + 1) for item in value))
    return StringType()


def _merged(shapes: Iterable[DataType]) -> DataType:
    found: DataType = NullType()
    for shape in shapes:
        found = _both(found, shape)
    return found


def _both(one: DataType, other: DataType) -> DataType:
    if one == other or isinstance(other, NullType):
        return one
    if isinstance(one, NullType):
        return other
    if isinstance(one, StructType) and isinstance(other, StructType):
        members = {field.name: field.dataType for field in one.fields}
        for field in other.fields:
            members[field.name] = _both(members.get(field.name, NullType()), field.dataType)
        return StructType([StructField(name, kind) for name, kind in members.items()])
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_both(one.elementType, other.elementType))
    if {type(one), type(other)} == {LongType, DoubleType}:
        return DoubleType()
    return StringType()


def _settled(shape: DataType) -> DataType:
    """Without what is not known: a member that was never there is a text."""
    if isinstance(shape, NullType):
        return StringType()
    if isinstance(shape, ArrayType):
        return ArrayType(_settled(shape.elementType))
    if isinstance(shape, StructType):
        return StructType([StructField(field.name, _settled(field.dataType)) for field in shape.fields])
    return shape
