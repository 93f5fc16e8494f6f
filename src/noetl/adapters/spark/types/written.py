"""What a job wrote: the schema that its readers shall see, after a look at the values that marks are about."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as kinds
from pyspark.sql import types as spark

from noetl.adapters.arrow.stored.casting import restored
from noetl.adapters.arrow.stored.types import TypeUnsupported, is_list
from noetl.adapters.spark.types.plan import natural_type
from noetl.adapters.spark.types.schemas import arrow_schema_of

_ROWS = 65_536


def written_schema(struct: spark.StructType, files: Sequence[str], *, partition_by: Sequence[str] = ()) -> pa.Schema:
    """As `arrow_schema_of`, but a narrow type stays only where every value in the files fits it: a column that was
    joined with another may hold more than it did."""
    fields = []
    for field, wanted in zip(struct, arrow_schema_of(struct), strict=True):
        natural = natural_type(field.dataType, field.name)
        if wanted.type.equals(natural) or not _is_narrow(wanted.type):
            fields.append(wanted)
        elif wanted.name in partition_by or not _fits(wanted, files):
            fields.append(pa.field(wanted.name, natural))
        else:
            fields.append(wanted)
    return pa.schema(fields)


def _is_narrow(kind: pa.DataType) -> bool:
    """Whether a value of the stored type may not fit."""
    if isinstance(kind, pa.BaseExtensionType):
        return True
    if kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind):
        return True
    if kinds.is_fixed_size_list(kind):
        return True
    if kinds.is_map(kind):
        return _is_narrow(kind.key_type) or _is_narrow(kind.item_type)
    if is_list(kind):
        return _is_narrow(kind.value_type)
    if kinds.is_struct(kind):
        return any(_is_narrow(field.type) for field in kind)
    if kinds.is_timestamp(kind) or kinds.is_time(kind) or kinds.is_duration(kind):
        return bool(kind.unit != "us")
    is_small = kinds.is_unsigned_integer(kind) or kinds.is_float16(kind) or kinds.is_null(kind)
    return bool(is_small or kinds.is_fixed_size_binary(kind))


def _fits(field: pa.Field, files: Sequence[str]) -> bool:
    try:
        for file in files:
            with pq.ParquetFile(file) as parquet:
                for batch in parquet.iter_batches(batch_size=_ROWS, columns=[field.name]):
                    restored(batch.column(0), field)
    except TypeUnsupported:
        return False
    return True
