"""How big things may become.  An exception is one line in EXCUSED, with a reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.architecture.rules import sizes as rules
from tests.architecture.rules.source import (
    Finding,
    Module,
    expect_none,
    module,
    modules,
    product,
    stale,
    unexcused,
)

# rule: {key: reason}
EXCUSED: dict[str, dict[str, str]] = {}

RULES: dict[str, Callable[[Module], list[Finding]]] = {
    "module size": rules.long_modules,
    "function size": rules.long_functions,
    "parameters": rules.many_parameters,
    "public methods": rules.wide_classes,
    "port methods": rules.wide_ports,
    "nesting": rules.deep_functions,
}


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    sources = [*product(), *modules("tests")]
    found = [found for rule in RULES.values() for source in sources for found in rule(source)]
    return found + rules.wide_packages(product())


@pytest.mark.parametrize("rule", [*RULES, "package size"])
def test_sizes_are_within_the_limits(rule: str, findings: list[Finding]) -> None:
    found = [finding for finding in findings if finding.rule == rule]
    expect_none(unexcused(found, EXCUSED.get(rule, {})))


@pytest.mark.parametrize("rule", [*RULES, "package size"])
def test_every_excuse_is_still_needed(rule: str, findings: list[Finding]) -> None:
    found = [finding for finding in findings if finding.rule == rule]
    expect_none(stale(found, EXCUSED.get(rule, {})))


def test_excuses_name_a_rule_that_exists() -> None:
    assert set(EXCUSED) <= {*RULES, "package size"}


# --- the rules can fail ----------------------------------------------------------------------------------


def lines(count: int, indent: str = "") -> str:
    return "".join(f"{indent}x = {number}\n" for number in range(count))


def test_a_long_module_is_found() -> None:
    assert rules.long_modules(module(lines(500))) == []
    assert len(rules.long_modules(module(lines(501)))) == 1
    assert rules.long_modules(module(lines(700), "tests/unit/test_x.py")) == []
    assert len(rules.long_modules(module(lines(701), "tests/unit/test_x.py"))) == 1


def test_a_long_function_is_found_and_its_docstring_is_free() -> None:
    docstring = '    """' + "words\n" * 30 + '    """\n'
    assert rules.long_functions(module("def f():\n" + docstring + lines(70, "    "))) == []
    found = rules.long_functions(module("class A:\n  def f(self):\n" + lines(71, "    ")))
    assert [item.key for item in found] == ["src/noetl/engine/sample.py::A.f"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("def f(a, b, c, d, e, f, g): ...", 0),
        ("def f(a, b, *, c, d, e, f, g, h): ...", 1),
        ("class A:\n    def f(self, a, b, c, d, e, f, g): ...", 0),
        ("class A:\n    @classmethod\n    def f(cls, a, b, c, d, e, f, g): ...", 0),
        ("class A:\n    @staticmethod\n    def f(a, b, c, d, e, f, g, h): ...", 1),
        ("async def f(a, /, b, *rest, c, d, e, f, g, h, **more): ...", 1),
    ],
)
def test_too_many_parameters_are_found(text: str, count: int) -> None:
    assert len(rules.many_parameters(module(text))) == count


def with_methods(count: int, base: str = "object") -> str:
    body = "".join(f"    def m{number}(self): ...\n" for number in range(count))
    return f"class A({base}):\n{body}    def _own(self): ...\n"


def test_a_class_with_too_many_public_methods_is_found() -> None:
    assert rules.wide_classes(module(with_methods(12))) == []
    assert len(rules.wide_classes(module(with_methods(13)))) == 1


def test_a_port_with_too_many_methods_is_found() -> None:
    path = "src/noetl/ports/ledger.py"
    assert rules.wide_ports(module(with_methods(8, "Protocol"), path)) == []
    assert len(rules.wide_ports(module(with_methods(9, "Protocol"), path))) == 1
    assert len(rules.wide_ports(module(with_methods(9, "typing.Protocol[T]"), path))) == 1
    assert rules.wide_ports(module(with_methods(9, "Protocol"))) == []


def test_deep_nesting_is_found_and_elif_does_not_count() -> None:
    four = "def f():\n if a:\n  for b in c:\n   while d:\n    with e:\n     pass\n"
    five = four.replace("     pass\n", "     try:\n      pass\n     finally:\n      x()\n")
    chain = "def f():\n if a: x\n elif b: x\n elif c: x\n elif d: x\n elif e: x\n else: x\n"
    assert rules.deep_functions(module(four)) == []
    assert len(rules.deep_functions(module(five))) == 1
    assert rules.deep_functions(module(chain)) == []


def test_a_package_with_too_many_modules_is_found() -> None:
    files = [module("", f"src/noetl/engine/m{number}.py") for number in range(12)]
    own = module("", "src/noetl/engine/__init__.py")
    assert rules.wide_packages([*files, own]) == []
    found = rules.wide_packages([*files, own, module("", "src/noetl/engine/m12.py")])
    assert [item.key for item in found] == ["src/noetl/engine/"]
