"""What can be known about a template without evaluating it: is it allowed, and what does it read.

Works on Jinja's syntax tree and evaluates nothing.  A tree may contain only the node types listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from math import isfinite
from typing import Any
from unicodedata import normalize

from jinja2 import nodes

from noetl.core.errors import TemplateInvalid, TemplateRefused
from noetl.core.expression.data_filters import FILTERS, TESTS
from noetl.core.expression.sandbox import BUILTINS, Sandbox, refuse_call
from noetl.core.limits import TEMPLATE_INTEGER_BITS_MAX, TEMPLATE_NODES_MAX

__all__ = [
    "SANDBOX",
    "Facts",
    "check",
    "children_of",
    "guarded_paths",
    "nodes",
    "parse",
    "parse_expression",
    "path_in",
]

SANDBOX = Sandbox()
NESTING_MAX = 50
"""Levels of a tree; Python's own parser allows 200 brackets, and a level needs at most three.  An operand of
a chain such as `a + b + c` is half a level: it costs stack while compiling, but no bracket."""

Path = tuple[str | int, ...]

_LOOPING = (nodes.For, nodes.Macro, nodes.CallBlock)
_STATEMENTS = (
    nodes.Template,
    nodes.Output,
    nodes.If,
    nodes.Assign,
    nodes.AssignBlock,
    nodes.With,
    nodes.FilterBlock,
    *_LOOPING,
)
_EXPRESSIONS = (
    nodes.BinExpr,
    nodes.Call,
    nodes.Compare,
    nodes.Concat,
    nodes.CondExpr,
    nodes.Const,
    nodes.Dict,
    nodes.Filter,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Keyword,
    nodes.List,
    nodes.NSRef,
    nodes.Name,
    nodes.Operand,
    nodes.Pair,
    nodes.Slice,
    nodes.TemplateData,
    nodes.Test,
    nodes.Tuple,
    nodes.UnaryExpr,
)


# What is made of these alone compiles, whatever it is; a slice does not everywhere, statements may not.
_ALWAYS_COMPILES = (
    nodes.Template,
    nodes.Output,
    *(kind for kind in _EXPRESSIONS if kind not in (nodes.NSRef, nodes.Slice)),
)
LINKS = (nodes.Getattr, nodes.Getitem)
PATH_NODES = (nodes.Name, *LINKS)
_LEAVES = frozenset({"attr", "ctx", "data", "name", "op"})
"""Fields of nodes that never hold nodes."""


@dataclass(slots=True)
class Facts:
    """What the check of a tree found out.  `names` are read or bound in it, `mentions` are the paths it reads, as far
    as they are static, and `calls` the functions.  `always_compiles`: its code can be made later, nothing can go
    wrong then."""

    names: set[str] = field(default_factory=set)
    mentions: set[tuple[str, ...]] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    tokens: set[str | None] = field(default_factory=set)
    """The names that `token()` is called with; None for one that only the evaluation knows."""
    needs_child: bool = False
    uses_random: bool = False
    always_compiles: bool = True


def parse(source: str) -> nodes.Template:
    """The syntax tree of a template; TemplateInvalid names the line."""
    return SANDBOX.parse_source(source)


def parse_expression(source: str) -> nodes.Expr:
    """The syntax tree of a single expression, written with or without `{{ }}`."""
    tree = parse(source if "{{" in source else "{{ " + source + " }}")
    check(tree)
    expression = sole_expression(tree)
    if expression is None:
        raise TemplateInvalid("line 1: one expression is expected")
    return expression


def sole_expression(tree: nodes.Template) -> nodes.Expr | None:
    """The expression of a template that is one expression with only white space around it."""
    if len(tree.body) != 1 or not isinstance(tree.body[0], nodes.Output):
        return None
    printed = [part for part in tree.body[0].nodes if not _is_space(part)]
    if len(printed) != 1 or isinstance(printed[0], nodes.TemplateData):
        return None
    return printed[0]


def _is_space(node: nodes.Expr) -> bool:
    return isinstance(node, nodes.TemplateData) and not node.data.strip()


def check(tree: nodes.Node, depth: float = 0) -> Facts:
    """Refuse everything that is not known to be harmless, and bound size and nesting; `depth` is that of the tree."""
    facts = Facts()
    stack: list[tuple[nodes.Node, float]] = [(tree, depth)]
    count = 0
    while stack:
        node, depth = stack.pop()
        if type(node) in _PATH_KINDS:
            node, depth, links = _check_path(node, depth, facts, stack)
            count += links
        count += 1
        if count > TEMPLATE_NODES_MAX:
            raise TemplateInvalid(f"the template has more than {TEMPLATE_NODES_MAX:,} parts")
        if depth > NESTING_MAX:
            raise TemplateInvalid(f"line {node.lineno}: the template is nested too deeply, over {NESTING_MAX} levels")
        kind = type(node)
        inspect = _INSPECTIONS.get(kind, _refuse)
        if inspect is not None:
            inspect(node, facts)
        if kind in _BINARY_KINDS:
            left: nodes.Node = node.left  # type: ignore[attr-defined]
            stack.append((left, depth + (0.5 if _chains(node, left) else 1)))
            stack.append((node.right, depth + 1))  # type: ignore[attr-defined]
        elif _INNER[kind]:
            stack += [(child, depth + 1) for child in children_of(node)]
    _check_calls(tree, facts)
    return facts


def _check_path(
    node: Any, depth: float, facts: Facts, stack: list[tuple[nodes.Node, float]]
) -> tuple[nodes.Node, float, int]:
    """Note what a path mentions and check its links; the node that it starts from, how deep that is, the links."""
    keys: list[object] = []
    while True:
        if type(node) is nodes.Getattr:
            _attribute(node)
            keys.append(node.attr)
        elif type(node) is nodes.Getitem:
            stack.append((node.arg, depth + 1))
            keys.append(_constant(node.arg))
        else:
            break
        node = node.node
        depth += 1
    if type(node) is nodes.Name and node.ctx == "load":
        facts.mentions.add((node.name, *map(str, takewhile(_is_key, reversed(keys)))))
    return node, depth, len(keys)


def _is_key(key: object) -> bool:
    return type(key) is str or type(key) is int


def children_of(node: nodes.Node) -> list[nodes.Node]:
    """The nodes below a node, without the name of a function of the language."""
    inner = _INNER[type(node)]
    if not inner:
        return []
    found: list[nodes.Node] = []
    for name in inner:
        part = getattr(node, name, None)
        if isinstance(part, nodes.Node):
            found.append(part)
        elif isinstance(part, list):
            found += [item for item in part if isinstance(item, nodes.Node)]
    return found[1:] if called_function(node) is not None else found


def walk(tree: nodes.Node) -> Iterator[nodes.Node]:
    """Every node of a tree, without recursion."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack += children_of(node)


