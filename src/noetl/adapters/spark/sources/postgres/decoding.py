"""Rows as the server copies them out (CSV) made into Arrow batches of a schema of Spark.

The whole of it is columns: the text of many rows is taken apart and read by Arrow, and no row is ever an object.  What
a column cannot hold is an error with its name, and never another value."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, DataType, StructType

from noetl.adapters.spark.sources.postgres.options import wrong
from noetl.adapters.spark.sources.postgres.statements import identifier, statement
from noetl.core.errors import ToolFailed

_PARSE = pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
_COLUMN = re.compile(r"CSV column #(\d+)")
_LISTS = msgspec.json.Decoder(list[list[str | None] | None])


def selected(struct: StructType) -> str:
    """The columns of a schema as they are asked for: arrays as JSON of texts, all others as they are."""
    return ", ".join(
        statement("reading.sql", "array_text", column=identifier(field.name))
        if isinstance(field.dataType, ArrayType)
        else identifier(field.name)
        for field in struct.fields
    )


class Decoder:
    """Reads rows into batches of one schema."""

    def __init__(self, struct: StructType) -> None:
        self._struct = struct
        self._schema = to_arrow_schema(struct, timezone="UTC")
        # Positions are the names while rows are read: they cannot clash.
        self._names = [str(number) for number in range(len(struct.fields))]
        kinds = {
            name: pa.string() if is_converted(field.dataType) else self._schema.field(number).type
            for number, (name, field) in enumerate(zip(self._names, struct.fields, strict=True))
        }
        self._convert = pa_csv.ConvertOptions(
            column_types=kinds,
            null_values=[""],
            true_values=["t", "true"],
            false_values=["f", "false"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def batch(self, content: bytes) -> pa.RecordBatch:
        """Complete rows as one batch.  Raises ToolFailed."""
        reading = pa_csv.ReadOptions(column_names=self._names, block_size=len(content) + 1, use_threads=False)
        try:
            table = pa_csv.read_csv(pa.BufferReader(content), reading, _PARSE, self._convert)
        except pa.ArrowInvalid as error:
            found = _COLUMN.search(str(error))
            # What Arrow says would quote the value.
            raise self._misfit(int(found[1]) if found else 0) from None
        arrays = [self._array(number, column) for number, column in enumerate(table.columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, number: int, column: Any) -> Any:
        texts = column.combine_chunks()
        texts = texts if isinstance(texts, pa.Array) else pa.concat_arrays(texts.chunks)
        field = self._struct.fields[number]
        try:
            if isinstance(field.dataType, BinaryType):
                return _bytes(texts)
            if isinstance(field.dataType, ArrayType):
                return _lists(texts, self._schema.field(number).type)
        except (pa.ArrowInvalid, ValueError, msgspec.DecodeError):
            raise self._misfit(number) from None
        return texts

    def _misfit(self, number: int) -> ToolFailed:
        field = self._struct.fields[number]
        kind = field.dataType.simpleString()
        advice = "give a schema where it is a string, cast it in a query, or leave it out by columns"
        return wrong(f"column {field.name!r} has a value that {kind} cannot hold: {advice}", "VALUE_MISFIT")


def is_converted(kind: DataType) -> bool:
    """Read as text first."""
    return isinstance(kind, BinaryType | ArrayType)


def _bytes(texts: Any) -> Any:
    return pa.array([None if text is None else bytes.fromhex(text[2:]) for text in texts.to_pylist()], pa.binary())


def _lists(texts: Any, kind: Any) -> Any:
    """JSON of texts, of all rows at once: the items are read as a column of their own."""
    joined = ",".join("null" if text is None else text for text in texts.to_pylist())
    lists = _LISTS.decode(f"[{joined}]")
    ends = [0]
    items: list[str | None] = []
    for one in lists:
        items.extend(one or ())
        ends.append(len(items))
    flat = pa.array(items, pa.string())
    flat = _bytes(flat) if pa.types.is_binary(kind.value_type) else flat.cast(kind.value_type)
    mask = pa.array([one is None for one in lists], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat, type=kind, mask=mask)
