"""The loop in a child process: a request in, an answer out per row, until the worker goes away or a task leaves
something behind.

A child belongs to one tenant and organization for its whole life.  It never returns to the zygote's code.
The answer of a row is out before the next row begins, so whatever that one does, nothing done is lost.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, NoReturn, TextIO, cast

from noetl.core import limits
from noetl.core.errors import EnvelopeInvalid, Failure, NoetlError, TemplateFailed, ToolFailed
from noetl.tools.python import wire
from noetl.tools.python.child import kernel
from noetl.tools.python.child.failures import bounded, describe
from noetl.tools.python.child.landing import Landing, Mapped, TooLarge, is_table, put_tables
from noetl.tools.python.child.leftovers import Baseline
from noetl.tools.python.child.namespace import Inputs, Program, compile_program, forget, run_program
from noetl.tools.python.child.observation import Output, Stopwatch

SOCKET_FD = 3
PERMITS_FD = 4
OUTPUT_FD = 5
_ABOVE_OURS = 10
OPEN_FILES_MAX = 1_024
FILE_BYTES_MAX = 64 * 1024**3
PROCESSES_MAX = 4_096
PROGRAMS_MAX = 256
PROGRAMS_BYTES_MAX = 4_000_000
JOINED_BYTES_MAX = 64 * 1024
_NOTHING: dict[str, Any] = {}
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    memory_bytes_max: int
    result_bytes_max: int


class ValueInvalid(ValueError):
    """A value has no JSON form: it contains itself, is too deep, or holds text that is not Unicode."""


def serve(descriptors: list[int], *, directory: str, parent_pid: int, settings: ChildSettings) -> NoReturn:
    """Life of a child, from right after the fork to its exit.  The descriptors: connection, permits, output."""
    try:
        _settle(descriptors, directory, parent_pid, settings)
        Child(settings).loop()
    except BaseException:  # process entry: there is nobody to tell, the worker sees the end of the connection
        os._exit(70)
    os._exit(0)


def _settle(descriptors: list[int], directory: str, parent_pid: int, settings: ChildSettings) -> None:
    """Give up everything a child must not have."""
    os.setpgid(0, 0)
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(0)  # the parent died before the line above
    kernel.adopt_orphans()
    kernel.drop_capabilities()
    # First out of the way: a descriptor may have the number that another one is to get.
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _ABOVE_OURS) for descriptor in descriptors]
    for descriptor, target in zip(moved, (SOCKET_FD, PERMITS_FD, OUTPUT_FD), strict=True):
        os.dup2(descriptor, target, inheritable=False)
    os.closerange(OUTPUT_FD + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
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


class Child:
    """Runs requests one after the other."""

    def __init__(self, settings: ChildSettings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._programs = ProgramCache()
        self._output = Output(OUTPUT_FD)
        sys.stdout, sys.stderr = cast("TextIO", self._output.stdout), cast("TextIO", self._output.stderr)
        self._baseline = Baseline()
        # User code may replace functions of `os`; these stay ours.
        self._read, self._write, self._getpid, self._exit = os.read, os.write, os.getpid, os._exit
        self._take_permit = os.eventfd_read
        self._stopwatch = Stopwatch()

    def loop(self) -> None:
        reader = wire.FrameReader()
        while data := self._read(SOCKET_FD, reader.wants_bytes):
            for payload in reader.feed(data):
                if not self._answer(payload):
                    return

    def _answer(self, payload: bytes) -> bool:
        """Run one request and answer it.  False when the child must not be used again."""
        ticket, code, fields = wire.split_request(payload)
        request = cast("dict[str, Any]", fields)
        rows: list[dict[str, Any]] | None = request.pop("rows", None)
        if rows is None:
            return self._answer_one(ticket, code, request)
        rows.reverse()  # taken from the end, so that what is done is also forgotten
        while rows:
            try:
                self._take_permit(PERMITS_FD)
            except BlockingIOError:
                self._send((wire.answer_prefix(ticket, wire.RETURNED),))
                return True
            if not self._answer_one(ticket, code, request | rows.pop()):
                return False
            ticket += 1
        return True

    def _answer_one(self, ticket: int, code: bytes, request: dict[str, Any]) -> bool:
        self._output.pipe.ticket = ticket
        self._stopwatch.start()
        answer = self._run(code, request) if request["kind"] == "run" else self._render(request)
        if self._getpid() != self._pid:
            self._exit(0)  # user code forked and let the copy run out here; only the original answers
        usage = self._stopwatch.stop()
        left_behind = self._baseline.left_behind(usage)
        has_printed, dropped = self._output.end()
        if dropped:
            answer += b',"dropped":', _json(dropped)
        if left_behind is not None:
            answer += b',"left_behind":', _json(left_behind)
        mark = wire.REUSABLE if left_behind is None else wire.SPENT
        if has_printed:
            mark |= wire.PRINTED
        prefix = wire.answer_prefix(ticket, mark, self._stopwatch.seconds, self._stopwatch.needed_seconds)
        self._send((prefix, b"{", *answer, b"}"))
        return left_behind is None

    def _run(self, code: bytes, request: dict[str, Any]) -> tuple[bytes, ...]:
        filename: str = request["filename"]
        environment: dict[str, str] | None = request.get("env")
        folder: str | None = request.get("landing")
        landing, mapped = (Landing(folder, request.get("shared")) if folder else None), Mapped()
        try:
            if environment:
                self._enter(environment)
            if "tables" in request:
                put_tables(request, mapped)
            inputs = Inputs(
                input=request["input"],
                names=request.get("names", _NOTHING),
                context=request.get("context"),
                libs=request.get("libs", _NOTHING),
            )
            program = self._programs.compiled(code, filename)
            return self._landed(run_program(program, inputs), landing)
        except BaseException as error:  # tool boundary: whatever user code raises, `SystemExit` too, is its failure
            if landing is not None:
                landing.drop()
            return _failure(*describe(error, filename))
        finally:
            forget()
            mapped.close()
            if environment:
                self._leave(environment)

    def _landed(self, value: object, landing: Landing | None) -> tuple[bytes, ...]:
        """The answer with a value, of which tables and what is large stay behind in files of the worker."""
        if landing is None:
            return self._value(value)
        value = landing.without_tables(value)
        answer: tuple[bytes, ...] | None = None
        if not landing.landed and isinstance(value, dict | list):
            answer = self._large(value, landing)
        if answer is None:
            answer = self._value(value)
        if not landing.landed:
            return answer
        if answer[0] != b'"value":':
            landing.drop()
            return answer
        return (*answer, b',"landed":', _json(landing.landed))

    def _large(self, value: object, landing: Landing) -> tuple[bytes, ...] | None:
        try:
            try:
                is_landed = landing.land_json(value, self._settings.result_bytes_max)
            except EnvelopeInvalid:
                # Odd keys, NaN, a date: rare, so only then is the value rebuilt.
                landing.drop()
                is_landed = landing.land_json(_normalised(value), self._settings.result_bytes_max)
        except TooLarge:
            landing.drop()
            message = f"the result has more than {self._settings.result_bytes_max} bytes as JSON, which is the limit"
            return _failure(_refused_result("RESULT_TOO_LARGE", message, None), None)
        except NoetlError:
            landing.drop()
            return None  # whoever writes it whole says what is wrong
        return (b'"value":', b"null") if is_landed else None

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


def json_bytes(value: object) -> bytes:
    """JSON of any Python value, normalised (dsl 8.6).  Raises ValueInvalid, or what the `str()` of an object raises."""
    try:
        text = _encode_strict(value)
    except (TypeError, ValueError, RecursionError):
        # NaN, odd keys or a cycle: rare, so only then is the value rebuilt piece by piece.
        text = _encode_rebuilt(value)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueInvalid("the value holds text that is not valid Unicode (a lone surrogate)") from error


def _encode_rebuilt(value: object) -> str:
    try:
        return _encode_strict(_normalised(value))
    except (TemplateFailed, RecursionError) as error:
        raise ValueInvalid("the value is nested too deeply, or contains itself") from error


def _normalised(value: object) -> object:
    normalised: object = expression_engine().normalise(value)
    return normalised


def _object(value: object) -> object:
    if is_table(value):
        message = "a table must be the whole result, or stand in mappings: one in a list would only be its text"
        raise ToolFailed(Failure(kind="python", code="RESULT_INVALID", message=message))
    return _normalised(value)


_encode_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_object).encode


def _json(value: object) -> bytes:
    """Our own part of an answer; text of the user in it may be anything."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _failure(failure: Failure, trace: str | None) -> tuple[bytes, ...]:
    return (b'"failure":', _json(asdict(failure)), b',"traceback":', _json(trace))


def _refused_result(code: str, message: str, exception_type: str | None) -> Failure:
    message = bounded(message, limits.ERROR_MESSAGE_CHARS_MAX)
    return Failure(kind="python", code=code, message=message, exception_type=exception_type)
