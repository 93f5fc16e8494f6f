"""How user code becomes a result (dsl 9.1), normalised (dsl 8.6), and exceptions become failures."""

from __future__ import annotations

import collections
import copy
import datetime
import decimal
import enum
import fractions
import json
import math
import os
import sys
import types
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from noetl.core import limits
from noetl.core.errors import Failure, ToolFailed
from noetl.tools.python import wire
from noetl.tools.python.child import namespace
from noetl.tools.python.child.failures import describe
from noetl.tools.python.child.loop import ProgramCache, ValueInvalid, json_bytes
from noetl.tools.python.child.namespace import Inputs, compile_program, needs_context, run_program
from noetl.tools.python.child.observation import Output

FILENAME = "<playbook step>"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    namespace.forget()


def run(
    code: str,
    input: dict[str, object] | None = None,
    *,
    names: dict[str, object] | None = None,
    context: dict[str, object] | None = None,
    libs: dict[str, object] | None = None,
) -> Any:
    inputs = Inputs(input=input or {}, names=names or {}, context=context, libs=libs or {})
    return run_program(compile_program(code, FILENAME), inputs)


def fail(code: str, **given: Any) -> tuple[Failure, str | None]:
    with pytest.raises(BaseException) as caught:  # noqa: PT011  # whatever user code raises
        run(code, **given)
    return describe(caught.value, FILENAME)


# --- the result ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("result = {'n': n + 1}", {"n": 2}),
        ("result = 0", 0),
        ("result = None", {"status": "ok"}),
        ("x = 1", {"status": "ok"}),
        ("", {"status": "ok"}),
        ("def f():\n    global result\n    result = 5\nf()", 5),
        ("for result in [1, 2]: pass", 2),
        ("import json as result\nresult = result.loads('[1]')", [1]),
        ("def main():\n    return 1\nresult = 2", 2),
        ("def main():\n    return 1\nresult = None", 1),
        ("main = lambda n: n + 10", 11),
        ("main = 3", {"status": "ok"}),
    ],
)
def test_result_is_taken_in_the_order_of_the_language(code: str, expected: object) -> None:
    assert run(code, {"n": 1}) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("return n", 1),
        ("if n:\n    return 'yes'\nreturn 'no'", "yes"),
        ("for i in range(5):\n    if i == 3:\n        return i", 3),
        ("while True:\n    return 7", 7),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    return 'caught'", "caught"),
        ("try:\n    pass\nfinally:\n    return 'finally'", "finally"),
        ("import contextlib\nwith contextlib.nullcontext():\n    return 'with'", "with"),
        ("match n:\n    case 1:\n        return 'one'", "one"),
        ("result = 5\nif False:\n    return 1", None),
        ("n = n + 1\nn += 1\nreturn n", 3),
        ("def double(x):\n    return x * n\nn = 5\nreturn double(2)", 10),
        ("global n\nn = n + 1\nreturn n", 2),
        ("del n\nn = 4\nreturn n", 4),
        (
            "from __future__ import annotations\ndef f(x: Missing): pass\nreturn f.__annotations__",
            {"x": "Missing"},
        ),
        ("'''Docstring.'''\nfrom __future__ import annotations\nreturn 1", 1),
        ("return json.dumps(input_data)", '{"n": 1}'),
    ],
)
def test_top_level_return_runs_the_body_as_a_function(code: str, expected: object) -> None:
    assert run(code, {"n": 1}) == expected


def test_return_inside_a_function_or_lambda_is_not_top_level() -> None:
    assert run("def f():\n    return 1\nresult = f() + 1") == 2


def test_return_inside_a_class_is_a_syntax_error() -> None:
    failure, _trace = fail("class A:\n    return 1")
    assert failure.code == "PY_SyntaxError"


def test_input_keys_that_are_no_identifiers_do_no_harm() -> None:
    given: dict[str, object] = {"a-b": 1, "class": 2, "": 3, "x": 4, "__debug__": 5}
    assert run("return [x, input_data['a-b'], args['class']]", given) == [4, 1, 2]


