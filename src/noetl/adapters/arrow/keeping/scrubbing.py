"""Secrets are taken out of a table before anything of it is stored.

Looking is cheap: the texts of a whole column are looked at as one text, which also finds what lies hidden below nulls.
Only a column with a find is built again, value by value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import ipc, types

from noetl.adapters.arrow.soundness import children
from noetl.core.errors import Failure, ToolFailed
from noetl.ports.data.tables import Scrub

# How many buffers a nested array has of its own; its children are rebuilt.
_NESTED: tuple[tuple[Callable[[Any], bool], int], ...] = (
    (types.is_struct, 1),
    (types.is_fixed_size_list, 1),
    (types.is_list, 2),
    (types.is_large_list, 2),
    (types.is_map, 2),
)


class Scrubbing:
    """One table's schema, then its batches."""

    def __init__(self, scrub: Scrub) -> None:
        self.has_changed = False
        self._scrub = scrub
        self._schema: Any = None

    def schema(self, schema: Any) -> Any:
        """Names and remarks may hold a secret as well; inside a nested type they cannot be changed."""
        if self._finds(schema.serialize()):
            self.has_changed = True
            fields = [self._field(field) for field in schema]
            schema = pa.schema(fields, metadata=self._metadata(schema.metadata))
            if self._finds(schema.serialize()):
                raise _refused()
        self._schema = schema
        return schema

    def batch(self, batch: Any) -> Any:
        columns = batch.columns
        if any(self._is_found(column) for column in columns):
            self.has_changed = True
            # Read back, every array starts at the start of its buffers, and nothing hides before or behind it.
            columns = [self._rebuilt(column) for column in _settled(batch).columns]
        elif batch.schema.equals(self._schema, check_metadata=True):
            return batch
        if not columns:
            return batch
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    # --- looking -------------------------------------------------------------------------------------------

    def _finds(self, content: Any) -> bool:
        text = bytes(content).decode("utf-8", "replace")
        return self._scrub(text) is not text

    def _is_found(self, array: Any) -> bool:
        kind = array.type
        if is_text(kind) or types.is_fixed_size_binary(kind):
            # The first buffer is the validity, the last ones hold the text, in between are offsets or views.
            return any(buffer is not None and self._finds(buffer) for buffer in array.buffers()[_first_text(kind) :])
        return any(self._is_found(child) for child in children(array))

    # --- rebuilding ----------------------------------------------------------------------------------------

    def _rebuilt(self, array: Any) -> Any:
        if not self._is_found(array):
            return array
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(kind, self._rebuilt(array.storage))
        if types.is_dictionary(kind):
            words = self._rebuilt(array.dictionary)
            return pa.DictionaryArray.from_arrays(array.indices, words, ordered=kind.ordered)
        if is_text(kind) or types.is_fixed_size_binary(kind):
            return pa.array([self._value(value, kind) for value in array.to_pylist()], type=kind)
        for is_kind, own in _NESTED:
            if is_kind(kind):
                rebuilt = [self._rebuilt(child) for child in children(array)]
                return pa.Array.from_buffers(
                    kind, len(array), array.buffers()[:own], array.null_count, children=rebuilt
                )
        raise _refused()

    def _value(self, value: Any, kind: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, str):
            return self._scrub(value)
        text = value.decode("utf-8", "surrogateescape")
        clean = self._scrub(text)
        if clean is text:
            return value
        content = str(clean).encode("utf-8", "surrogateescape")
        if types.is_fixed_size_binary(kind):
            return content[: kind.byte_width].ljust(kind.byte_width, b"*")
        return content

    def _field(self, field: Any) -> Any:
        return pa.field(self._scrub(field.name), field.type, field.nullable, metadata=self._metadata(field.metadata))

    def _metadata(self, metadata: Any) -> Any:
        """Remarks that hold a secret are left out."""
        if metadata is None:
            return None
        return {name: text for name, text in metadata.items() if not self._finds(name) and not self._finds(text)}


def is_text(kind: Any) -> bool:
    """Texts and bytes of any length."""
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
    )


def _first_text(kind: Any) -> int:
    """Views hold short texts themselves."""
    return 1 if types.is_fixed_size_binary(kind) or types.is_string_view(kind) or types.is_binary_view(kind) else 2


def _settled(batch: Any) -> Any:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    (settled,) = ipc.open_stream(sink.getvalue())
    return settled


def _refused() -> ToolFailed:
    message = "the table holds a credential where it cannot be taken out: it was not stored"
    return ToolFailed(Failure(kind="storage_access", code="SECRET_IN_TABLE", message=message))
