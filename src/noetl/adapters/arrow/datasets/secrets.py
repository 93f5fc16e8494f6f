"""Secrets in files that somebody else wrote: such files are not changed, so one with a secret in it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyarrow import types

from noetl.adapters.arrow.keeping.scrubbing import is_text
from noetl.adapters.arrow.soundness import children
from noetl.core.errors import SECRET_IN_BODY, Failure, ToolFailed
from noetl.core.limits import TABLE_BATCH_ROWS_AIM
from noetl.ports.data.datasets import Finds


def in_bytes(finds: Finds, content: bytes, where: str) -> None:
    """Raises ToolFailed."""
    if finds(content):
        raise _refused(where)


def in_part(finds: Finds, reader: Any) -> None:
    """Look through the texts of a part, and through what its writer put beside them.  Raises ToolFailed, which names
    the column."""
    schema, metadata = reader.schema_arrow, reader.metadata
    for name, text in (metadata.metadata or {}).items():
        in_bytes(finds, name + b"\0" + text, "the remarks in its files")
    in_bytes(finds, schema.serialize().to_pybytes(), "the names and remarks of its columns")
    names = [field.name for field in schema if _has_text(field.type)]
    if not names:
        return
    for batch in reader.iter_batches(TABLE_BATCH_ROWS_AIM, columns=names):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if any(_is_found(finds, texts) for texts in _texts(column)):
                raise _refused(f"its column {name!r}")


def _is_found(finds: Finds, texts: Any) -> bool:
    """All values together first: they are many, and secrets among them are few."""
    if any(buffer is not None and finds(buffer.to_pybytes()) for buffer in texts.buffers()[1:]):
        return any(
            finds(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value)
            for value in texts.drop_null().to_pylist()
        )
    return False


def _has_text(kind: Any) -> bool:
    if _is_text(kind):
        return True
    if types.is_dictionary(kind):
        return _has_text(kind.value_type)
    storage = getattr(kind, "storage_type", None)
    if storage is not None:
        return _has_text(storage)
    return any(_has_text(kind.field(place).type) for place in range(kind.num_fields))


def _is_text(kind: Any) -> bool:
    return is_text(kind) or bool(types.is_fixed_size_binary(kind))


def _texts(array: Any) -> Iterator[Any]:
    """The arrays of texts in an array, wherever in it they stand."""
    if _is_text(array.type):
        yield array
        return
    for child in children(array):
        yield from _texts(child)


def _refused(where: str) -> ToolFailed:
    message = f"the dataset holds a credential in {where}: it was not stored; leave it out of what the step writes"
    return ToolFailed(Failure(kind="storage_access", code=SECRET_IN_BODY, message=message))
