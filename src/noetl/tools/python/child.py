"""The loop in a child process: one request in, one answer out, until the worker goes away or a task leaves
something behind.

A child belongs to one tenant and organization for its whole life.  It never returns to the zygote's code.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, NoReturn, TextIO, cast

from noetl.core import limits
from noetl.core.errors import Failure, NoetlError, ToolFailed
from noetl.tools.python import kernel, wire
from noetl.tools.python.failures import bounded, describe
from noetl.tools.python.leftovers import Baseline
from noetl.tools.python.namespace import Inputs, Program, compile_program, forget, run_program
from noetl.tools.python.values import json_bytes

SOCKET_FD = 3
OPEN_FILES_MAX = 1_024
FILE_BYTES_MAX = 1024**3
PROCESSES_MAX = 4_096
PROGRAMS_MAX = 256
PROGRAMS_BYTES_MAX = 4_000_000
JOINED_BYTES_MAX = 64 * 1024
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    memory_bytes_max: int
    result_bytes_max: int


def serve(descriptor: int, *, directory: str, parent_pid: int, settings: ChildSettings) -> NoReturn:
    """Life of a child, from right after the fork to its exit."""
    try:
        _settle(descriptor, directory, parent_pid, settings)
        Child(settings).loop()
    except BaseException:  # process entry: there is nobody to tell, the worker sees the end of the connection
        os._exit(70)
    os._exit(0)


def _settle(descriptor: int, directory: str, parent_pid: int, settings: ChildSettings) -> None:
    """Give up everything a child must not have."""
    os.setpgid(0, 0)
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(0)  # the parent died before the line above
    kernel.adopt_orphans()
    kernel.drop_capabilities()
    os.dup2(descriptor, SOCKET_FD, inheritable=False)
    os.closerange(SOCKET_FD + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.makedirs(directory, 0o700)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(
        PATH=f"{os.path.dirname(sys.executable)}:{SEARCH_PATH}",
        HOME=directory,
        TMPDIR=directory,
    )
    kernel.limit(resource.RLIMIT_CORE, 0)
    kernel.limit(resource.RLIMIT_NOFILE, OPEN_FILES_MAX)
    kernel.limit(resource.RLIMIT_FSIZE, FILE_BYTES_MAX)
    if os.getuid() != 0:  # counts all processes of the user; root is exempt anyway
        kernel.limit(resource.RLIMIT_NPROC, PROCESSES_MAX)
    kernel.limit(resource.RLIMIT_AS, settings.memory_bytes_max)


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


class Child:
    """Runs requests one after the other."""

    def __init__(self, settings: ChildSettings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._programs = ProgramCache()
        self._output = Collector(chars_max=limits.PYTHON_OUTPUT_CHARS_MAX)
        sys.stdout = sys.stderr = cast("TextIO", self._output)
        self._baseline = Baseline()
        # User code may replace functions of `os`; these stay ours.
        self._read, self._write, self._getpid, self._exit = os.read, os.write, os.getpid, os._exit

    def loop(self) -> None:
        reader = wire.FrameReader()
        while data := self._read(SOCKET_FD, reader.wants_bytes):
            payload = reader.feed(data)
            if payload is not None and not self._answer(payload):
                return

    def _answer(self, payload: bytes) -> bool:
        """Run one request and answer it.  False when the child must not be used again."""
        ticket, code, fields = wire.split_request(payload)
        request = cast("dict[str, Any]", fields)
        answer = self._run(code, request) if request["kind"] == "run" else self._render(request)
        if self._getpid() != self._pid:
            self._exit(0)  # user code forked and let the copy run out here; only the original answers
        left_behind = self._baseline.left_behind()
        text, dropped = self._output.take()
        if text:
            answer += b',"stdout":', _json(text)
            answer += b',"dropped":', _json(dropped)
        if left_behind is not None:
            answer += b',"left_behind":', _json(left_behind)
        mark = wire.REUSABLE if left_behind is None else wire.SPENT
        self._send((ticket, mark, b"{", *answer, b"}"))
        return left_behind is None

    def _run(self, code: bytes, request: dict[str, Any]) -> tuple[bytes, ...]:
        filename: str = request["filename"]
        environment: dict[str, str] = request.get("env", {})
        try:
            self._enter(environment)
            inputs = Inputs(
                input=request["input"],
                names=request.get("names", {}),
                context=request.get("context"),
                libs=request.get("libs", {}),
            )
            program = self._programs.compiled(code, filename)
            return self._value(run_program(program, inputs))
        except BaseException as error:  # tool boundary: whatever user code raises, `SystemExit` too, is its failure
            return _failure(*describe(error, filename))
        finally:
            forget()
            self._leave(environment)

    def _render(self, request: dict[str, Any]) -> tuple[bytes, ...]:
        try:
            expression = expression_engine()
            template = expression.compile_value(request["source"])
            return self._value(
                expression.render_value(
                    template,
                    expression.unpack(request["names"]),
                    now=request["now"],
                    strict=request["strict"],
                    allow_loops=True,
                )
            )
        except NoetlError as error:
            message = bounded(str(error), limits.ERROR_MESSAGE_CHARS_MAX)
            return _failure(Failure(kind="template", code=error.code, message=message), None)
        except BaseException as error:  # tool boundary: filters run on data of any kind
            return _failure(describe(error, "")[0], None)

    def _value(self, value: object) -> tuple[bytes, ...]:
        try:
            encoded = json_bytes(value)
        except Exception as error:  # tool boundary: the `str()` of a user's object may raise anything
            message = f"the result cannot be written as JSON: {type(error).__name__}: {error}"
            return _failure(_refused_result("RESULT_INVALID", message, type(error).__name__), None)
        if len(encoded) > self._settings.result_bytes_max:
            message = f"the result has {len(encoded)} bytes as JSON, the limit is {self._settings.result_bytes_max}"
            return _failure(_refused_result("RESULT_TOO_LARGE", message, None), None)
        return (b'"value":', encoded)

    def _enter(self, environment: dict[str, str]) -> None:
        try:
            os.environ.update(environment)
        except (ValueError, TypeError) as error:
            raise ToolFailed(Failure(kind="config", code="ENV_INVALID", message=f"env: {error}")) from error

    def _leave(self, environment: dict[str, str]) -> None:
        for name in environment:
            before = self._baseline.environ.get(name)
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before

    def _send(self, parts: tuple[bytes, ...]) -> None:
        """Large parts are written as they are: a copy of a result near the limit may not fit into memory."""
        size = sum(map(len, parts))
        header = wire.header(size)
        chunks = (header + b"".join(parts),) if size <= JOINED_BYTES_MAX else (header, *parts)
        for chunk in chunks:
            sent = self._write(SOCKET_FD, chunk)
            while sent < len(chunk):
                sent += self._write(SOCKET_FD, memoryview(chunk)[sent:])


class ProgramCache:
    """Compiled programs, the least recently used one goes first."""

    def __init__(self) -> None:
        self._programs: dict[tuple[bytes, str], Program] = {}
        self._bytes = 0

    def compiled(self, source: bytes, filename: str) -> Program:
        key = (source, filename)
        program = self._programs.pop(key, None)
        if program is None:
            program = compile_program(source.decode("utf-8", "surrogatepass"), filename)
            self._bytes += len(source)
        self._programs[key] = program
        while len(self._programs) > PROGRAMS_MAX or (self._bytes > PROGRAMS_BYTES_MAX and len(self._programs) > 1):
            oldest = next(iter(self._programs))
            del self._programs[oldest]
            self._bytes -= len(oldest[0])
        return program


def expression_engine() -> Any:
    """The template engine; by name, because a child without it still runs Python."""
    return import_module("noetl.core.expression")


def _json(value: object) -> bytes:
    """Our own part of an answer; text of the user in it may be anything."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _failure(failure: Failure, trace: str | None) -> tuple[bytes, ...]:
    return (b'"failure":', _json(asdict(failure)), b',"traceback":', _json(trace))


def _refused_result(code: str, message: str, exception_type: str | None) -> Failure:
    message = bounded(message, limits.ERROR_MESSAGE_CHARS_MAX)
    return Failure(kind="python", code=code, message=message, exception_type=exception_type)
