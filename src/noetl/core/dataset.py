"""Datasets: rows in Parquet parts, and the manifest that says which parts they are.

A part is a payload like any other, and so is the manifest: a dataset is published by naming its manifest in an event,
and nothing that a manifest does not list belongs to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from noetl.core.codec import canonical_bytes, parse_json
from noetl.core.errors import EnvelopeInvalid
from noetl.core.reference import MEDIA_ARROW, Reference, reference_from_json

MEDIA_DATASET = "application/vnd.noetl.dataset+json"
MEDIA_PARQUET = "application/vnd.apache.parquet"
FORMAT = "parquet"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetPart:
    """One Parquet file."""

    reference: Reference
    row_count: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    """The values of the columns that the dataset is partitioned by, as text; they are not in the file."""

    def to_json(self) -> dict[str, object]:
        document: dict[str, object] = {"reference": self.reference.to_json(), "row_count": self.row_count}
        return {**document, "partition": dict(self.partition)} if self.partition else document


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All parts of a dataset in their order."""

    arrow_schema: str
    """The Arrow schema as its readers see it, all columns: an IPC schema message in base64.  A part may hold a column
    in another type of Parquet's; its reader casts."""
    schema_digest: str
    row_count: int
    parts: tuple[DatasetPart, ...]
    partition_by: tuple[str, ...] = ()

    @property
    def part_bytes(self) -> int:
        return sum(part.reference.bytes for part in self.parts)

    def to_bytes(self) -> bytes:
        return canonical_bytes(
            {
                "version": VERSION,
                "format": FORMAT,
                "arrow_schema": self.arrow_schema,
                "schema_digest": self.schema_digest,
                "row_count": self.row_count,
                "partition_by": list(self.partition_by),
                "parts": [part.to_json() for part in self.parts],
            }
        )


def is_tabular(media_type: object) -> bool:
    """Whether a payload is rows in columns: a table, or a dataset, which is read as one."""
    return media_type in (MEDIA_ARROW, MEDIA_DATASET)


def manifest_from(content: bytes) -> Manifest:
    """Raises EnvelopeInvalid."""
    try:
        document: Any = parse_json(content)
    except (ValueError, RecursionError) as error:
        raise EnvelopeInvalid("not a dataset manifest: it is no JSON") from error
    if not is_manifest(document):
        raise EnvelopeInvalid(f"not a dataset manifest of version {VERSION} over {FORMAT}")
    try:
        found = Manifest(
            arrow_schema=document["arrow_schema"],
            schema_digest=document["schema_digest"],
            row_count=document["row_count"],
            partition_by=tuple(document["partition_by"]),
            parts=_parts(document["parts"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise EnvelopeInvalid(f"not a dataset manifest: {error!r}") from error
    _check(found)
    return found


def is_manifest(document: object) -> bool:
    """Whether parsed JSON looks like a manifest that this code can read."""
    return isinstance(document, dict) and document.get("version") == VERSION and document.get("format") == FORMAT


def _check(manifest: Manifest) -> None:
    """What readers rely on."""
    texts = (manifest.arrow_schema, manifest.schema_digest, *manifest.partition_by)
    if not all(isinstance(text, str) for text in texts):
        raise EnvelopeInvalid("not a dataset manifest: its schema and the columns it is partitioned by are texts")
    counts = [part.row_count for part in manifest.parts]
    if not all(type(count) is int and count >= 0 for count in (manifest.row_count, *counts)):
        raise EnvelopeInvalid("not a dataset manifest: a number of rows is none")
    if sum(counts) != manifest.row_count:
        raise EnvelopeInvalid(f"a dataset manifest says {manifest.row_count} rows, and its parts have {sum(counts)}")
    for part in manifest.parts:
        if set(part.partition) != set(manifest.partition_by):
            raise EnvelopeInvalid("not a dataset manifest: a part does not say where in the partitioning it stands")
        if not all(value is None or isinstance(value, str) for value in part.partition.values()):
            raise EnvelopeInvalid("not a dataset manifest: the values of a partitioning are texts or null")


def _parts(documents: Sequence[Mapping[str, Any]]) -> tuple[DatasetPart, ...]:
    return tuple(
        DatasetPart(
            reference=reference_from_json(one["reference"]),
            row_count=one["row_count"],
            partition=dict(one.get("partition", {})),
        )
        for one in documents
    )