def called_function(node: nodes.Node) -> str | None:
    """The function of the language that a node calls."""
    if type(node) is nodes.Call and type(node.node) is nodes.Name and node.node.name in BUILTINS:
        return node.node.name
    return None


def _chains(node: nodes.Node, left: nodes.Node) -> bool:
    logic = (nodes.And, nodes.Or)
    if isinstance(node, logic):
        return type(node) is type(left)
    return isinstance(left, nodes.BinExpr) and not isinstance(left, logic)


def _refuse(node: nodes.Node, _: Facts) -> None:
    raise TemplateRefused(f"line {node.lineno}: '{type(node).__name__.lower()}' is not available")


def _statement(_: nodes.Node, facts: Facts) -> None:
    facts.always_compiles = False


def _looping(node: nodes.Node, facts: Facts) -> None:
    facts.needs_child = True
    facts.always_compiles = False
    if isinstance(node, nodes.For) and node.recursive:
        raise TemplateRefused(f"line {node.lineno}: recursive loops are not available")
    if isinstance(node, nodes.Macro) and node.name in BUILTINS:
        raise TemplateRefused(f"line {node.lineno}: the name {node.name!r} is reserved")


def _attribute(node: nodes.Getattr) -> None:
    """Evaluation would find nothing behind such a name; saying so at once tells the author where.  A key of data that
    looks like this is read as `data['__key__']`."""
    if node.attr.startswith("__") and node.attr.endswith("__"):
        raise TemplateRefused(
            f"line {node.lineno}: {node.attr!r} is not available, templates see data and no Python objects"
        )


def _name(node: nodes.Name | nodes.NSRef, facts: Facts) -> None:
    # Python folds compatibility forms of identifiers, so two different names could become one variable.
    if not node.name.isascii() and normalize("NFKC", node.name) != node.name:
        raise TemplateInvalid(f"line {node.lineno}: {node.name!r} is no name")
    if node.name == "self" or (isinstance(node, nodes.Name) and node.ctx != "load" and node.name in BUILTINS):
        raise TemplateRefused(f"line {node.lineno}: the name {node.name!r} is reserved")
    facts.names.add(node.name)


def _number(node: nodes.Const, _: Facts) -> None:
    value = node.value
    too_big = isinstance(value, int) and value.bit_length() > TEMPLATE_INTEGER_BITS_MAX
    if too_big or (isinstance(value, float) and not isfinite(value)):
        limit = f"{TEMPLATE_INTEGER_BITS_MAX:,} bits at most"
        raise TemplateInvalid(f"line {node.lineno}: the number is out of range, {limit}")


def _filter(node: nodes.Filter, facts: Facts) -> None:
    if node.name not in FILTERS:
        raise TemplateInvalid(f"line {node.lineno}: no filter named {node.name!r}")
    if node.name == "random" or (node.name == "map" and _may_name_random(node)):
        facts.uses_random = True
    _keywords(node, facts)


def _may_name_random(node: nodes.Filter) -> bool:
    if not node.args:
        return node.dyn_args is not None
    return _constant(node.args[0]) in (None, "random")


def _test(node: nodes.Test, facts: Facts) -> None:
    if node.name not in TESTS:
        raise TemplateInvalid(f"line {node.lineno}: no test named {node.name!r}")
    _keywords(node, facts)


