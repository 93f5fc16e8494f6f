"""Text that comes in pieces, made into lines that are not too long.  Pure."""

from __future__ import annotations

from noetl.core.limits import LOG_LINE_CHARS_MAX
from noetl.core.logs.lines import left_out


class Assembler:
    """The open line of one stream."""

    __slots__ = ("_chars", "_cut", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._chars = 0
        self._cut = 0

    def feed(self, text: str) -> list[str]:
        """The lines that are complete now."""
        *whole, rest = text.split("\n")
        lines = []
        for piece in whole:
            self._add(piece)
            lines.append(self._line())
        self._add(rest)
        return lines

    def end(self) -> list[str]:
        """The line without an end, if there is one."""
        return [self._line()] if self._chars or self._cut else []

    def _add(self, piece: str) -> None:
        room = LOG_LINE_CHARS_MAX - self._chars
        if len(piece) > room:
            self._cut += len(piece) - room
            piece = piece[:room]
        if piece:
            self._pieces.append(piece)
            self._chars += len(piece)

    def _line(self) -> str:
        text = "".join(self._pieces).removesuffix("\r")
        if self._cut:
            text = f"{text} {left_out(self._cut)}"
        self._pieces.clear()
        self._chars = self._cut = 0
        return text
