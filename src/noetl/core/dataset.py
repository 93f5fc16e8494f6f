"""Datasets: rows in Parquet parts, and the manifest that says which parts they are.

A part is a payload like any other, and so is the manifest: a dataset is published by naming its manifest in an event,
and nothing that a manifest does not list belongs to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from noetl.core.codec import canonical_bytes, parse_json
from noetl.core.errors import EnvelopeInvalid
from noetl.core.reference import Reference, reference_from_json

MEDIA_DATASET = "application/vnd.noetl.dataset+json"
MEDIA_PARQUET = "application/vnd.apache.parquet"
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
                "format": "parquet",
                "arrow_schema": self.arrow_schema,
                "schema_digest": self.schema_digest,
                "row_count": self.row_count,
                "partition_by": list(self.partition_by),
                "parts": [part.to_json() for part in self.parts],
            }
        )


def manifest_from(content: bytes) -> Manifest:
    """Raises EnvelopeInvalid."""
    document: Any = parse_json(content)
    if not isinstance(document, dict) or document.get("version") != VERSION or document.get("format") != "parquet":
        raise EnvelopeInvalid(f"not a dataset manifest of version {VERSION} over parquet")
    try:
        return Manifest(
            arrow_schema=document["arrow_schema"],
            schema_digest=document["schema_digest"],
            row_count=document["row_count"],
            partition_by=tuple(document["partition_by"]),
            parts=_parts(document["parts"]),
        )
    except (KeyError, TypeError) as error:
        raise EnvelopeInvalid(f"not a dataset manifest: {error!r}") from error


def _parts(documents: Sequence[Mapping[str, Any]]) -> tuple[DatasetPart, ...]:
    return tuple(
        DatasetPart(
            reference=reference_from_json(one["reference"]),
            row_count=one["row_count"],
            partition=one.get("partition", {}),
        )
        for one in documents
    )
