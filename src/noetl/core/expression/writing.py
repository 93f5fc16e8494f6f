"""Writes an expression tree back as source, in one canonical spelling: equal trees give equal text.

Brackets are written only where the grammar needs them, so what was readable by the parser stays readable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noetl.core.expression.analysis import nodes

# How tightly a construct binds, weakest first, as in Jinja's parser.
_CONDITIONAL, _OR, _AND, _NOT, _COMPARE, _ADD, _CONCAT, _MULTIPLY, _POWER, _UNARY, _FILTER, _PRIMARY = range(12)

_COMPARISONS = {
    "eq": "==",
    "ne": "!=",
    "gt": ">",
    "gteq": ">=",
    "lt": "<",
    "lteq": "<=",
    "in": "in",
    "notin": "not in",
}
_BINARY = {
    nodes.Or: _OR,
    nodes.And: _AND,
    nodes.Add: _ADD,
    nodes.Sub: _ADD,
    nodes.Mul: _MULTIPLY,
    nodes.Div: _MULTIPLY,
    nodes.FloorDiv: _MULTIPLY,
    nodes.Mod: _MULTIPLY,
    nodes.Pow: _POWER,
}


def write(node: nodes.Node) -> str:
    """The canonical source of an expression, without `{{ }}`."""
    return _write(node, _CONDITIONAL)


def _write(node: nodes.Node | None, needed: int) -> str:
    """The source of a node where the grammar wants something that binds at least as tightly as `needed`."""
    if isinstance(node, nodes.BinExpr):
        level, text = _binary(node)
    else:
        level, text = _WRITERS[type(node)](node)
    return f"({text})" if level < needed else text


def _binary(node: nodes.BinExpr) -> tuple[int, str]:
    level = _BINARY[type(node)]
    return level, f"{_write(node.left, level)} {node.operator} {_write(node.right, level + 1)}"


def _constant(node: nodes.Const) -> tuple[int, str]:
    value = node.value
    if value is None or isinstance(value, bool):
        return _PRIMARY, str(value).lower()
    if isinstance(value, str):
        return _PRIMARY, _quoted(value)
    return _PRIMARY, repr(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + "".join(char if char >= " " else f"\\x{ord(char):02x}" for char in escaped) + "'"


def _name(node: nodes.Name) -> tuple[int, str]:
    return _PRIMARY, node.name


def _subject(node: nodes.Node) -> str:
    text = _write(node, _PRIMARY)
    return f"({text})" if isinstance(node, nodes.Const) else text


def _getattr(node: nodes.Getattr) -> tuple[int, str]:
    return _PRIMARY, f"{_subject(node.node)}.{node.attr}"


def _getitem(node: nodes.Getitem) -> tuple[int, str]:
    subject, key = _subject(node.node), node.arg
    if isinstance(key, nodes.Const) and isinstance(key.value, str) and _is_plain_name(key.value):
        return _PRIMARY, f"{subject}.{key.value}"
    return _PRIMARY, f"{subject}[{_write(key, _CONDITIONAL)}]"


def _is_plain_name(text: str) -> bool:
    return text.isascii() and text.isidentifier()


def _slice(node: nodes.Slice) -> tuple[int, str]:
    bounds = [node.start, node.stop] if node.step is None else [node.start, node.stop, node.step]
    return _PRIMARY, ":".join("" if bound is None else _write(bound, _CONDITIONAL) for bound in bounds)


def _arguments(node: Any) -> str:
    parts = [_write(arg, _CONDITIONAL) for arg in node.args]
    parts += [f"{pair.key}={_write(pair.value, _CONDITIONAL)}" for pair in node.kwargs]
    parts += [f"*{_write(node.dyn_args, _CONDITIONAL)}"] if node.dyn_args is not None else []
    parts += [f"**{_write(node.dyn_kwargs, _CONDITIONAL)}"] if node.dyn_kwargs is not None else []
    return f"({', '.join(parts)})" if parts else ""


def _filter(node: nodes.Filter) -> tuple[int, str]:
    return _FILTER, f"{_write(node.node, _FILTER)}|{node.name}{_arguments(node)}"


def _test(node: nodes.Test) -> tuple[int, str]:
    # A word after a test without brackets would be read as its argument, so a test never stands open.
    return _CONDITIONAL, f"{_write(node.node, _FILTER)} is {node.name}{_arguments(node)}"


def _call(node: nodes.Call) -> tuple[int, str]:
    return _PRIMARY, f"{_write(node.node, _PRIMARY)}{_arguments(node) or '()'}"


def _not(node: nodes.Not) -> tuple[int, str]:
    return _NOT, f"not {_write(node.node, _NOT)}"


def _sign(node: nodes.Neg | nodes.Pos) -> tuple[int, str]:
    inner = node.node
    text = _write(inner, _UNARY if isinstance(inner, nodes.Neg | nodes.Pos) else _PRIMARY)
    return _UNARY, f"{node.operator} {text}"


def _concat(node: nodes.Concat) -> tuple[int, str]:
    return _CONCAT, " ~ ".join(_write(part, _MULTIPLY) for part in node.nodes)


def _compare(node: nodes.Compare) -> tuple[int, str]:
    rest = [f" {_COMPARISONS[operand.op]} {_write(operand.expr, _ADD)}" for operand in node.ops]
    return _COMPARE, _write(node.expr, _ADD) + "".join(rest)


def _conditional(node: nodes.CondExpr) -> tuple[int, str]:
    text = f"{_write(node.expr1, _OR)} if {_write(node.test, _OR)}"
    return _CONDITIONAL, text if node.expr2 is None else f"{text} else {_write(node.expr2, _CONDITIONAL)}"


def _list(node: nodes.List) -> tuple[int, str]:
    return _PRIMARY, f"[{', '.join(_write(item, _CONDITIONAL) for item in node.items)}]"


def _tuple(node: nodes.Tuple) -> tuple[int, str]:
    items = [_write(item, _CONDITIONAL) for item in node.items]
    return _PRIMARY, f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _dict(node: nodes.Dict) -> tuple[int, str]:
    pairs = [f"{_write(pair.key, _CONDITIONAL)}: {_write(pair.value, _CONDITIONAL)}" for pair in node.items]
    return _PRIMARY, "{" + ", ".join(pairs) + "}"


_WRITERS: dict[type, Callable[..., tuple[int, str]]] = {
    nodes.Call: _call,
    nodes.Compare: _compare,
    nodes.Concat: _concat,
    nodes.CondExpr: _conditional,
    nodes.Const: _constant,
    nodes.Dict: _dict,
    nodes.Filter: _filter,
    nodes.Getattr: _getattr,
    nodes.Getitem: _getitem,
    nodes.List: _list,
    nodes.Name: _name,
    nodes.Neg: _sign,
    nodes.Not: _not,
    nodes.Pos: _sign,
    nodes.Slice: _slice,
    nodes.Test: _test,
    nodes.Tuple: _tuple,
}
