"""What can be known about a template without evaluating it: is it allowed, and what does it read.

Works on Jinja's syntax tree and evaluates nothing.  A tree may contain only the node types listed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
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
    "mentions_of",
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


@dataclass(slots=True)
class Facts:
    """What the check of a tree found out.  `builtin_calls` are the calls of functions of the language."""

    builtin_calls: list[nodes.Call]
    needs_child: bool = False
    uses_now: bool = False
    uses_random: bool = False
    uses_namespace: bool = False


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


def check(tree: nodes.Node) -> Facts:
    """Refuse everything that is not known to be harmless, and bound size and nesting."""
    facts = Facts([])
    macros = {macro.name for macro in walk(tree) if isinstance(macro, nodes.Macro)} | {"caller"}
    stack: list[tuple[nodes.Node, float]] = [(tree, 0)]
    count = 0
    while stack:
        node, depth = stack.pop()
        count += 1
        if count > TEMPLATE_NODES_MAX:
            raise TemplateInvalid(f"a template must have at most {TEMPLATE_NODES_MAX:,} parts")
        if depth > NESTING_MAX:
            raise TemplateInvalid(f"line {node.lineno}: the template is nested too deeply")
        _check_node(node, facts, macros)
        for child in children_of(node):
            chained = isinstance(node, nodes.BinExpr) and child is node.left and _chains(node, child)
            stack.append((child, depth + (0.5 if chained else 1)))
    if facts.uses_namespace and not facts.needs_child:
        raise TemplateRefused("namespace() is available in templates with loops only")
    return facts


def children_of(node: nodes.Node) -> Iterator[nodes.Node]:
    """The nodes below a node, without the name of a function of the language."""
    for child in node.iter_child_nodes():
        called = isinstance(node, nodes.Call) and child is node.node
        if not (called and isinstance(child, nodes.Name) and child.name in BUILTINS):
            yield child


def walk(tree: nodes.Node) -> Iterator[nodes.Node]:
    """Every node of a tree, without recursion."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.iter_child_nodes())


def _chains(node: nodes.BinExpr, left: nodes.Node) -> bool:
    logic = (nodes.And, nodes.Or)
    if isinstance(node, logic):
        return type(node) is type(left)
    return isinstance(left, nodes.BinExpr) and not isinstance(left, logic)


def _check_node(node: nodes.Node, facts: Facts, macros: set[str]) -> None:
    if not isinstance(node, _STATEMENTS + _EXPRESSIONS):
        raise TemplateRefused(f"line {node.lineno}: '{type(node).__name__.lower()}' is not available")
    if isinstance(node, _LOOPING):
        facts.needs_child = True
        if isinstance(node, nodes.For) and node.recursive:
            raise TemplateRefused(f"line {node.lineno}: recursive loops are not available")
        if isinstance(node, nodes.Macro) and node.name in BUILTINS:
            raise TemplateRefused(f"line {node.lineno}: the name {node.name!r} is reserved")
    elif isinstance(node, nodes.Name | nodes.NSRef):
        _check_name(node)
    elif isinstance(node, nodes.Const):
        _check_constant(node)
    elif isinstance(node, nodes.Filter):
        _check_filter(node, facts)
    elif isinstance(node, nodes.Test) and node.name not in TESTS:
        raise TemplateInvalid(f"line {node.lineno}: no test named {node.name!r}")
    elif isinstance(node, nodes.Call):
        _check_call(node, facts, macros)
    elif isinstance(node, nodes.Getattr):
        _check_attribute(node)


def _check_attribute(node: nodes.Getattr) -> None:
    """Evaluation would find nothing behind such a name; saying so at once tells the author where.  A key of data that
    looks like this is read as `data['__key__']`."""
    if node.attr.startswith("__") and node.attr.endswith("__"):
        raise TemplateRefused(
            f"line {node.lineno}: {node.attr!r} is not available, templates see data and no Python objects"
        )


def _check_name(node: nodes.Name | nodes.NSRef) -> None:
    # Python folds compatibility forms of identifiers, so two different names could become one variable.
    if normalize("NFKC", node.name) != node.name:
        raise TemplateInvalid(f"line {node.lineno}: {node.name!r} is no name")
    if node.name == "self" or (isinstance(node, nodes.Name) and node.ctx != "load" and node.name in BUILTINS):
        raise TemplateRefused(f"line {node.lineno}: the name {node.name!r} is reserved")


def _check_constant(node: nodes.Const) -> None:
    value = node.value
    too_big = isinstance(value, int) and value.bit_length() > TEMPLATE_INTEGER_BITS_MAX
    if too_big or (isinstance(value, float) and not isfinite(value)):
        raise TemplateInvalid(f"line {node.lineno}: the number is out of range")


def _check_filter(node: nodes.Filter, facts: Facts) -> None:
    if node.name not in FILTERS:
        raise TemplateInvalid(f"line {node.lineno}: no filter named {node.name!r}")
    if node.name == "random" or (node.name == "map" and _may_name_random(node)):
        facts.uses_random = True


def _may_name_random(node: nodes.Filter) -> bool:
    if not node.args:
        return node.dyn_args is not None
    return _constant(node.args[0]) in (None, "random")


def _check_call(node: nodes.Call, facts: Facts, macros: set[str]) -> None:
    callee = node.node
    if isinstance(callee, nodes.Getattr):
        hint = f"; use the filter '| {callee.attr}'" if callee.attr in FILTERS else ""
        raise TemplateRefused(f"line {node.lineno}: methods such as '.{callee.attr}()' are not available{hint}")
    if not isinstance(callee, nodes.Name):
        refuse_call(f"line {node.lineno}: a value")
    if callee.name in BUILTINS:
        facts.builtin_calls.append(node)
        facts.uses_now |= callee.name == "now"
        facts.uses_namespace |= callee.name == "namespace"
    elif callee.name not in macros:
        refuse_call(f"line {node.lineno}: {callee.name!r}")


def path_in(node: nodes.Node) -> tuple[str, Path, bool] | None:
    """Root, keys and completeness of a path; None when it does not start at a name.

    `a.b[0]` is complete; `a.b[i].c` is `a.b`, not complete.
    """
    links: list[nodes.Getattr | nodes.Getitem] = []
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        links.append(node)
        node = node.node
    if not isinstance(node, nodes.Name) or node.ctx != "load":
        return None
    keys: list[str | int] = []
    for link in reversed(links):
        key = link.attr if isinstance(link, nodes.Getattr) else _constant(link.arg)
        if type(key) not in (str, int):
            return node.name, tuple(keys), False
        keys.append(key)  # type: ignore[arg-type]
    return node.name, tuple(keys), True


def _constant(node: nodes.Expr) -> object:
    if isinstance(node, nodes.Neg):
        value = _constant(node.node)
        return -value if type(value) is int else None
    return node.value if isinstance(node, nodes.Const) else None


def mentions_of(tree: nodes.Node, roots: frozenset[str]) -> frozenset[tuple[str, ...]]:
    """Every path that starts at one of `roots`, as far as it is static."""
    found = set()
    stack = [tree]
    while stack:
        node = stack.pop()
        path = path_in(node)
        if path is not None and path[0] in roots:
            found.add((path[0], *map(str, path[1])))
        while path is not None and isinstance(node, nodes.Getattr | nodes.Getitem):
            stack.extend([node.arg] if isinstance(node, nodes.Getitem) else [])
            node = node.node
        if path is None:
            stack.extend(children_of(node))
    return frozenset(found)
