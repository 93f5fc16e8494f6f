"""What a job says about the files that it wrote, compared with what is in them, before any of it is believed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from noetl.adapters.arrow.codec import DAMAGE, first_line
from noetl.adapters.arrow.datasets.files import READ_BYTES
from noetl.adapters.arrow.datasets.partitions import typed
from noetl.adapters.arrow.datasets.secrets import in_bytes, in_part
from noetl.adapters.arrow.soundness import check_schema
from noetl.adapters.arrow.stored.casting import restored
from noetl.adapters.arrow.stored.types import TypeUnsupported
from noetl.core.codec import canonical_bytes
from noetl.core.errors import Failure, ToolFailed
from noetl.core.limits import DATASET_PARTS_MAX
from noetl.ports.data.datasets import Finds, LandedDataset, LandedPart

_NUMBER = re.compile(r"(\d+)")


def invalid(message: str) -> ToolFailed:
    return ToolFailed(Failure(kind="parse", code="DATASET_INVALID", message=f"the dataset was not stored: {message}"))


def checked_schema(landed: LandedDataset, finds: Finds | None) -> Any:
    """The columns as readers shall see them.  Raises ToolFailed."""
    if len(landed.parts) > DATASET_PARTS_MAX:
        raise invalid(f"it has {len(landed.parts):,} files, and there may be {DATASET_PARTS_MAX:,}: write fewer ones")
    if len({part.path for part in landed.parts}) < len(landed.parts):
        raise invalid("the job lists a file twice")
    try:
        schema = ipc.read_schema(pa.py_buffer(landed.arrow_schema))
        check_schema(schema)
    except DAMAGE as error:
        raise invalid(f"its schema cannot be read: {first_line(error)}") from error
    names = schema.names
    if len(set(names)) < len(names):
        raise invalid("two of its columns have one name")
    missing = [name for name in landed.partition_by if name not in names]
    if missing or len(set(landed.partition_by)) < len(landed.partition_by):
        raise invalid(f"it is partitioned by {', '.join(landed.partition_by)}, and its columns are {', '.join(names)}")
    if finds is not None:
        in_bytes(finds, landed.arrow_schema, "the names and remarks of its columns")
    return schema


def ordered(landed: LandedDataset) -> list[LandedPart]:
    """In an order that does not depend on who listed them: by partition, then as writers number their files."""

    def place(part: LandedPart) -> tuple[object, ...]:
        values = [
            (part.partition.get(name) is not None, part.partition.get(name) or "") for name in landed.partition_by
        ]
        words = _NUMBER.split(part.path.name)
        return (values, [(int(word), "") if word.isdigit() else (-1, word) for word in words], str(part.path))

    return sorted(landed.parts, key=place)


class PartCheck:
    """Checks the files of one dataset.  For threads."""

    def __init__(self, landed: LandedDataset, schema: Any, finds: Finds | None) -> None:
        self._partition_by = landed.partition_by
        self._root = None if landed.root is None else landed.root.resolve()
        self._schema = schema
        self._finds = finds

    def plain_bytes(self, part: LandedPart) -> int:
        """Look at a file without reading its rows; about how many bytes it has without compression.  Raises
        ToolFailed."""
        self._check_partition(part)
        _check_plain(part.path, self._root)
        try:
            with pq.ParquetFile(
                part.path, page_checksum_verification=True, pre_buffer=False, buffer_size=READ_BYTES
            ) as reader:
                metadata, found = reader.metadata, reader.schema_arrow
                if metadata.num_rows != part.row_count:
                    raise invalid(f"a file has {metadata.num_rows:,} rows, and the job counted {part.row_count:,}")
                self._check_columns(found)
                if self._finds is not None:
                    in_part(self._finds, reader)
                return sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        except DAMAGE as error:
            raise invalid(f"a file is no readable Parquet: {first_line(error)}") from error

    def _check_partition(self, part: LandedPart) -> None:
        if set(part.partition) != set(self._partition_by):
            raise invalid("a file does not say where in the partitioning it stands")
        for name in self._partition_by:
            text = part.partition[name]
            if self._finds is not None and text is not None:
                in_bytes(self._finds, text.encode("utf-8", "surrogatepass"), f"its column {name!r}")
            kind = self._schema.field(name).type
            try:
                typed(text, kind)
            except DAMAGE as error:
                raise invalid(f"a value of the column {name!r}, which it is partitioned by, is no {kind}") from error

    def _check_columns(self, found: Any) -> None:
        for field in self._schema:
            if field.name in self._partition_by:
                continue
            if len(found.get_all_field_indices(field.name)) != 1:
                raise invalid(f"a file has no column {field.name!r}")
            kind = found.field(field.name).type
            try:
                restored(pa.array([], kind), field)
            except (*DAMAGE, TypeUnsupported) as error:
                raise invalid(f"the column {field.name!r} of a file is {kind}, which is no {field.type}") from error


def _check_plain(path: Path, root: Path | None) -> None:
    try:
        found = os.lstat(path)
        is_inside = root is None or path.resolve(strict=True).is_relative_to(root)
    except OSError as error:
        raise invalid(f"a file that the job wrote is not there any more ({error.strerror})") from error
    if not stat.S_ISREG(found.st_mode):
        raise invalid("what the job wrote is no plain file")
    if not is_inside:
        raise invalid("a file is not in the folder of its job")


def has_schema(path: Path, schema: Any) -> bool:
    """Whether whoever reads a file by itself sees these columns."""
    try:
        return bool(pq.read_schema(path).equals(schema))
    except DAMAGE:
        return False


def json_bytes_min(schema: Any, rows: int, sizes: Sequence[int]) -> int:
    """How many bytes the rows have as JSON, at least: their keys, and a character for each value; or what they have in
    their files without compression."""
    keys = sum(len(canonical_bytes(name)) + len(":1,") for name in schema.names)
    return max(rows * (keys + len("{}")), sum(sizes))
