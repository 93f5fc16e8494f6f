"""JSON texts that are written again with an index while they come in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from noetl.clients.http.body import parsed, storable
from noetl.core.codec import ordered_bytes, sha256_hex
from noetl.core.results.index import IndexedJson, Node, index_document, index_from_document, parsed_part
from noetl.core.results.scanned import NotScanned, ScannedJson

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=8),
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=8), st.dictionaries(st.text(max_size=4), inner, max_size=8)),
    max_leaves=40,
).filter(lambda value: isinstance(value, list | dict))


def chunks(content: bytes, size: int) -> Iterator[bytes]:
    return (content[start : start + size] for start in range(0, len(content), size))


def scanned(content: bytes, *, size: int = 7, part_bytes: int = 20) -> tuple[bytes, Node]:
    writer = ScannedJson(chunks(content, size), repaired=storable, part_bytes=part_bytes)
    written = b"".join(writer.pieces())
    return written, writer.made()


def assembled(content: bytes, node: Node) -> Any:
    """The value as a reader of the index has it, every part checked."""
    items: list[Any] = []
    pairs: dict[str, Any] = {}
    for part in node.parts:
        if part.inner is not None:
            found: Any = [assembled(content, part.inner)]
            found = found if node.is_list else {part.keys[0]: found[0]}
        else:
            piece = content[part.offset : part.offset + part.length]
            assert sha256_hex(piece) == part.sha256
            found = parsed_part(node.is_list, piece)
        if node.is_list:
            assert part.first == len(items)
            items += found
        else:
            assert tuple(found) == part.keys
            pairs |= found
    value: Any = items if node.is_list else pairs
    assert len(value) == node.count
    return value


@settings(max_examples=300, deadline=None)
@given(DOCUMENTS, st.integers(1, 30), st.sampled_from([1, 10, 100]), st.booleans(), st.booleans())
@example(["\ud83d"], 1, 1, True, True)
@example([1.5, -1e300, 1e-7], 2, 10, False, False)
def test_what_is_written_is_what_the_text_says(
    value: object, size: int, part_bytes: int, is_ascii: bool, is_spaced: bool
) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=1 if is_spaced else None)
    content = text.encode("utf-8", "replace")
    expected = parsed(content)
    if not value:
        return
    written, root = scanned(content, size=size, part_bytes=part_bytes)
    assert written == ordered_bytes(expected)
    assert assembled(written, root) == expected
    restored = index_from_document(json.loads(json.dumps(index_document(root))))
    assert restored == root


def test_a_large_document_is_written_and_divided_as_its_value_would_be() -> None:
    rows = [{"id": number, "name": f"item {number}", "tags": ["a", "é"]} for number in range(30_000)]
    value = {"meta": {"page": 1}, "rows": rows, "more": [rows[:9000], "x" * 700_000, {}], "end": None}
    content = json.dumps(value, indent=2).encode()
    written, root = scanned(content, size=65_536, part_bytes=262_144)
    direct = IndexedJson(value)
    assert written == b"".join(direct.pieces())
    assert assembled(written, root) == value
    lengths = [part.length for part in root.leaves()]
    assert max(length for length in lengths if length < 700_000) <= 2 * 262_144
    assert len(lengths) < 30
    assert [part.inner is not None for part in root.parts] == [False, True, True, False]


def test_numbers_and_half_characters_are_read_leniently() -> None:
    content = b'\xef\xbb\xbf {"a": NaN, "b": [-Infinity, 1e999, 12345678901234567890], '
    content += b'"c": "x \\ud800 y", "d": "\\ud83d\\ude00"}'
    written, _ = scanned(content, size=1)
    assert json.loads(written) == parsed(content)
    assert json.loads(written)["a"] is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "3",
        '"text"',
        "[1,",
        "[1, 2",
        "[1 2]",
        "[1,]",
        "[,1]",
        "[1]]",
        "[1] x",
        '{"a": 1',
        '{"a" 1}',
        '{"a": 1,}',
        "{a: 1}",
        '{"a": 1, "b"}',
        '["open',
        '["\\x"]',
        "[tru]",
        "[+1]",
        "[" * 100_000,
        '{"a": 1, "b": 2, "a": 3}',
        "[" + "1" * 5_000 + "]",
        '["\x01"]',
    ],
)
def test_what_cannot_be_scanned_is_refused(text: str) -> None:
    for size in (1, 5, 100_000):
        with pytest.raises(NotScanned):
            scanned(text.encode(), size=size, part_bytes=4)


def test_bytes_that_are_no_utf8_are_refused() -> None:
    with pytest.raises(NotScanned):
        scanned(b'["\xff"]')
    with pytest.raises(NotScanned):
        scanned('["é'.encode()[:-1])


def test_a_mapping_with_too_many_keys_is_refused() -> None:
    with pytest.raises(NotScanned):
        scanned(json.dumps({str(number): 1 for number in range(70_000)}).encode(), size=65_536, part_bytes=1_000)


def test_the_window_stays_small() -> None:
    """What is held at a time does not depend on how long the text is."""
    row = b'{"id": 12345, "text": "' + b"x" * 200 + b'"}'
    held = []

    def source() -> Iterator[bytes]:
        yield b"["
        for number in range(20_000):
            if held:
                held.append(len(writer._window.text))
            yield (b", " if number else b"") + row
        yield b"]"

    writer = ScannedJson(source(), repaired=storable, part_bytes=10_000)
    held.append(0)
    assert sum(len(piece) for piece in writer.pieces()) > 4_000_000
    assert max(held) < 100_000
