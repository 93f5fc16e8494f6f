"""Plain data, text, truth, and the views that templates see."""

from __future__ import annotations

import json
from collections import UserDict
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.errors import TemplateFailed, TemplateRefused
from noetl.core.expression import (
    SEEN_TYPES,
    VIEW_TYPES,
    AtomError,
    EventName,
    FailedView,
    LoopView,
    OutputView,
    PipelineView,
    ResultRows,
    ResultView,
    Rows,
    Scalar,
    Scope,
    Undefined,
    compile_template,
    is_true,
    normalise,
    plain,
    render,
    to_text,
    view_of,
)

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=12,
)


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


# -- normalise -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("5"), 5),
        (Decimal("5.0"), 5.0),
        (Decimal("5.25"), 5.25),
        (Decimal("1E+2"), 100),
        (Decimal("NaN"), None),
        (Decimal("Infinity"), None),
        (Decimal("1E+100000"), None),
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 2, 29, 12, 30), "2024-02-29T12:30:00"),
        (datetime(2024, 2, 29, 12, 30, tzinfo=UTC), "2024-02-29T12:30:00+00:00"),
        (time(9, 5), "09:05:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\x00\xff", "AP8="),
        (bytearray(b"a"), "YQ=="),
        (memoryview(b"a"), "YQ=="),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ({10, 9, 2.5}, [2.5, 9, 10]),
        ({"10", 9, None, (1,)}, [9, None, [1], "10"]),
        ({"b": 1, "a": 2}.keys(), ["b", "a"]),
        ({"b": 1, "a": 2}.values(), [1, 2]),
        (Fraction(1, 4), 0.25),
        (Fraction(10**400), None),
        ({(1, 2): 1}, {"[1, 2]": 1}),
        ((1, (2,)), [1, [2]]),
        (range(3), [0, 1, 2]),
        (float("nan"), None),
        (float("inf"), None),
        (-0.5, -0.5),
        (timedelta(seconds=5), "0:00:05"),
        (Colour.RED, "Colour.RED"),
        (Level.HIGH, 3),
        ({2: Decimal("2"), None: 1, True: 2, 1.5: 3}, {"2": 2, "null": 1, "true": 2, "1.5": 3}),
        ({date(2024, 1, 1): 1}, {"2024-01-01": 1}),
        (UserDict({"a": {1}}), {"a": [1]}),
        (EventName("step.done"), "step.done"),
        (Undefined("x"), None),
        (view_of({"a": 1}), {"a": 1}),
        ([view_of([1]), Undefined()], [[1], None]),
    ],
)
def test_any_value_has_a_plain_form(value: object, expected: object) -> None:
    result = normalise(value)
    assert result == expected
    assert type(result) is type(expected)


@given(json_values)
def test_plain_data_is_not_copied(value: object) -> None:
    assert normalise(value) is value


def test_a_value_that_contains_itself_is_an_error() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(TemplateFailed, match="nested too deeply"):
        normalise(endless)


# -- truth and text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *("", "false", "FALSE", "0", "no", "No", "none", "null", "off", " false\n", False, 0, None, [], {}, 0.0),
        *(Undefined(), view_of({}), view_of([]), view_of("off"), view_of(None)),
    ],
)
def test_these_are_false(value: object) -> None:
    assert is_true(value) is False


@pytest.mark.parametrize(
    "value",
    ["x", "true", "1", "falsey", True, 1, [0], {"a": 0}, -1, view_of({"a": 1}), EventName("step.done")],
)
def test_these_are_true(value: object) -> None:
    assert is_true(value) is True


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"),
        (1, "1"),
        (1.5, "1.5"),
        (True, "True"),
        (None, "None"),
        ({"a": [1, None, True, "é"]}, '{"a": [1, null, true, "é"]}'),
        ([], "[]"),
        ((1, 2), "[1, 2]"),
        (Undefined("a.b"), ""),
        (EventName("step.done"), "step.done"),
        (view_of({"a": 1}), '{"a": 1}'),
        (view_of([1]), "[1]"),
        (view_of(5), "5"),
        (Decimal("2.50"), "2.5"),
        (date(2024, 1, 1), "2024-01-01"),
    ],
)
def test_text_of_a_value(value: object, text: str) -> None:
    assert to_text(value) == text
    assert type(to_text(value)) is str
    if not isinstance(value, Undefined):
        assert render(compile_template("{{ v }}!"), {"v": value}) == text + "!"