def test_wrapped_body_is_compiled_once_per_set_of_names() -> None:
    program = compile_program("return [a if 'a' in input_data else 0, other]", FILENAME)
    for keys in ("a", "", "unmentioned"):
        inputs = Inputs(input=dict.fromkeys([keys, "other"], 1), names={}, context=None, libs={})
        run_program(program, inputs)
    assert set(program.bodies) == {("a", "input_data", "other"), ("input_data", "other")}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = result", {"status": "ok"}),
        ("result['more'] = 1", {"status": "ok"}),
        ("def main(result):\n    return 'main'", "main"),
        ("result = result", {"given": True}),
        ("result = [result]", [{"given": True}]),
        ("def f():\n    result = 1\nf()", {"status": "ok"}),
        ("x = [result for result in [1]]", {"status": "ok"}),
        ("x = [result := i for i in [1]]", 1),
    ],
)
def test_an_input_called_result_is_not_the_result_unless_bound(code: str, expected: object) -> None:
    assert run(code, {"result": {"given": True}}) == expected


# --- names -----------------------------------------------------------------------------------------------


def test_whole_input_has_two_names_unless_the_input_uses_them() -> None:
    assert run("result = [input_data, args]", {"a": 1}) == [{"a": 1}, {"a": 1}]
    assert run("result = [input_data, args]", {"input_data": 5}) == [5, {"input_data": 5}]
    assert run("result = input_data", {"args": 1}) == {"args": 1}


def test_loop_names_are_added_when_absent() -> None:
    assert run("result = [row, _index]", {"row": "mine"}, names={"row": "loop", "_index": 3}) == ["mine", 3]
    assert run("result = input_data", {}, names={"row": 1}) == {}


def test_context_is_there_when_the_code_mentions_it() -> None:
    assert run("result = context.get('fetch')", context={"fetch": [1]}) == [1]
    assert run("result = context.get('fetch', 'none')") == "none"
    assert run("result = 'context' in globals()", context={"a": 1}) is False
    assert run("result = context", {"context": 1}, context={"a": 1}) == 1


def test_context_is_a_read_only_copy() -> None:
    failure, _trace = fail("context['a'] = 2", context={"a": 1})
    assert failure.code == "PY_TypeError"
    code = "import copy\nresult = [json.dumps(context), copy.deepcopy(context), context | {'b': 2}]"
    assert run(code, context={"a": 1}) == ['{"a": 1}', {"a": 1}, {"a": 1, "b": 2}]
    assert type(copy.copy(namespace.ReadOnlyDict(a=1))) is dict


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("result = 1", False),
        ("context_size = 1", False),
        ("result = context['a']", True),
        ("def main(a): pass", True),
        ("domain = 1", False),
    ],
)
def test_context_is_needed_only_when_named_or_for_main(code: str, needed: bool) -> None:
    assert needs_context(code) is needed


def test_four_modules_are_there_and_input_wins_over_them() -> None:
    code = "result = [json.loads('1'), os.sep, datetime.datetime.__name__, uuid.UUID(int=1).hex]"
    assert run(code) == [1, "/", "datetime", "0" * 31 + "1"]
    assert run("result = json", {"json": 3}) == 3


def test_libs_are_imported_under_their_alias() -> None:
    libs: dict[str, object] = {
        "m": "math",
        "p": "os.path",
        "dt": {"from": "datetime", "import": "datetime"},
        "sub": {"from": "xml", "import": "etree"},
        "json": "math",
    }
    code = "result = [m.floor(1.5), p.basename('/a/b'), dt(2024, 1, 2).day, sub.__name__, json.__name__]"
    assert run(code, libs=libs) == [1, "b", 2, "xml.etree", "math"]


@pytest.mark.parametrize(
    "lib",
    ["no_such_module", {"from": "no_such_module", "import": "x"}, {"from": "json", "import": "nothing"}],
)
def test_missing_lib_is_a_configuration_failure(lib: object) -> None:
    failure, _trace = fail("result = 1", libs={"a": lib})
    assert (failure.kind, failure.code, failure.retryable) == ("config", "LIB_MISSING", False)
    assert "a:" in failure.message


@pytest.mark.parametrize("lib", [5, {}, {"from": "json"}, None])
def test_malformed_lib_is_a_configuration_failure(lib: object) -> None:
    failure, _trace = fail("result = 1", libs={"a": lib})
    assert (failure.kind, failure.code) == ("config", "LIB_INVALID")


