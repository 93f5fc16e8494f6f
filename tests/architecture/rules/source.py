"""Source files as data, findings about them, and the one way to excuse a finding."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One broken rule.  `key` is what an allow-list names: a path, or a path and a place in it."""

    rule: str
    key: str
    line: int
    message: str

    @property
    def path(self) -> str:
        return self.key.split("::")[0]

    def __str__(self) -> str:
        return f"{self.key} (line {self.line}): {self.message} [{self.rule}]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Module:
    """One Python file: its dotted name, its path below the root of the repository, its syntax tree."""

    name: str
    path: str
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]


def module(text: str, path: str = "src/noetl/engine/sample.py") -> Module:
    """Make a module from text; tests of the rules use it for their bad examples."""
    parts = path.removeprefix("src/").removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return Module(name=".".join(parts), path=path, text=text, tree=ast.parse(text, filename=path))


@cache
def modules(folder: str) -> tuple[Module, ...]:
    """Every Python file below a folder of the repository."""
    files = sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)
    return tuple(module(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()) for path in files)


def product() -> tuple[Module, ...]:
    return modules("src/noetl")


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def is_under(path: str, folders: Iterable[str]) -> bool:
    """Is the file one of these files, or inside one of these folders (which end in a slash)?"""
    return any(path == folder or (folder.endswith("/") and path.startswith(folder)) for folder in folders)


def unexcused(findings: Iterable[Finding], reasons: Mapping[str, str]) -> list[str]:
    """Findings without a reason.  A reason stands for a place, or for a whole file."""
    return [str(item) for item in findings if item.key not in reasons and item.path not in reasons]


def stale(findings: Iterable[Finding], reasons: Mapping[str, str]) -> list[str]:
    """Excuses that excuse nothing any more, or that give no reason."""
    used = {name for item in findings for name in (item.key, item.path)}
    return [key for key, reason in reasons.items() if key not in used or not reason.strip()]


def expect_none(problems: Iterable[object]) -> None:
    """Fail with one line per problem."""
    text = "\n".join(map(str, problems))
    if text:
        pytest.fail(text, pytrace=False)


# --- names -----------------------------------------------------------------------------------------------


def absolute(importer: Module, node: ast.ImportFrom) -> str:
    """The module that a `from … import` names, without leading dots."""
    if not node.level:
        return node.module or ""
    parts = importer.package.split(".")
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


@cache
def aliases(source: Module) -> dict[str, str]:
    """What each imported name stands for: `dt` for `datetime`, `now` for `datetime.datetime.now`."""
    found: dict[str, str] = {}
    for node in nodes(source):
        if isinstance(node, ast.Import):
            for name in node.names:
                found[name.asname or name.name.split(".")[0]] = name.name if name.asname else name.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                found[name.asname or name.name] = f"{absolute(source, node)}.{name.name}"
    return found


@cache
def nodes(source: Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(source.tree))


def dotted(source: Module, node: ast.AST) -> str:
    """The full name of an expression such as `dt.datetime.now`, or an empty string."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(aliases(source).get(node.id, node.id))
    return ".".join(reversed(parts))


def calls(source: Module) -> Iterator[tuple[ast.Call, str]]:
    for node in nodes(source):
        if isinstance(node, ast.Call):
            yield node, dotted(source, node.func)


# --- places ----------------------------------------------------------------------------------------------

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def places(source: Module) -> dict[ast.AST, str]:
    """For each node the definition around it, as `Class.method`; an empty string at module level."""
    found: dict[ast.AST, str] = {}

    def visit(node: ast.AST, place: str) -> None:
        for child in ast.iter_child_nodes(node):
            found[child] = place
            inner = place
            if isinstance(child, Scope):
                inner = f"{place}.{child.name}" if place else child.name
            visit(child, inner)

    visit(source.tree, "")
    return found


def key(source: Module, node: ast.AST) -> str:
    """The path and the definition that holds the node, for example `src/noetl/x.py::Writer.run`."""
    place = places(source).get(node, "")
    return f"{source.path}::{place}" if place else source.path


def finding(rule: str, source: Module, node: ast.AST, message: str) -> Finding:
    return Finding(rule=rule, key=key(source, node), line=getattr(node, "lineno", 1), message=message)
