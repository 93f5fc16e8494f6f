"""How big a thing may become."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable

from .source import Finding, Module, finding, nodes, places

MODULE_LINES_MAX = 500
TEST_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 7
PUBLIC_METHODS_MAX = 12
PORT_METHODS_MAX = 8
PACKAGE_MODULES_MAX = 12
DEPTH_MAX = 4

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.TryStar,
    ast.Match,
)


def _named(rule: str, source: Module, node: Function | ast.ClassDef, message: str) -> Finding:
    place = places(source)[node]
    name = f"{place}.{node.name}" if place else node.name
    return Finding(rule=rule, key=f"{source.path}::{name}", line=node.lineno, message=message)


def functions(source: Module) -> list[Function]:
    return [node for node in nodes(source) if isinstance(node, Function)]


def classes(source: Module) -> list[ast.ClassDef]:
    return [node for node in nodes(source) if isinstance(node, ast.ClassDef)]


def long_modules(source: Module) -> list[Finding]:
    limit = TEST_LINES_MAX if source.path.startswith("tests/") else MODULE_LINES_MAX
    count = len(source.text.splitlines())
    if count <= limit:
        return []
    return [finding("module size", source, source.tree, f"{count} lines, at most {limit}")]


def body_lines(function: Function) -> int:
    """Lines from the first statement behind the docstring to the last one."""
    body = function.body
    if ast.get_docstring(function, clean=False) is not None:
        body = body[1:]
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def long_functions(source: Module) -> list[Finding]:
    return [
        _named("function size", source, node, f"a body of {body_lines(node)} lines, at most {FUNCTION_LINES_MAX}")
        for node in functions(source)
        if body_lines(node) > FUNCTION_LINES_MAX
    ]


def parameters(function: Function, *, is_method: bool) -> list[str]:
    """Every named parameter, keyword-only ones too; neither `self` nor `cls`."""
    spec = function.args
    positional = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
    decorators = {getattr(item, "id", "") for item in function.decorator_list}
    if is_method and "staticmethod" not in decorators:
        positional = positional[1:]
    return positional + [argument.arg for argument in spec.kwonlyargs]


def many_parameters(source: Module) -> list[Finding]:
    methods = {item for node in classes(source) for item in node.body}
    found = []
    for node in functions(source):
        count = len(parameters(node, is_method=node in methods))
        if count > PARAMETERS_MAX:
            found.append(_named("parameters", source, node, f"{count} parameters, at most {PARAMETERS_MAX}"))
    return found


def _methods(node: ast.ClassDef) -> set[str]:
    """Names, so that overloads and property setters count once."""
    return {item.name for item in node.body if isinstance(item, Function)}


def wide_classes(source: Module) -> list[Finding]:
    found = []
    for node in classes(source):
        count = sum(not name.startswith("_") for name in _methods(node))
        if count > PUBLIC_METHODS_MAX:
            message = f"{count} public methods, at most {PUBLIC_METHODS_MAX}"
            found.append(_named("public methods", source, node, message))
    return found


def _is_protocol(node: ast.ClassDef) -> bool:
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return any(getattr(base, "id", getattr(base, "attr", "")) == "Protocol" for base in bases)


def wide_ports(source: Module) -> list[Finding]:
    if not source.path.startswith("src/noetl/ports/"):
        return []
    found = []
    for node in filter(_is_protocol, classes(source)):
        count = sum(not name.startswith("_") for name in _methods(node))
        if count > PORT_METHODS_MAX:
            message = f"a port with {count} methods, at most {PORT_METHODS_MAX}"
            found.append(_named("port methods", source, node, message))
    return found


def depth(node: ast.AST) -> int:
    """How deep control blocks stand in each other.

    An `elif` stands beside its `if`, and a nested function starts anew.
    """
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef | ast.Lambda):
            continue
        is_elif = isinstance(node, ast.If) and [child] == node.orelse and isinstance(child, ast.If)
        deepest = max(deepest, depth(child) + (isinstance(child, BLOCKS) and not is_elif))
    return deepest


def deep_functions(source: Module) -> list[Finding]:
    return [
        _named("nesting", source, node, f"blocks {depth(node)} deep, at most {DEPTH_MAX}")
        for node in functions(source)
        if depth(node) > DEPTH_MAX
    ]


def wide_packages(sources: Iterable[Module]) -> list[Finding]:
    counts = Counter(source.path.rpartition("/")[0] for source in sources if not source.is_package)
    message = f"modules in one package, at most {PACKAGE_MODULES_MAX}"
    return [
        Finding(rule="package size", key=f"{folder}/", line=1, message=f"{count} {message}")
        for folder, count in sorted(counts.items())
        if count > PACKAGE_MODULES_MAX
    ]
