"""Lines of logs: made of text in pieces, packed into chunks, shown to people."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core import limits
from noetl.core.codec import canonical_bytes
from noetl.core.errors import PayloadCorrupt
from noetl.core.logs.assembling import Assembler
from noetl.core.logs.lines import STREAMS, LogLine, cut, decoded, encoded, left_out
from noetl.core.logs.shown import safe, shown

# Text as it comes from a tool: without lone surrogates.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
LINES = st.lists(
    st.builds(
        LogLine,
        st.integers(0, 2**43),
        st.sampled_from(STREAMS),
        st.sampled_from(["a", "b", "ü"]),
        st.none() | st.integers(0, 10**7),
        st.integers(1, 5),
        TEXTS,
    ),
    max_size=50,
)


def line(text: str) -> LogLine:
    return LogLine(1_700_000_000_000, "stdout", "t", None, 1, text)


# --- chunks ----------------------------------------------------------------------------------------------------


@given(LINES)
def test_a_chunk_gives_back_its_lines(lines: list[LogLine]) -> None:
    assert decoded(encoded(lines)) == lines


def test_a_large_chunk_is_packed_and_a_small_one_can_be_read_with_the_eye() -> None:
    assert b'"hello"' in encoded([line("hello")])
    assert len(encoded([line("hello world")] * 1_000)) < 2_000


@given(LINES, st.integers(1, 200))
def test_chunks_are_bounded_and_lose_no_line(lines: list[LogLine], bytes_max: int) -> None:
    runs = list(cut(lines, bytes_max))
    assert [one for run in runs for one in run] == lines
    assert all(run and (len(run) == 1 or sum(one.size for one in run) <= bytes_max) for run in runs)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff" * 100,
        zlib.compress(b"{}"),
        zlib.compress(b'{"tasks":[],"lines":[]}')[:-3],
        zlib.compress(bytes(100 * 1024 * 1024)),
        canonical_bytes({"tasks": [], "lines": [[1, 0, 0, None, 1, "t"]]}),
        canonical_bytes({"tasks": ["t"], "lines": [[1, 9, 0, None, 1, "t"]]}),
        canonical_bytes({"tasks": ["t"], "lines": [[1, 0, 0, "x", 1, "t"]]}),
        canonical_bytes({"tasks": ["t"], "lines": [[10**18, 0, 0, None, 1, "t"]]}),
        b'{"tasks":["t"],"lines":[[1e999,0,0,null,1,"t"]]}',
        b'{"tasks":["t"],"lines":[[NaN,0,0,null,1,"t"]]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_chunk_is_refused(content: bytes) -> None:
    with pytest.raises(PayloadCorrupt):
        decoded(content)


# --- lines -----------------------------------------------------------------------------------------------------


@given(st.lists(st.text("ab\n\r", max_size=8), max_size=12))
def test_lines_do_not_depend_on_the_pieces_in_which_they_came(pieces: list[str]) -> None:
    assembler = Assembler()
    lines = [one for piece in pieces for one in assembler.feed(piece)] + assembler.end()
    whole = Assembler()
    assert lines == [*whole.feed("".join(pieces)), *whole.end()]
    assert [one for one in lines if "\n" in one] == []


def test_an_endless_line_is_cut_and_says_so() -> None:
    assembler = Assembler()
    for _ in range(1_000):
        assert assembler.feed("x" * 1_000) == []
    (only,) = assembler.feed("\n")
    assert only == "x" * limits.LOG_LINE_CHARS_MAX + f" {left_out(1_000_000 - limits.LOG_LINE_CHARS_MAX)}"
    assert assembler.end() == []


def test_what_was_left_out_is_said_in_words() -> None:
    assert left_out(12 * 1024 * 1024) == "… 12 MB left out"
    assert left_out(3 * 1024**3) == "… 3 GB left out"
    assert left_out(1_536) == "… 1.5 KB left out"
    assert left_out(7) == "… 7 bytes left out"


# --- for people ------------------------------------------------------------------------------------------------


def view(**given_: object) -> dict[str, object]:
    usual = {"at": "2026-01-02T03:04:05.678Z", "stream": "stdout", "step": "load", "task": "load_task", "row": None}
    return {**usual, "attempt": 1, "try": 1, "text": "hi", **given_}


def test_a_line_is_shown_with_where_it_comes_from() -> None:
    assert shown(view()) == "03:04:05.678 load | hi"
    assert shown(view(stream="stderr", task="fetch", row=7)) == "03:04:05.678 load/fetch[7] ! hi"
    assert shown(view(stream="log", attempt=2, **{"try": 3})) == "03:04:05.678 load (attempt 2.3) · hi"


def test_a_line_cannot_steer_the_terminal_of_its_reader() -> None:
    assert safe("a\x1b[2Jb\rc\x9bd\u202ee\tf") == "a\\x1b[2Jb\\rc\\x9bd\\u202ee\tf"
    assert "\n" not in shown(view(text="one\ntwo"))