# -- event names ---------------------------------------------------------------------------------------------


def test_an_event_name_equals_every_synonym_of_its_situation() -> None:
    success, loop, failure = EventName("step.done"), EventName("loop.done"), EventName("call.error")
    for word in ("call.done", "step.done", "step.exit", "command.completed"):
        assert success == word
        assert word == success
        assert loop == word
        assert failure != word
    assert loop == "loop.done"
    assert success != "loop.done"
    for word in ("call.error", "step.failed", "command.failed"):
        assert failure == word
        assert success != word
    assert success != 3
    assert EventName("custom.thing") == "custom.thing"
    assert hash(success) == hash("step.done")


def test_event_names_in_templates() -> None:
    names = {"event": {"name": EventName("loop.done")}}
    for source, expected in [
        ("{{ event.name == 'call.done' }}", True),
        ("{{ event.name != 'call.done' }}", False),
        ("{{ event.name in ['step.exit', 'x'] }}", True),
        ("{{ event.name is eq 'step.done' }}", True),
        ("{{ event.name == 'step.failed' }}", False),
        ("{{ event.name }}", "loop.done"),
        ("{{ event.name ~ '!' }}", "loop.done!"),
        ("{{ event.name | upper }}", "LOOP.DONE"),
        ("{{ event.name[0] }}", "l"),
        ("{{ event.name + 'x' }}", "loop.donex"),
        ("{{ event.name * 2 }}", "loop.doneloop.done"),
        ("{{ [event.name] }}", ["loop.done"]),
        ("{{ {event.name: 1} }}", {"loop.done": 1}),
        ("{{ event.name in event.name }}", True),
        ("{{ event | tojson }}", '{"name": "loop.done"}'),
    ]:
        result = render(compile_template(source), names)
        assert result == expected, source
        assert type(result) is type(expected), source


# -- views ---------------------------------------------------------------------------------------------------


def ask(expression: str, **names: object) -> object:
    return render(compile_template("{{ " + expression + " }}"), names)


def test_a_mapping_result_has_its_keys_and_aliases() -> None:
    step = view_of({"n": 1, "items": [2]})
    assert ask("s.n", s=step) == 1
    assert ask("s.items", s=step) == [2]
    assert ask("s.data.n", s=step) == 1
    assert ask("s.result['n']", s=step) == 1
    assert ask("s.status", s=step) == "ok"
    assert ask("s.missing", s=step) is None
    assert ask("s", s=step) == {"n": 1, "items": [2]}
    assert ask("s._ref is defined", s=step) is False
    assert ask("s | length", s=step) == 2
    assert ask("'n' in s", s=step) is True
    assert ask("'data' in s", s=step) is False
    assert ask("s == {'n': 1, 'items': [2]}", s=step) is True
    assert ask("s | tojson", s=step) == '{"n": 1, "items": [2]}'


def test_a_users_key_wins_over_an_alias() -> None:
    step = view_of({"status": "failed", "data": {"t": 1}})
    assert ask("s.status", s=step) == "failed"
    assert ask("s.data.t", s=step) == 1
    assert ask("s.result.data.t", s=step) == 1


def test_extras_are_visible_but_not_part_of_the_value() -> None:
    extras = {"_ref": {"uri": "noetl://x"}, "_store": "kv"}
    for raw in ({"n": 1}, [1], "text"):
        step = view_of(raw, extras=extras)
        assert ask("s._ref.uri", s=step) == "noetl://x"
        assert ask("s._store", s=step) == "kv"
        assert ask("s._preview is defined", s=step) is False
        assert ask("s", s=step) == raw


def test_a_list_result_is_the_list() -> None:
    step = view_of([{"n": 1}, {"n": 2}])
    assert ask("s", s=step) == [{"n": 1}, {"n": 2}]
    assert ask("s.data[1].n", s=step) == 2
    assert ask("s.result | length", s=step) == 2
    assert ask("s[0].n + s[-1].n", s=step) == 3
    assert ask("s[5] is defined", s=step) is False
    assert ask("s | map(attribute='n') | list", s=step) == [1, 2]
    assert ask("s + [3]", s=step) == [{"n": 1}, {"n": 2}, 3]
    assert ask("s[1:]", s=step) == [{"n": 2}]
    assert ask("s == [1]", s=step) is False
    assert ask("{'n': 1} in s", s=step) is True


