"""Which digests a text names, whole or piece by piece."""

from __future__ import annotations

import dataclasses
import json
import re

from hypothesis import given
from hypothesis import strategies as st

from noetl.core.collection.names import NameScanner, names_in, references_in
from noetl.core.event import Event, seal
from noetl.core.reference import Reference, Result

ONE, TWO, THREE = "0123456789abcdef" * 4, "fedcba9876543210" * 4, "a" * 64


def plainly(text: bytes) -> set[str]:
    """The rule, looked at byte by byte."""
    runs = [run.decode() for run in re.split(rb"[^0-9a-f]", text) if len(run) >= 64]
    return {run[:64] for run in runs} | {run[-64:] for run in runs}


def in_pieces(text: bytes, size: int) -> set[str]:
    scanner = NameScanner()
    found: set[str] = set()
    for start in range(0, len(text), size):
        found |= scanner.feed(text[start : start + size])
    return found | scanner.end()


PARTS = st.one_of(
    st.sampled_from([ONE.encode(), TWO.encode(), THREE.encode(), ONE[:63].encode(), (TWO + THREE).encode()]),
    st.sampled_from([b'{"sha256":"', b'"}', b"%2f", b"\\f", b"/", b" ", b"ABCDEF", "é".encode(), b"\x00", b"cafe"]),
    st.binary(max_size=40),
)


@given(st.lists(PARTS, max_size=30).map(b"".join))
def test_every_standing_run_is_found_and_nothing_else(text: bytes) -> None:
    assert names_in(text) == plainly(text)


@given(st.lists(PARTS, max_size=30).map(lambda parts: b"[" + b"".join(parts)), st.integers(1, 200))
def test_pieces_name_what_the_whole_names(text: bytes, size: int) -> None:
    assert in_pieces(text, size) == plainly(text)


def test_references_locators_and_escapes_are_names() -> None:
    document = {
        "reference": {"sha256": ONE, "uri": f"noetl://tenant/default/org/default/payloads/sha256/{TWO}"},
        "ipc": {THREE: {"node": "n"}},
    }
    assert names_in(json.dumps(document).encode()) == {ONE, TWO, THREE}
    assert ONE in names_in(f"noetl%3a%2f%2fpayloads%2fsha256%2f{ONE}".encode())
    assert ONE in names_in(json.dumps("\b" + ONE).encode())
    assert ONE in names_in(json.dumps("é" + ONE).encode())
    assert names_in(ONE.upper().encode()) == set()


def test_a_long_run_is_held_only_by_its_ends() -> None:
    scanner = NameScanner()
    for _ in range(1_000):
        assert scanner.feed(b"0" * 10_000) == set()
    assert len(scanner._open) <= 128
    assert scanner.feed(ONE.encode()) | scanner.end() == {"0" * 64, ONE}


def test_rows_in_columns_name_nothing_and_need_not_be_read() -> None:
    scanner = NameScanner()
    assert scanner.feed(b"\xff\xff\xff\xff\x10\x00\x00\x00" + ONE.encode() + b" ") == set()
    assert scanner.is_silent
    assert scanner.feed(ONE.encode()) | scanner.end() == set()


def test_every_reference_of_an_event_is_seen_with_its_store() -> None:
    """Whatever members a reference gets: the collector must not lose sight of where the payload is."""
    full = Reference(
        kind="payload",
        uri=f"noetl://tenant/default/org/default/payloads/sha256/{ONE}",
        sha256=ONE,
        media_type="application/json",
        bytes=1,
        store="s3",
    )
    given = {field.name for field in dataclasses.fields(Reference)} - set(full.to_json())
    full = dataclasses.replace(full, **{name: {"sha256": TWO} for name in given})  # type: ignore[arg-type]
    assert set(full.to_json()) == {field.name for field in dataclasses.fields(Reference)}
    event = Event(
        execution_id=1,
        event_id=2,
        tenant_id="default",
        organization_id="default",
        event_type="command.completed",
        event_time="",
        producer="p",
        transition_key="t",
        correlation_id="1",
        command_id="a#1",
        result=Result(status="ok", reference=full).to_json(),
        meta={"stdout": {**full.to_json(), "sha256": THREE, "store": "file"}},
    )
    assert references_in(seal(event).text.encode()) == {ONE: "s3", THREE: "file"}