def test_code_is_a_module_of_its_own_namespace() -> None:
    code = """
from __future__ import annotations
import dataclasses, typing
@dataclasses.dataclass
class Row:
    n: int
    kind: typing.ClassVar[str] = "row"
LIMIT = 3
def top():
    return LIMIT
result = [dataclasses.asdict(Row(2)), typing.get_type_hints(Row)["n"].__name__, top(), __name__]
"""
    assert run(code) == [{"n": 2}, "int", 3, "__playbook__"]


def test_each_run_has_a_fresh_namespace() -> None:
    run("leak = 1")
    namespace.forget()
    assert run("result = 'leak' in globals()") is False
    namespace.forget()
    assert namespace.MODULE_NAME not in sys.modules


# --- main ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def main(): return 'none'", "none"),
        ("def main(a): return a", 1),
        ("def main(b): return b", "from context"),
        ("def main(row): return row", "from loop"),
        ("def main(missing=9): return missing", 9),
        ("def main(context): return context['b']", "from context"),
        ("def main(input_data): return input_data", {"a": 1, "c": 2}),
        ("def main(a, **kwargs): return kwargs", {"c": 2}),
        ("def main(**kwargs): return kwargs", {"a": 1, "c": 2}),
        ("def main(*args, a): return [args, a]", [(), 1]),
        ("def main(a, /, c): return [a, c]", [1, 2]),
        ("async def main(a): return a", 1),
        ("import asyncio\nasync def main(a):\n    await asyncio.sleep(0)\n    return a", 1),
        ("class main:\n    def __new__(cls, a): return a", 1),
        ("def main(): pass", None),
    ],
)
def test_main_gets_its_parameters_by_name(code: str, expected: object) -> None:
    given: dict[str, object] = {"a": 1, "c": 2}
    context: dict[str, object] = {"b": "from context", "a": "hidden"}
    assert run(code, given, names={"row": "from loop"}, context=context) == expected


def test_main_with_an_unknown_parameter_fails() -> None:
    failure, _trace = fail("def main(missing): pass")
    assert failure.code == "PY_TypeError"
    assert "'missing'" in failure.message


# --- failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "failure_code"),
    [
        ("raise ValueError('no')", "python", "PY_ValueError"),
        ("{}['a']", "python", "PY_KeyError"),
        ("raise TimeoutError('late')", "timeout", "PY_TimeoutError"),
        ("import asyncio\nraise asyncio.TimeoutError", "timeout", "PY_TimeoutError"),
        ("raise ConnectionResetError('gone')", "connection", "PY_ConnectionResetError"),
        ("raise ConnectionRefusedError('no')", "connection", "CONN_REFUSED"),
        ("import socket\nraise socket.gaierror('no')", "connection", "DNS_ERROR"),
        ("class ConnectError(Exception): pass\nraise ConnectError('x')", "connection", "PY_ConnectError"),
        ("import urllib.error as e\nraise e.URLError(TimeoutError())", "timeout", "PY_URLError"),
        ("import urllib.error as e\nraise e.URLError('text')", "python", "PY_URLError"),
        ("json.loads('{')", "parse", "PY_JSONDecodeError"),
        ("b'\\xff'.decode()", "parse", "PY_UnicodeDecodeError"),
        ("int('x')", "python", "PY_ValueError"),
        ("import sys\nsys.exit()", "python", "PY_SystemExit"),
        ("raise KeyboardInterrupt", "python", "PY_KeyboardInterrupt"),
        ("raise MemoryError", "python", "PY_MemoryError"),
        ("def f(): return f()\nf()", "python", "PY_RecursionError"),
        ("x = (", "python", "PY_SyntaxError"),
        ("\x00", "python", "PY_SyntaxError"),
        ("return await x", "python", "PY_SyntaxError"),
    ],
)
def test_exceptions_have_a_kind_and_a_code(code: str, kind: str, failure_code: str) -> None:
    failure, _trace = fail(code)
    assert (failure.kind, failure.code) == (kind, failure_code)
    assert failure.retryable is (kind in {"timeout", "connection"})
    assert failure.message