@pytest.mark.parametrize("raw", [5, "text", 1.5, True, None])
def test_a_scalar_result_is_the_value(raw: object) -> None:
    step = view_of(raw)
    assert ask("s", s=step) is raw
    assert ask("s.data", s=step) is raw
    assert ask("s.result", s=step) is raw
    assert ask("s == v", s=step, v=raw) is True
    assert ask("s is none", s=step) is (raw is None)
    assert ask("s is true", s=step) is (raw is True)
    assert ask("1 if s else 2", s=step) == (1 if raw else 2)
    assert ask("[s]", s=step) == [raw]
    assert ask("s.other is defined", s=step) is False


def test_scalar_results_take_part_in_operations() -> None:
    assert ask("s + 1", s=view_of(4)) == 5
    assert ask("-s", s=view_of(4)) == -4
    assert ask("s ~ 'x'", s=view_of(4)) == "4x"
    assert ask("rows[s]", s=view_of(1), rows=[1, 2]) == 2
    assert ask("{s: 1}", s=view_of("k")) == {"k": 1}
    assert ask("s[0]", s=view_of("key")) == "k"
    assert ask("s | upper", s=view_of("key")) == "KEY"
    assert ask("range(s)", s=view_of(2)) == [0, 1]
    assert ask("'k' in s", s=view_of("key")) is True
    assert ask("s | list", s=view_of("ab")) == ["a", "b"]
    assert hash(view_of("k")) == hash("k")
    with pytest.raises(TemplateFailed):
        ask("s | list", s=view_of(4))


def test_an_http_result_falls_through_to_a_mapping_body() -> None:
    body = {"paging": {"next": 2}, "items": [1]}
    raw = {"status_code": 200, "headers": {}, "url": "u", "elapsed": 0.1, "data": body, "body": body}
    names = {"step": view_of(raw, http=True), "output": OutputView(status="ok", data=raw, http_result=True)}
    for path in (
        "step.paging.next",
        "step.data.paging.next",
        "output.paging.next",
        "output.data.paging.next",
        "output.data.data.paging.next",
    ):
        assert ask(path, **names) == 2, path
    assert ask("step", **names) == raw
    assert ask("output.data", **names) == raw
    assert ask("output.data.status is defined", **names) is False
    assert ask("step.status", **names) == "ok"
    text = view_of({"body": "plain text", "data": "plain text"}, http=True)
    assert ask("step.paging is defined", step=text) is False


def test_the_output_envelope() -> None:
    error = {"kind": "rate_limit", "status": 429}
    output = OutputView(status="error", data={"rows": [1], "status": "mine"}, error=error, http={"status": 429})
    assert ask("output.status", output=output) == "error"
    assert ask("output.error.kind", output=output) == "rate_limit"
    assert ask("output.http.status == 429", output=output) is True
    assert ask("output.rows", output=output) == [1]
    assert ask("output.data.status", output=output) == "mine"
    assert ask("output.result.rows", output=output) == [1]
    assert ask("output.response.rows[0]", output=output) == 1
    assert ask("output.pg.code == '40P01'", output=output) is False
    assert ask("output.ref is none", output=output) is True
    assert ask("output.nothing is defined", output=output) is False
    assert ask("output | length", output=output) == 8
    whole = ask("output", output=output)
    assert whole == {
        "status": "error",
        "data": {"rows": [1], "status": "mine"},
        "ref": None,
        "error": error,
        "http": {"status": 429},
        "pg": None,
        "py": None,
        "meta": None,
    }
    assert ask("output[0]", output=OutputView(status="ok", data=["first"])) == "first"
    assert ask("output.x is defined", output=OutputView(status="ok", data=5)) is False
    assert ask("1 if output else 2", output=output) == 1
    assert "data" in output
    assert output == whole
    with pytest.raises(TypeError, match="no field 'extra'"):
        OutputView(status="ok", extra=1)


