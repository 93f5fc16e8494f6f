"""A JSON text that comes in chunks, written again as `IndexedJson` would write its value, which is never held.

Small members are read by the decoder of the standard library, many at a time; a list or mapping that does not fit into
the window is entered.  What is odd (a mapping with very many keys, or one key twice) is refused: whoever asks reads
such a text as a whole."""

from __future__ import annotations

import codecs
import contextlib
import json
import math
import re
from collections.abc import Callable, Generator, Iterator
from typing import Any

from noetl.core import limits
from noetl.core.codec import ordered_bytes
from noetl.core.results.index import KEYS_MAX, Collected, Node

_SPACE = re.compile(r"[ \t\n\r]*").match
_BATCH_CHARS = 65_536
_NUMBER_CHARS_MAX = 8_192
_SINGLES_MAX = 4_096
_HEAVY = object()


class NotScanned(ValueError):
    """The text is no JSON, or of a kind that must be read as a whole."""


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


_DECODER: Any = json.JSONDecoder(parse_float=_finite, parse_constant=lambda _name: None)
# Behind the digits may come `.5` or `e+5`, of which the end of the window may have only the beginning.
_TAIL_CHARS = 3


class ScannedJson:
    """`pieces` gives the bytes in order, and raises NotScanned; afterwards there is a root.

    Numbers that JSON has not are null.  `repaired` is asked for values of texts with escaped characters."""

    def __init__(
        self, chunks: Iterator[bytes], *, repaired: Callable[[object], object], part_bytes: int | None = None
    ) -> None:
        self._window = _Window(chunks)
        self._repaired = repaired
        self._part_bytes = limits.INDEX_PART_BYTES if part_bytes is None else part_bytes
        self._offset = 0
        self._singles, self._after_failure = 0, 1
        self._root: Node | None = None

    def pieces(self) -> Iterator[bytes]:
        window = self._window
        try:
            if window.peek() not in ("[", "{"):
                raise NotScanned("it has no parts")
            self._root = yield from self._container()
            if window.peek():
                raise NotScanned("there is more behind its end")
        except RecursionError as error:
            raise NotScanned("it is nested too deeply") from error

    def made(self) -> Node:
        """The root, behind the last piece."""
        assert self._root is not None
        return self._root

    def _container(self) -> Generator[bytes, None, Node]:
        window, start = self._window, self._offset
        is_list = window.take() == "["
        closing = "]" if is_list else "}"
        yield self._written(b"[" if is_list else b"{")
        collected, batch = Collected(self._part_bytes), _Batch(is_list)
        count = 0
        is_open = window.peek() != closing
        while is_open:
            run = self._run() if is_list else None
            if run:
                batch.extend(count, run, window.taken)
                count += len(run)
                is_open = self._goes_on(closing)
                yield self._flushed(batch, collected)
                continue
            key = None if is_list else self._key(batch)
            member = self._member()
            if member is _HEAVY:
                if batch.count:
                    yield self._flushed(batch, collected)
                keys = () if key is None else (key,)
                yield self._written((b"," if count else b"") + _prefix(key))
                collected.stand_alone(count, keys, (yield from self._container()))
            else:
                batch.add(count, key, member, window.taken)
            count += 1
            is_open = self._goes_on(closing)
            if batch.chars >= _BATCH_CHARS or (batch.count and not is_open):
                yield self._flushed(batch, collected)
        window.take()
        yield self._written(closing.encode())
        return Node(is_list, count, start, self._offset - start, tuple(collected.all()))

    def _flushed(self, batch: _Batch, collected: Collected) -> bytes:
        first, keys, content = batch.flush()
        content = (b"," if first else b"") + content
        collected.add(first, keys, self._offset, content)
        return self._written(content)

    def _written(self, content: bytes) -> bytes:
        self._offset += len(content)
        return content

    def _goes_on(self, closing: str) -> bool:
        following = self._window.peek()
        if following == ",":
            self._window.take()
            return True
        if following != closing:
            raise NotScanned("a comma or an end is missing")
        return False

    def _key(self, batch: _Batch) -> str:
        if self._window.peek() != '"':
            raise NotScanned("a key is missing")
        key = self._member()
        assert isinstance(key, str)
        if self._window.peek() != ":":
            raise NotScanned("a colon is missing")
        self._window.take()
        batch.see(key)
        return key

    def _run(self) -> list[object] | None:
        """Many members of a list at once, if it can be seen where one of them ends.  What lies before a comma and can
        be read as members of a list is nothing else, because brackets and quotes in it are closed."""
        if self._singles:
            self._singles -= 1
            return None
        window = self._window
        first = window.peek()
        mark = {"{": "},", "[": "],"}.get(first, ",")
        end = window.text.rfind(mark, window.at, window.at + _BATCH_CHARS) + len(mark) - 1
        if end > window.at:
            text = f"[{window.text[window.at : end]}]"
            with contextlib.suppress(StopIteration, ValueError):
                values, stop = _DECODER.scan_once(text, 0)
                if stop == len(text):
                    self._after_failure = 1
                    window.go_to(end)
                    return self._repaired(values) if window.has_escapes else values  # type: ignore[return-value]
            # A comma in a text, perhaps: the more often, the less often this is tried.
            self._after_failure = min(2 * self._after_failure, _SINGLES_MAX)
        self._singles = self._after_failure
        return None

    def _member(self) -> object:
        """The next value; one that is too large to be held is left where it is."""
        window = self._window
        while True:
            first = window.peek()
            try:
                value, end = _DECODER.scan_once(window.text, window.at)
            except (StopIteration, json.JSONDecodeError):
                self._check_incomplete(first)
            except ValueError as error:
                raise NotScanned("a number is too long") from error
            else:
                # A number may go on behind the window.
                if first in '"[{' or window.is_end or len(window.text) - end >= _TAIL_CHARS:
                    if first in "[{" and end - window.at > 2 * self._part_bytes:
                        return _HEAVY
                    window.go_to(end)
                    return self._repaired(value) if window.has_escapes else value
            if first in "[{" and window.left >= self._part_bytes:
                return _HEAVY
            window.more()

    def _check_incomplete(self, first: str) -> None:
        """What cannot be read may only be cut off by the end of the window."""
        is_short = first in '"[{' or self._window.left <= _NUMBER_CHARS_MAX
        if not first or self._window.is_end or not is_short:
            raise NotScanned("a value is missing or cannot be read")


