"""What `main` returned: DataFrames, tables that become some, or plain data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession

from noetl.adapters.spark.job.failures import JobInvalid
from noetl.core import limits
from noetl.core.codec import canonical_bytes
from noetl.core.errors import NoetlError
from noetl.core.expression import normalise

Tabular = DataFrame | pa.Table | pa.RecordBatch | pd.DataFrame


def is_tabular(value: object) -> bool:
    return isinstance(value, DataFrame | pa.Table | pa.RecordBatch | pd.DataFrame)


def arrow_of(value: object, name: str) -> pa.Table:
    """A table of pandas' or Arrow's as an Arrow table."""
    if isinstance(value, pd.DataFrame):
        try:
            # An index without a name is only a numbering.
            is_named = any(label is not None for label in value.index.names)
            return pa.Table.from_pandas(value, preserve_index=is_named).replace_schema_metadata(None)
        except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError) as error:
            message = f"the pandas table {name or 'that main returned'} cannot become an Arrow table: {error}"
            raise JobInvalid(message, "SPARK_TYPE_UNSUPPORTED", kind="schema") from error
    return pa.Table.from_batches([value]) if isinstance(value, pa.RecordBatch) else value


def plain_value(value: object, name: str) -> object:
    """A value as plain data (dsl §8.6), within the size of a result."""
    label = f"output {name}" if name else "what main returned"
    if isinstance(value, Column | SparkSession) or is_tabular(value):
        raise JobInvalid(
            f"{label} is a {type(value).__name__}, which is neither rows nor a value", "SPARK_VALUE_INVALID"
        )
    try:
        plain = normalise(_without_spark(value, label))
        size = len(canonical_bytes(plain))
    except JobInvalid:
        raise
    except (NoetlError, RecursionError, ValueError, TypeError) as error:
        raise JobInvalid(f"{label} cannot be recorded as JSON: {error}", "SPARK_VALUE_INVALID") from error
    if size > limits.SPARK_VALUE_BYTES_MAX:
        most = f"{limits.SPARK_VALUE_BYTES_MAX:,}"
        message = f"{label} has {size:,} bytes as JSON, and a value may have {most}: return a DataFrame"
        raise JobInvalid(message, "SPARK_VALUE_TOO_LARGE")
    return plain


def _without_spark(value: Any, label: str) -> object:
    """Rows as mappings and arrays as lists; text of an object would be of no use here."""
    if isinstance(value, Row):
        return (
            {key: _without_spark(item, label) for key, item in value.asDict().items()}
            if hasattr(value, "__fields__")
            else [_without_spark(item, label) for item in value]
        )
    if isinstance(value, Iterator | AsyncIterator | Coroutine):
        message = (
            f"{label} is or has a {type(value).__name__}, which gives its values one by one: return a list or rows"
        )
        raise JobInvalid(message, "SPARK_VALUE_INVALID")
    if is_tabular(value):
        raise JobInvalid(f"{label} has a table inside: return it as a member of its own", "SPARK_VALUE_INVALID")
    if isinstance(value, Mapping):
        return {key: _without_spark(item, label) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_spark(item, label) for item in value]
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else value