def test_a_scope_falls_back_and_is_only_its_own_part_as_a_value() -> None:
    class Lazy(dict[str, object]):
        asked: list[str] = []  # noqa: RUF012

        def __getitem__(self, key: str) -> object:
            self.asked.append(key)
            return super().__getitem__(key)

    lazy = Lazy(load=view_of({"n": 3}))
    ctx = Scope({"a": 1, "v": view_of([2])}, {"b": 2, "a": 9}, lazy)
    assert ask("ctx.a", ctx=ctx) == 1
    assert ask("ctx.b", ctx=ctx) == 2
    assert lazy.asked == []
    assert ask("ctx.load.data.n", ctx=ctx) == 3
    assert ask("ctx.zzz is defined", ctx=ctx) is False
    assert ask("ctx", ctx=ctx) == {"a": 1, "v": [2]}
    assert ask("{'c': ctx}", ctx=ctx) == {"c": {"a": 1, "v": [2]}}
    assert ask("ctx | tojson", ctx=ctx) == '{"a": 1, "v": [2]}'
    assert ctx["b"] == 2
    assert list(ctx) == ["a", "v"]


def test_a_lazy_mapping_is_asked_only_for_what_is_read() -> None:
    class Lazy(UserDict[str, object]):
        def __missing__(self, key: str) -> object:
            if key == "rows":
                return [1]
            raise KeyError(key)

    step = view_of(Lazy(row_count=5))
    assert ask("s.row_count", s=step) == 5
    assert ask("s.rows", s=step) == [1]
    assert ask("s", s=step) == {"row_count": 5}
    assert ask("s.data.row_count", s=step) == 5


def test_views_are_frozen_and_have_no_public_names() -> None:
    samples = [
        view_of({"a": 1}),
        view_of([1]),
        view_of(1),
        OutputView(status="ok"),
        Scope({"a": 1}),
        PipelineView(["a"], {"a": 1}),
        FailedView(None, view_of({})),
        ResultRows([{"v": 1}]),
        LoopView({"count": 1}, ResultRows([{"v": 1}])),
        Undefined("x"),
        AtomError("x"),
    ]
    assert {type(sample) for sample in samples} >= VIEW_TYPES
    for sample in samples:
        assert [name for name in dir(sample) if not name.startswith("_")] == []
        assert type(sample) in SEEN_TYPES | VIEW_TYPES
        with pytest.raises(AttributeError, match="frozen"):
            sample._raw = 1  # type: ignore[union-attr]
        with pytest.raises(AttributeError, match="frozen"):
            del sample._raw  # type: ignore[union-attr]
        assert type(sample).__name__ in repr(sample)
    assert type(view_of({})) is ResultView
    assert type(view_of([])) is Rows
    assert type(view_of(None)) is Scalar


def test_views_answer_pythons_protocols_for_their_data() -> None:
    step = view_of({"n": 1})
    assert isinstance(step, ResultView)
    assert (len(step), list(step), "n" in step, bool(step), step["n"]) == (1, ["n"], True, True, 1)
    assert step["data"] == {"n": 1}
    with pytest.raises(KeyError):
        step["zzz"]
    assert step == view_of({"n": 1})
    for value in (step, view_of([])):
        with pytest.raises(TypeError):
            hash(value)


def test_plain_strips_views_at_any_depth() -> None:
    value = {"a": view_of({"b": 1}), "c": [view_of([2]), Undefined("x"), EventName("step.done")]}
    assert plain(value) == {"a": {"b": 1}, "c": [[2], None, "step.done"]}
    raw = {"big": [1]}
    assert plain(view_of(raw)) is raw
    assert plain(Undefined()) is None
    with pytest.raises(TemplateFailed, match="why"):
        plain(AtomError("why"))
    assert json.dumps(plain(EventName("step.done"))) == '"step.done"'


def test_a_mapping_that_is_a_name_may_hold_views() -> None:
    names = {"steps": {"a": view_of({"n": 1}), "b": 2, "e": EventName("step.done")}}
    expected = {"a": {"n": 1}, "b": 2, "e": "step.done"}
    for expression in ("steps", "steps if steps else 1", "[steps] | first"):
        result = ask(expression, **names)
        assert result == expected
        assert type(result) is dict
        assert {type(value) for value in result.values()} == {dict, int, str}
    assert ask("{'s': steps}", **names) == {"s": expected}