def _prefix(key: str | None) -> bytes:
    return b"" if key is None else ordered_bytes(key) + b":"


class _Batch:
    """Members that will be written together."""

    def __init__(self, is_list: bool) -> None:
        self._is_list = is_list
        self._first = 0
        self._seen: set[str] = set()
        self._keys: list[str] = []
        self._values: list[object] = []
        self.chars = 0

    @property
    def count(self) -> int:
        return len(self._values)

    def see(self, key: str) -> None:
        """A key of the container, in this batch or not."""
        if key in self._seen or len(self._seen) == KEYS_MAX:
            raise NotScanned("a mapping has one key twice, or too many keys")
        self._seen.add(key)

    def add(self, number: int, key: str | None, value: object, chars: int) -> None:
        if not self._values:
            self._first = number
        if key is not None:
            self._keys.append(key)
        self._values.append(value)
        self.chars += chars

    def extend(self, number: int, values: list[object], chars: int) -> None:
        if not self._values:
            self._first = number
        self._values += values
        self.chars += chars

    def flush(self) -> tuple[int, list[str], bytes]:
        value: Any = self._values if self._is_list else dict(zip(self._keys, self._values, strict=True))
        found = self._first, self._keys, ordered_bytes(value)[1:-1]
        self._keys, self._values, self.chars = [], [], 0
        return found


class _Window:
    """The part of the text that is looked at."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self.text = ""
        self.at = 0
        self.taken = 0
        self.is_end = False
        self.has_escapes = False
        self.more()
        self.at = 1 if self.text.startswith("\ufeff") else 0

    @property
    def left(self) -> int:
        return len(self.text) - self.at

    def peek(self) -> str:
        """The next character that is no space; nothing at the end."""
        while True:
            found = _SPACE(self.text, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self.text):
                return self.text[self.at]
            if self.is_end:
                return ""
            self.more()

    def take(self) -> str:
        """The character that `peek` told."""
        self.at += 1
        return self.text[self.at - 1]

    def go_to(self, end: int) -> None:
        self.taken, self.at = end - self.at, end

    def more(self) -> None:
        """At least as much again: a long text must not be looked at a hundred times."""
        pieces, wanted = [self.text[self.at :]], self.left
        size = 0
        while not self.is_end and size <= wanted:
            chunk = next(self._chunks, None)
            self.is_end = chunk is None
            try:
                pieces.append(self._decode(chunk or b"", chunk is None))
            except UnicodeDecodeError as error:
                raise NotScanned("it is not UTF-8") from error
            size += len(pieces[-1])
        self.text, self.at = "".join(pieces), 0
        self.has_escapes = "\\u" in self.text
