"""Digests that a text names.

Found conservatively: every standing run of 64 hexadecimal digits counts, wherever it stands, so that no kind of
reference can be forgotten here.  A digest that was meant otherwise keeps at most a payload too many."""

from __future__ import annotations

import re

DIGEST_CHARS = 64
ARROW_START = b"\xff\xff\xff\xff"
PARQUET_START = b"PAR1\x15"
"""The mark and the first byte of the header behind it, which no text has."""
_STRIDE = 16
_SAMPLED = re.compile(rb"[0-9a-f]{4,}")
_RUN = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64,}")
_DIGITS = b"0123456789abcdef"


# As events have it: canonical, with members in the order of the alphabet.
_REFERENCE = re.compile(rb'"sha256":"([0-9a-f]{64})","store":"([a-z0-9_-]{1,30})"')


def references_in(text: bytes) -> dict[str, str]:
    """Payloads that a canonical text refers to, with the stores that it says they are in."""
    return {sha256.decode("ascii"): store.decode("ascii") for sha256, store in _REFERENCE.findall(text)}


def names_in(text: bytes) -> set[str]:
    """The digests in a text.

    Of a longer run the first and the last: an escape in front of a digest (`%2f`, `\\f`) may end with digits too."""
    found: set[str] = set()
    # A run that is long enough shows in every sixteenth byte, at least four times in a row: an expression that looks at
    # those and then at the bytes around them is ten times as fast as one that looks at all.
    for seen in _SAMPLED.finditer(text[::_STRIDE]):
        around = text[max(0, _STRIDE * (seen.start() - 1)) : _STRIDE * seen.end()]
        for run in _RUN.findall(around):
            found.add(run[:DIGEST_CHARS].decode("ascii"))
            found.add(run[-DIGEST_CHARS:].decode("ascii"))
    return found


class NameScanner:
    """The digests in bytes that come piece by piece, of which only an unfinished run is held."""

    def __init__(self) -> None:
        self._open = b""
        self._has_begun = False
        self.is_silent = False
        """Rows in columns name no payload: whoever sees this need not read on."""

    def feed(self, chunk: bytes) -> set[str]:
        """What is certain after another piece."""
        if not self._has_begun and chunk:
            self._has_begun = True
            self.is_silent = chunk.startswith((ARROW_START, PARQUET_START))
        if self.is_silent:
            return set()
        text = self._open + chunk
        start = len(text.rstrip(_DIGITS))
        self._open = _shortened(text[start:])
        return names_in(text[:start])

    def end(self) -> set[str]:
        """What the unfinished run was."""
        return names_in(self._open)


def _shortened(run: bytes) -> bytes:
    """Only its first and its last digest are ever asked for."""
    return run if len(run) <= 2 * DIGEST_CHARS else run[:DIGEST_CHARS] + run[-DIGEST_CHARS:]
