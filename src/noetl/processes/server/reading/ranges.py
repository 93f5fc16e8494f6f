"""Byte ranges and validators of stored bytes (RFC 9110)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from noetl.processes.server.problems import Refusal

_RANGE = re.compile(r"bytes=\s*([0-9]{0,18})-([0-9]{0,18})\s*")


@dataclass(frozen=True, slots=True)
class Part:
    """So many bytes from one on."""

    first: int
    length: int


def wanted_part(header: str | None, if_range: str | None, *, size: int, etag: str) -> Part | None:
    """The one range that is asked for; None for all bytes.  What is not one range of bytes, or of another version, is
    ignored, as the protocol says.  Raises Refusal when there are no such bytes."""
    match = _RANGE.fullmatch(header or "")
    if match is None or (if_range is not None and if_range.strip() != etag):
        return None
    first, last = match.groups()
    if not first and not last:
        return None
    if not first:
        length = min(int(last), size)
        start = size - length
    else:
        start = int(first)
        end = min(int(last), size - 1) if last else size - 1
        if last and int(last) < start:
            return None
        length = end - start + 1
    if length <= 0:
        headers = {"Content-Range": f"bytes */{size}"}
        raise Refusal(416, "range_not_satisfiable", f"the payload has {size:,} bytes", headers=headers)
    return Part(start, length)


def is_known(if_none_match: str | None, etag: str) -> bool:
    """Whether the reader has this already."""
    if if_none_match is None:
        return False
    strong = etag.removeprefix("W/")
    tags = (one.strip() for one in if_none_match.split(","))
    return any(one == "*" or one.removeprefix("W/") == strong for one in tags)
