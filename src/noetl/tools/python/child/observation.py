"""What is observed of a task besides its result: its output and its time."""

from __future__ import annotations

import io
import resource
import time


class Collector(io.TextIOBase):
    """Stands in for `sys.stdout` and `sys.stderr`: keeps the first characters and counts the rest.

    One object serves all tasks of a child: libraries such as `logging` keep the stream they first saw.
    """

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, *, chars_max: int) -> None:
        super().__init__()
        self._bytes_max = chars_max
        self._kept: list[str] = []
        self._room = chars_max
        self._dropped = 0
        self._buffer = _ByteCollector(self)

    @property
    def buffer(self) -> io.RawIOBase:
        return self._buffer

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        size = len(text)
        if size <= self._room:
            # Never an empty string: a loop of empty writes must not make the list grow.
            if size:
                self._kept.append(text)
                self._room -= size
        else:
            self._kept.append(text[: self._room])
            self._dropped += size - self._room
            self._room = 0
            self.write = self._count  # type: ignore[method-assign]  # nothing is kept from now on
        return size

    def _count(self, text: str, /) -> int:
        self._dropped += len(text)
        return len(text)

    def reconfigure(self, **_options: object) -> None:
        """Scripts set an encoding here; text is kept as text."""

    def close(self) -> None:
        """A script that closes its output must not close it for the next task."""

    def take(self) -> tuple[str, int]:
        """What was kept since the last call, and how many characters were not."""
        if not self._kept and not self._dropped:
            return "", 0
        text, dropped = "".join(self._kept), self._dropped
        self._kept.clear()
        self._room, self._dropped = self._bytes_max, 0
        self.__dict__.pop("write", None)
        return text, dropped


class _ByteCollector(io.RawIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, text: Collector) -> None:
        super().__init__()
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        chunk = bytes(memoryview(data))  # type: ignore[arg-type]
        self._text.write(chunk.decode("utf-8", "replace"))
        return len(chunk)

    def close(self) -> None:
        """See Collector.close."""


class Stopwatch:
    """How long a task took, and how long such a task takes on an idle machine once it is warm.

    A task that never waited needs the processor time that it got, even if others had the processor meanwhile.
    The first task of a child also pays for memory and imports that later ones find; only its waiting counts.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.needed_seconds = 0.0
        self._is_first = True
        self._clock, self._usage = time.perf_counter, resource.getrusage
        self._started = 0.0
        self._before = self._usage(resource.RUSAGE_SELF)

    def start(self) -> None:
        self._before = self._usage(resource.RUSAGE_SELF)
        self._started = self._clock()

    def stop(self) -> resource.struct_rusage:
        self.seconds = self._clock() - self._started
        before, after = self._before, self._usage(resource.RUSAGE_SELF)
        computed = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        has_waited = after.ru_nvcsw != before.ru_nvcsw
        if self._is_first:
            self._is_first = False
            self.needed_seconds = max(self.seconds - computed, 0.0) if has_waited else 0.0
        else:  # a coarse kernel clock may not have moved
            self.needed_seconds = self.seconds if has_waited or not computed else computed
        return after
