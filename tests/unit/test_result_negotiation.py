"""Which format, and which bytes of it, a reader asks for."""

from __future__ import annotations

import pytest

from noetl.processes.server.problems import Refusal
from noetl.processes.server.reading.negotiation import Format, chosen
from noetl.processes.server.reading.ranges import Part, is_known, wanted_part

OWN = "application/vnd.noetl.pipeline+json"


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, Format.JSON),
        ("", None),
        ("*/*", Format.JSON),
        ("application/*", Format.JSON),
        ("text/*", Format.CSV),
        ("text/csv", Format.CSV),
        ("TEXT/CSV; header=present", Format.CSV),
        ("text/plain", Format.TABLE),
        ("application/x-ndjson", Format.NDJSON),
        ("application/ndjson", Format.NDJSON),
        ("application/vnd.apache.arrow.stream", Format.ARROW),
        ("application/vnd.apache.parquet", Format.PARQUET),
        (OWN, Format.RAW),
        ("text/html, application/json;q=0.5, text/csv;q=0.8", Format.CSV),
        ("text/csv;q=0, application/json;q=0.1", Format.JSON),
        ("image/png", None),
        ("text/csv;q=0", None),
        ("text/csv;q=x", None),
        (",,;;", None),
    ],
)
def test_the_best_liked_format_is_chosen(accept: str | None, wanted: Format | None) -> None:
    if wanted is None and accept:
        with pytest.raises(Refusal) as refused:
            chosen(accept, OWN)
        assert refused.value.status_code == 406
        assert "application/vnd.apache.parquet" in str(refused.value.detail)
    else:
        assert chosen(accept, OWN) is (wanted or Format.JSON)


TAG = '"abc"'


@pytest.mark.parametrize(
    ("header", "if_range", "part"),
    [
        (None, None, None),
        ("bytes=0-9", None, Part(0, 10)),
        ("bytes=5-5", None, Part(5, 1)),
        ("bytes=90-", None, Part(90, 10)),
        ("bytes=90-1000000", None, Part(90, 10)),
        ("bytes=-10", None, Part(90, 10)),
        ("bytes=-1000", None, Part(0, 100)),
        ("bytes=0-9", TAG, Part(0, 10)),
        ("bytes=0-9", '"other"', None),
        ("bytes=0-9", f"W/{TAG}", None),
        # What is not one range of bytes is no reason to refuse: all of it is sent.
        ("bytes=0-1,5-6", None, None),
        ("rows=0-9", None, None),
        ("bytes=9-5", None, None),
        ("bytes=-", None, None),
        ("bytes=a-b", None, None),
    ],
)
def test_one_range_of_bytes_is_given(header: str | None, if_range: str | None, part: Part | None) -> None:
    assert wanted_part(header, if_range, size=100, etag=TAG) == part


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=100-", 100), ("bytes=200-300", 100), ("bytes=0-", 0), ("bytes=-0", 9)]
)
def test_bytes_that_there_are_not_are_refused(header: str, size: int) -> None:
    with pytest.raises(Refusal) as refused:
        wanted_part(header, None, size=size, etag=TAG)
    assert (refused.value.status_code, refused.value.headers) == (416, {"Content-Range": f"bytes */{size}"})


@pytest.mark.parametrize(
    ("header", "known"),
    [(None, False), (TAG, True), (f"W/{TAG}", True), ('"x", "abc"', True), ("*", True), ('"x"', False)],
)
def test_a_reader_says_what_it_has(header: str | None, known: bool) -> None:
    assert is_known(header, TAG) is known
    assert is_known(header, f"W/{TAG}") is known
