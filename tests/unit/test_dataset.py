"""Manifests of datasets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.collection.names import NameScanner, names_in
from noetl.core.dataset import MEDIA_DATASET, MEDIA_PARQUET, DatasetPart, Manifest, is_tabular, manifest_from
from noetl.core.errors import EnvelopeInvalid
from noetl.core.reference import MEDIA_ARROW, MEDIA_JSON, Reference

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def reference(number: int) -> Reference:
    digest = f"{number:064x}"
    uri = f"noetl://tenant/acme/organization/sales/payload/{digest}"
    return Reference(
        kind="payload", uri=uri, sha256=digest, media_type=MEDIA_PARQUET, bytes=number % 1000, store="file"
    )


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = draw(st.lists(TEXTS, max_size=3, unique=True))
    values = st.fixed_dictionaries(dict.fromkeys(names, st.none() | TEXTS))
    parts = draw(
        st.lists(
            st.builds(
                lambda number, rows, partition: DatasetPart(
                    reference=reference(number), row_count=rows, partition=partition
                ),
                st.integers(0, 2**60),
                st.integers(0, 10**12),
                values,
            ),
            max_size=5,
        )
    )
    return Manifest(
        arrow_schema=draw(TEXTS),
        schema_digest="d" * 64,
        row_count=sum(part.row_count for part in parts),
        parts=tuple(parts),
        partition_by=tuple(names),
    )


@given(manifests())
def test_a_manifest_comes_back_as_it_was(manifest: Manifest) -> None:
    content = manifest.to_bytes()
    found = manifest_from(content)
    assert found == manifest
    assert found.to_bytes() == content
    assert found.part_bytes == sum(part.reference.bytes for part in manifest.parts)


def document() -> dict[str, Any]:
    part = DatasetPart(reference=reference(7), row_count=3, partition={"day": "1"})
    manifest = Manifest(arrow_schema="AAAA", schema_digest="d" * 64, row_count=3, parts=(part,), partition_by=("day",))
    found: dict[str, Any] = json.loads(manifest.to_bytes())
    return found


def test_the_document_of_the_cases_below_is_a_manifest() -> None:
    assert manifest_from(json.dumps(document()).encode()).row_count == 3


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"format": "orc"},
        {"row_count": 4},
        {"row_count": "3"},
        {"row_count": True},
        {"row_count": -1},
        {"partition_by": []},
        {"partition_by": ["day", "hour"]},
        {"partition_by": [1]},
        {"parts": None},
        {"parts": [{}]},
        {"parts": ["x"]},
        {"arrow_schema": 5},
        {"schema_digest": None},
    ],
    ids=str,
)
def test_what_is_no_manifest_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(EnvelopeInvalid, match="manifest"):
        manifest_from(json.dumps(document() | change).encode())


@pytest.mark.parametrize("name", ["version", "format", "arrow_schema", "row_count", "partition_by", "parts"])
def test_a_manifest_lacks_nothing(name: str) -> None:
    broken = document()
    del broken[name]
    with pytest.raises(EnvelopeInvalid):
        manifest_from(json.dumps(broken).encode())


@pytest.mark.parametrize("partition", [{"day": 1}, {}, {"hour": "1"}, None], ids=str)
def test_a_part_says_where_it_stands(partition: Any) -> None:
    broken = document()
    broken["parts"][0]["partition"] = partition
    with pytest.raises(EnvelopeInvalid):
        manifest_from(json.dumps(broken).encode())


@given(st.binary(max_size=40) | TEXTS.map(str.encode))
def test_any_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(EnvelopeInvalid):
        manifest_from(content)


def test_datasets_and_tables_are_rows() -> None:
    assert is_tabular(MEDIA_DATASET)
    assert is_tabular(MEDIA_ARROW)
    assert not is_tabular(MEDIA_PARQUET)
    assert not is_tabular(MEDIA_JSON)


# --- what the collector sees of it -----------------------------------------------------------------------


def test_a_manifest_names_its_parts() -> None:
    part = DatasetPart(reference=reference(99), row_count=1)
    manifest = Manifest(arrow_schema="x", schema_digest="d" * 64, row_count=1, parts=(part,))
    assert part.reference.sha256 in names_in(manifest.to_bytes())


def test_parts_are_not_searched_for_names() -> None:
    scanner = NameScanner()
    assert scanner.feed(b"PAR1\x15\x04" + b"a" * 64) == set()
    assert scanner.is_silent
    # A text that begins like this is a text.
    scanner = NameScanner()
    found = scanner.feed(b"PAR1 of 2: " + b"a" * 64 + b" ") | scanner.end()
    assert found == {"a" * 64}
    assert not scanner.is_silent