def test_syntax_error_says_where() -> None:
    failure, trace = fail("a = 1\nb = = 2\n")
    assert failure.details == {"line": 2}
    assert trace is not None
    assert "b = = 2" in trace


def test_traceback_shows_the_lines_of_the_user_only() -> None:
    code = "def inner(text):\n    return json.loads(text)  # the culprit\n\ninner('{')\n"
    failure, trace = fail(code)
    assert failure.details == {"line": 2}
    assert trace is not None
    assert "return json.loads(text)  # the culprit" in trace
    assert "inner('{')" in trace
    assert "decoder.py" not in trace
    assert "namespace.py" not in trace


def test_traceback_of_a_chain_shows_both_and_stays_bounded() -> None:
    code = "try:\n    {}['first']\nexcept KeyError as e:\n    raise RuntimeError('second' * 5000) from e"
    failure, trace = fail(code)
    assert len(failure.message) == limits.ERROR_MESSAGE_CHARS_MAX
    assert trace is not None
    assert len(trace) == limits.PYTHON_TRACEBACK_CHARS_MAX
    _failure, trace = fail(code.replace(" * 5000", ""))
    assert trace is not None
    assert "'first'" in trace
    assert "second" in trace


def test_hostile_exceptions_are_described_too() -> None:
    failure, trace = fail("class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E")
    assert (failure.code, failure.message) == ("PY_E", "E")
    failure, trace = fail("raise ValueError('\\ud800')")
    assert failure.message == "?"
    assert trace is not None
    trace.encode()


def test_tool_failures_pass_through() -> None:
    failure = Failure(kind="config", message="m")
    assert describe(ToolFailed(failure), FILENAME) == (failure, None)


# --- values ----------------------------------------------------------------------------------------------


class Color(enum.IntEnum):
    RED = 1


class Opaque:
    def __str__(self) -> str:
        return "opaque"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, "x", True, None]}, {"a": [1, 2.5, "x", True, None]}),
        (decimal.Decimal("5"), 5),
        (decimal.Decimal("5.0"), 5.0),
        (decimal.Decimal("1E+2"), 100),
        (decimal.Decimal("1E+500"), None),
        (decimal.Decimal("NaN"), None),
        (decimal.Decimal("Infinity"), None),
        (datetime.date(2024, 2, 1), "2024-02-01"),
        (datetime.datetime(2024, 2, 1, 3, 4, 5), "2024-02-01T03:04:05"),
        (datetime.datetime(2024, 2, 1, tzinfo=datetime.UTC), "2024-02-01T00:00:00+00:00"),
        (datetime.time(3, 4), "03:04:00"),
        (datetime.timedelta(days=1), "1 day, 0:00:00"),
        (uuid.UUID(int=0), "00000000-0000-0000-0000-000000000000"),
        (b"\x00\xff", "AP8="),
        (bytearray(b"a"), "YQ=="),
        ((1, (2,)), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ([float("nan"), math.inf, 1.0], [None, None, 1.0]),
        ({2: "a", None: "b", True: "c", 1.5: "d"}, {"2": "a", "null": "b", "true": "c", "1.5": "d"}),
        ({(1, 2): "a", uuid.UUID(int=0): "b"}, {"[1, 2]": "a", "00000000-0000-0000-0000-000000000000": "b"}),
        ({datetime.date(2024, 2, 1): {"x": {1}}}, {"2024-02-01": {"x": [1]}}),
        (Color.RED, 1),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (collections.OrderedDict(a=1), {"a": 1}),
        ({"a": 1}.values(), [1]),
        ({"a": 1}.keys(), ["a"]),
        (range(3), [0, 1, 2]),
        (fractions.Fraction(1, 4), 0.25),
        (Opaque(), "opaque"),
        ([Opaque(), {float("nan")}], ["opaque", [None]]),
        (10**30, 10**30),
        ("żółw", "żółw"),
    ],
)
def test_values_are_normalised(value: object, expected: object) -> None:
    assert json.loads(json_bytes(value)) == expected


