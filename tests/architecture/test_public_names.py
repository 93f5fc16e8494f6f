"""What the package shows to its users."""

from __future__ import annotations

import ast
from types import ModuleType

import noetl
from tests.architecture.rules.source import ROOT, Module, module, product


def missing_and_unlisted(package: ModuleType) -> tuple[set[str], set[str]]:
    """Listed names that do not exist, and public names that are not listed.  Submodules are no names."""
    listed = set(package.__all__)
    public = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }
    return {name for name in listed if not hasattr(package, name)}, public - listed


def without_docstring(sources: tuple[Module, ...] | list[Module]) -> list[str]:
    """Modules that do not say what they own.  An empty `__init__.py` owns nothing."""
    return [source.path for source in sources if source.tree.body and ast.get_docstring(source.tree) is None]


def test_the_listed_names_are_the_public_names() -> None:
    assert missing_and_unlisted(noetl) == (set(), set())
    assert len(noetl.__all__) == len(set(noetl.__all__))


def test_every_module_says_what_it_owns() -> None:
    assert without_docstring(product()) == []


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "src/noetl/py.typed").is_file()


# --- the rules can fail ----------------------------------------------------------------------------------


def test_a_missing_and_an_unlisted_name_are_found() -> None:
    package = ModuleType("package")
    vars(package).update({"__all__": ["run", "gone"], "run": print, "stray": print, "json": ast})
    assert missing_and_unlisted(package) == ({"gone"}, {"stray"})


def test_a_module_without_docstring_is_found() -> None:
    assert without_docstring([module("x = 1"), module(""), module('"""Owns x."""\nx = 1')]) == [
        "src/noetl/engine/sample.py"
    ]