def _keywords(node: nodes.Filter | nodes.Test | nodes.Call, facts: Facts) -> None:
    """A keyword that is given twice is an error of the code that is made."""
    if len(node.kwargs) > 1:
        facts.always_compiles = False


def _call(node: nodes.Call, facts: Facts) -> None:
    callee = node.node
    if isinstance(callee, nodes.Getattr):
        hint = f"; use the filter '| {callee.attr}'" if callee.attr in FILTERS else ""
        raise TemplateRefused(f"line {node.lineno}: methods such as '.{callee.attr}()' are not available{hint}")
    if not isinstance(callee, nodes.Name):
        refuse_call(f"line {node.lineno}: a value")
    facts.calls.add(callee.name)
    if callee.name == "token":
        name = _constant(node.args[0]) if node.args else None
        facts.tokens.add(name if isinstance(name, str) else None)
    _keywords(node, facts)


def _check_calls(tree: nodes.Node, facts: Facts) -> None:
    """What is called is a function of the language, or a macro of this template."""
    if facts.calls - BUILTINS:
        macros = {macro.name for macro in walk(tree) if isinstance(macro, nodes.Macro)} | {"caller"}
        for node in walk(tree):
            if isinstance(node, nodes.Call) and node.node.name not in BUILTINS | macros:  # type: ignore[attr-defined]
                refuse_call(f"line {node.lineno}: {node.node.name!r}")  # type: ignore[attr-defined]
    if "namespace" in facts.calls and not facts.needs_child:
        raise TemplateRefused("namespace() is available in templates with loops only")


def _inspection_of(kind: type[nodes.Node]) -> Callable[[Any, Facts], None] | None:
    own: dict[type, Callable[[Any, Facts], None]] = {
        nodes.Name: _name,
        nodes.NSRef: _name,
        nodes.Const: _number,
        nodes.Filter: _filter,
        nodes.Test: _test,
        nodes.Call: _call,
    }
    if kind in own:
        return own[kind]
    if issubclass(kind, _LOOPING):
        return _looping
    return None if issubclass(kind, _ALWAYS_COMPILES) else _statement


# By exact type, made once: looking through long tuples of types was half the cost of a check.
_KINDS: list[type[nodes.Node]] = [
    kind for kind in vars(nodes).values() if isinstance(kind, type) and issubclass(kind, nodes.Node)
]
_AVAILABLE = (*_STATEMENTS, *_EXPRESSIONS)
_INSPECTIONS: dict[type[nodes.Node], Callable[[Any, Facts], None] | None] = {
    kind: _inspection_of(kind) for kind in _KINDS if issubclass(kind, _AVAILABLE)
}
_PATH_KINDS = frozenset(PATH_NODES)
_BINARY_KINDS = frozenset(kind for kind in _KINDS if issubclass(kind, nodes.BinExpr))
_INNER = {kind: tuple(name for name in kind.fields if name not in _LEAVES) for kind in _KINDS}


def path_in(node: nodes.Node) -> tuple[str, Path, bool] | None:
    """Root, keys and completeness of a path; None when it does not start at a name.

    `a.b[0]` is complete; `a.b[i].c` is `a.b`, not complete.
    """
    links: list[nodes.Getattr | nodes.Getitem] = []
    while isinstance(node, LINKS):
        links.append(node)
        node = node.node
    if not isinstance(node, nodes.Name) or node.ctx != "load":
        return None
    keys: list[str | int] = []
    for link in reversed(links):
        key = link.attr if isinstance(link, nodes.Getattr) else _constant(link.arg)
        if type(key) is not str and type(key) is not int:
            return node.name, tuple(keys), False
        keys.append(key)
    return node.name, tuple(keys), True


def _constant(node: nodes.Expr) -> object:
    if isinstance(node, nodes.Neg):
        value = _constant(node.node)
        return -value if type(value) is int else None
    return node.value if isinstance(node, nodes.Const) else None


def guarded_paths(tree: nodes.Node) -> frozenset[tuple[str, ...]]:
    """The paths that a tree asks about before it relies on them: `x is defined`, `x | default(1)`, `x or y`, or a test
    of its truth.  Whoever asks knows that there may be nothing."""
    found: set[tuple[str, ...]] = set()
    for node in walk(tree):
        for asked in _asked(node):
            path = path_in(_unfiltered(asked))
            if path is not None:
                found.add((path[0], *map(str, path[1])))
    return frozenset(found)


def _unfiltered(node: nodes.Node) -> nodes.Node:
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    return node


def _asked(node: nodes.Node) -> list[nodes.Node]:
    if isinstance(node, nodes.Test) and node.name in ("defined", "undefined", "none"):
        return [node.node]
    if isinstance(node, nodes.Filter) and node.name in ("default", "d") and node.node is not None:
        return [node.node]
    if isinstance(node, nodes.And | nodes.Or):
        return [node.left, *([node.right] if isinstance(node, nodes.And) else [])]
    if isinstance(node, nodes.Not):
        return [node.node]
    return [node.test] if isinstance(node, nodes.CondExpr | nodes.If) else []