def test_objects_of_the_host_are_normalised_before_a_template_sees_them() -> None:
    class Secret:
        password = "hunter2"

        def __str__(self) -> str:
            return "secret"

    assert ask("s.password is defined", s=Secret()) is False
    assert ask("d.s.password is defined", d={"s": Secret()}) is False
    assert ask("d.s", d={"s": Secret()}) == "secret"
    assert ask("d.t + 1", d={"t": Decimal("2")}) == 3
    assert ask("t ~ ''", t=date(2024, 1, 1)) == "2024-01-01"
    assert ask("[t] | first | string", t=[date(2024, 1, 1)][0]) == "2024-01-01"
    assert ask("rows | first ~ ''", rows=[date(2024, 1, 1)]) == "2024-01-01"
    assert ask("rows | tojson", rows=[{"d": Decimal("1.5"), "s": {1}}]) == '[{"d": 1.5, "s": [1]}]'
    with pytest.raises(TemplateRefused, match="a secret is not a value"):
        ask("rows | tojson", rows=[Secret()])


# -- undefined -----------------------------------------------------------------------------------------------


def test_undefined_is_false_empty_and_equal_to_nothing() -> None:
    nothing = Undefined("a.b")
    assert not nothing
    assert str(nothing) == ""
    assert list(nothing) == []
    assert len(nothing) == 0
    assert (nothing == nothing) is False
    assert (nothing != nothing) is True
    assert nothing not in [1]
    assert (1 in nothing) is False
    assert hash(nothing) == hash(Undefined("c"))
    for operation in (
        lambda: nothing < 1,
        lambda: nothing + 1,
        lambda: 1 - nothing,
        lambda: -nothing,
        nothing,
        lambda: int(nothing),
    ):
        with pytest.raises(TemplateFailed, match=r"'a\.b' is undefined"):
            operation()


def test_an_atom_error_fails_on_any_use() -> None:
    failed = AtomError("why")
    for use in (
        bool,
        str,
        len,
        list,
        lambda value: value == 1,
        lambda value: value < 1,
        lambda value: 1 in value,
    ):
        with pytest.raises(TemplateFailed, match="why"):
            use(failed)
    with pytest.raises(TypeError):
        hash(failed)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("m.x.y", None),
        ("m[0][1]", None),
        ("m is defined", False),
        ("m.x is undefined", True),
        ("m is none", False),
        ("m == m", False),
        ("m != 1", True),
        ("m == none", False),
        ("m in [1]", False),
        ("1 in m", False),
        ("m not in [1]", True),
        ("[m] == [m]", False),
        ("m.x | default(3)", 3),
        ("m.x | default", ""),
        ("none | default(3)", None),
        ("none | default(3, true)", 3),
        ("m or 4", 4),
        ("not m", True),
        ("m and 1", None),
        ("1 if m else 2", 2),
        ("m.a if m else d.a", 1),
        ("'x' if false", None),
        ("m | length", 0),
        ("m | list", []),
        ("m | join(',')", ""),
        ("m | first is defined", False),
        ("m | lower", ""),
        ("m ~ 'a'", "a"),
        ("m[1:2] is defined", False),
        ("m | tojson", "null"),
        ("[m]", [None]),
        ("{'a': m}", {"a": None}),
        ("m | map('upper') | list", []),
        ("m | dictsort", []),
        ("m | items", []),
    ],
)
def test_undefined_in_expressions(expression: str, expected: object) -> None:
    result = ask(expression, d={"a": 1})
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    "expression",
    [
        *("m < 1", "1 >= m", "m + 1", "1 - m", "m * 2", "m / 2", "m // 2", "m ** 2", "m % 2", "-m", "+m"),
        "m.x | int",
        "m.x | float",
        "m.x | abs",
        "m.x | round",
        "m.x | fromjson",
        "m.x is even",
        "m.x | filesizeformat",
    ],
)
def test_ordering_and_arithmetic_with_undefined_fail_and_name_the_path(expression: str) -> None:
    with pytest.raises(TemplateFailed, match=r"'m(\.x)?' is undefined"):
        ask(expression)