def test_values_without_json_form_are_refused() -> None:
    circular: list[object] = []
    circular.append(circular)
    deep: list[object] = []
    for _level in range(100_000):
        deep = [deep]
    for value in (circular, {"a": circular}, deep, "\ud800"):
        with pytest.raises(ValueInvalid):
            json_bytes(value)
    shared = [1]
    assert json.loads(json_bytes([shared, shared, math.nan])) == [[1], [1], None]


# --- output, cache, framing ------------------------------------------------------------------------------


def test_output_leaves_with_the_end_of_its_line_and_what_finds_no_room_is_counted() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        output = Output(writer)
        print("12345", file=output.stdout)
        assert b"12345" in os.read(reader, 4096)
        output.stderr.buffer.write("ż".encode())
        assert output.end() == (True, 0)
        assert "ż".encode() in os.read(reader, 4096)
        output.stdout.close()
        os.close(reader)
        print("y" * 100, file=output.stdout)
        assert output.end() == (True, 101)
        assert output.end() == (False, 0)
    finally:
        os.close(writer)


def test_program_cache_forgets_the_least_recently_used() -> None:
    cache = ProgramCache()
    first = cache.compiled(b"x = 0", FILENAME)
    for number in range(1, 200):
        cache.compiled(f"x = {number}".encode(), FILENAME)
    assert cache.compiled(b"x = 0", FILENAME) is first
    for number in range(200, 455):
        cache.compiled(f"x = {number}".encode(), FILENAME)
    assert cache.compiled(b"x = 0", FILENAME) is first
    assert cache.compiled(b"x = 0", "<another step>") is not first
    big = cache.compiled(b"# " + b"x" * 5_000_000, FILENAME)
    assert cache.compiled(b"# " + b"x" * 5_000_000, FILENAME) is big
    assert cache.compiled(b"x = 0", FILENAME) is not first


def test_request_is_split_as_it_was_joined() -> None:
    parts = wire.with_length("x = 'ż'"), wire.text('{"input":'), wire.text('{"n": "\ud800"}}')
    (payload,) = wire.FrameReader().feed(wire.with_ticket(wire.sized(*parts), 7))
    assert wire.split_request(payload) == (7, "x = 'ż'".encode(), {"input": {"n": "\ud800"}})


def test_prefix_of_an_answer_is_read_as_it_was_written() -> None:
    prefix = wire.answer_prefix(2**63, wire.SPENT, 0.25, 0.125)
    assert wire.read_prefix(prefix + b"{}") == (2**63, wire.SPENT, 0.25, 0.125)
    assert wire.read_prefix(wire.answer_prefix(1, wire.REUSABLE, 1e9))[2] < 5_000
    assert wire.read_prefix(b"short")[0] == wire.NO_TICKET


def test_frames_arrive_in_any_pieces() -> None:
    first = json.dumps({"a": ["ż", "\ud800", 1.5]}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    payloads = [first, b"", b"x" * 40_000, b"y"]
    stream = b"".join(wire.header(len(payload)) + payload for payload in payloads)
    for size in (1, 3, 5, 16_384, len(stream)):
        reader = wire.FrameReader()
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [frame for piece in pieces for frame in reader.feed(piece)] == payloads
        assert reader.wants_bytes == wire.READ_BYTES
    assert wire.decode(first) == {"a": ["ż", "\ud800", 1.5]}


def test_only_a_frame_known_to_be_large_gets_a_large_buffer() -> None:
    reader = wire.FrameReader()
    assert reader.feed(wire.header(100) + b"x") == []
    assert reader.wants_bytes == wire.READ_BYTES
    assert reader.feed(b"x" * 99 + wire.header(100_000)) == [b"x" * 100]
    assert reader.wants_bytes == wire.READ_BYTES_OF_LARGE


def test_bad_frames_are_refused() -> None:
    reader = wire.FrameReader(bytes_max=10)
    assert reader.feed(wire.header(2) + b"ok" + wire.header(11)) == [b"ok"]
    assert reader.is_broken
    with pytest.raises(wire.FrameTooLarge):
        wire.header(wire.FRAME_BYTES_MAX + 1)
    for payload in (b"{", b"\xff", b"[" * 100_000, b"1" * 5_000):
        with pytest.raises(wire.FrameInvalid):
            wire.decode(payload)
