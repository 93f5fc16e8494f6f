"""A quick reader for the plain part of the language: text in one line with simple expressions in `{{ }}`.

Registration is mostly parsing, and most templates are as plain as `{{ load.rows | length > 3 }}`.  What is read here
becomes the very tree that Jinja's parser makes of it, which a test compares; for everything else, and for whatever is
wrong, the answer is None and Jinja's parser has the word.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from jinja2 import nodes

TOKENS_QUICK_MAX = 10_000
NESTED_QUICK_MAX = 16
"""Brackets, negations and alternatives of one expression: reading each is one more call inside another."""

_NOT_PLAIN = re.compile(r"[\r\n\\]|\{\{[-+]|\{[%#]|-\}\}")
# A name or a number must not run into another word: what `1x` or `1_0` mean is for Jinja to say.
_TOKEN = re.compile(
    r"[ \t]*(?:"
    r"(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<integer>(?:0|[1-9][0-9]{0,17})(?![A-Za-z_0-9]|\.[0-9]))"
    r"|(?P<string>'[^'\\]*'|\"[^\"\\]*\")"
    r"|(?P<end>\}\})"
    r"|(?P<operator>==|!=|>=|<=|//(?!/)|\*\*(?!\*)|[-+*/%~<>.,|()\[\]=:])"
    r")"
)
_CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "none": None, "None": None}
_WORDS = frozenset({"and", "or", "not", "in", "is", "if", "else"})
_COMPARISONS = {
    **{"==": "eq", "!=": "ne", ">": "gt", ">=": "gteq", "<": "lt", "<=": "lteq"},
    **{"in": "in", "not": "notin"},
}
_OPERATIONS: dict[str, type[nodes.BinExpr]] = {
    **{"or": nodes.Or, "and": nodes.And},
    **{"+": nodes.Add, "-": nodes.Sub, "*": nodes.Mul, "/": nodes.Div, "//": nodes.FloorDiv, "%": nodes.Mod},
}
# How tightly what stands between two operands binds, weakest first, as in Jinja's parser.
_NEGATING, _COMPARING, _JOINING = 2, 3, 5
_LEVELS = {
    **{"or": 0, "and": 1, "~": _JOINING},
    **dict.fromkeys(_COMPARISONS, _COMPARING),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "//", "%"), 6),
}

# Kinds of tokens beside operators and words, which are their own kind.
_NAME, _INTEGER, _STRING, _END = "name", "integer", "string", "}}"


class _Unknown(Exception):
    """This is not for the quick reader."""


def read_quickly(source: str) -> nodes.Template | None:
    """The tree of a plain template, or None."""
    if "{{" not in source or _NOT_PLAIN.search(source):
        return None
    parts: list[nodes.Expr] = []
    place = 0
    try:
        while (start := source.find("{{", place)) >= 0:
            if start > place:
                parts.append(_made(nodes.TemplateData, data=source[place:start]))
            reading = _Reading(source, start + 2)
            parts.append(reading.whole())
            place = reading.place
    except _Unknown:
        return None
    if place < len(source):
        parts.append(_made(nodes.TemplateData, data=source[place:]))
    return _made(nodes.Template, body=[_made(nodes.Output, nodes=parts)])


N = TypeVar("N", bound=nodes.Node)


def _made(kind: type[N], **fields: Any) -> N:
    """A node as its constructor makes it, without what that spends on checking our arguments."""
    node = kind.__new__(kind)
    fields["lineno"], fields["environment"] = 1, None
    node.__dict__ = fields
    return node


class _Reading:
    """One expression, from behind its `{{`.  Each method reads one level of the grammar, weakest first."""

    __slots__ = ("_at", "_depth", "_kinds", "_texts", "place")

    def __init__(self, source: str, place: int) -> None:
        self._kinds: list[str] = []
        self._texts: list[str] = []
        self._at = 0
        self._depth = 0
        self.place = self._tokens(source, place)

    def _tokens(self, source: str, place: int) -> int:
        kinds, texts, match = self._kinds, self._texts, _TOKEN.match
        while len(kinds) < TOKENS_QUICK_MAX:
            found = match(source, place)
            if found is None:
                raise _Unknown
            kind, place = found.lastgroup, found.end()
            text = found[kind]  # type: ignore[index]
            if kind == "end":
                kinds.append(_END)
                return place
            kinds.append(text if kind == "operator" or text in _WORDS else str(kind))
            texts.append(text)
        raise _Unknown

    def _skip(self, kind: str) -> bool:
        if self._kinds[self._at] == kind:
            self._at += 1
            return True
        return False

    def _expect(self, kind: str) -> str:
        if self._kinds[self._at] != kind:
            raise _Unknown
        self._at += 1
        return self._texts[self._at - 1]

    def _nested(self) -> None:
        self._depth += 1
        if self._depth > NESTED_QUICK_MAX:
            raise _Unknown

    def whole(self) -> nodes.Expr:
        expression = self.conditional()
        if self._kinds[self._at] != _END:
            raise _Unknown
        return expression

    def conditional(self) -> nodes.Expr:
        value = self.either()
        while self._skip("if"):
            self._nested()
            test = self.either()
            other = self.conditional() if self._skip("else") else None
            value = _made(nodes.CondExpr, test=test, expr1=value, expr2=other)
        return value

    def either(self, weakest: int = 0) -> nodes.Expr:
        """Operands and what stands between them, as long as that binds at least as tightly as `weakest`."""
        left = self.negated(weakest)
        while (level := _LEVELS.get(self._kinds[self._at], -1)) >= weakest:
            if level == _COMPARING:
                operands = self.compared()
                if not operands:
                    break
                left = _made(nodes.Compare, expr=left, ops=operands)
            elif level == _JOINING:
                left = self.joined(left)
            else:
                kind = _OPERATIONS[self._kinds[self._at]]
                self._at += 1
                left = _made(kind, left=left, right=self.either(level + 1))
        return left

    def negated(self, weakest: int) -> nodes.Expr:
        if weakest <= _NEGATING and self._kinds[self._at] == "not":
            self._at += 1
            self._nested()
            return _made(nodes.Not, node=self.either(_NEGATING))
        return self.filtered()

    def compared(self) -> list[nodes.Expr]:
        operands: list[nodes.Expr] = []
        while _LEVELS.get(kind := self._kinds[self._at]) == _COMPARING:
            if kind == "not" and self._kinds[self._at + 1] != "in":
                break
            self._at += 2 if kind == "not" else 1
            operand = _made(nodes.Operand, op=_COMPARISONS[kind], expr=self.either(_COMPARING + 1))
            operands.append(operand)  # type: ignore[arg-type]
        return operands

    def joined(self, first: nodes.Expr) -> nodes.Expr:
        parts = [first]
        while self._skip("~"):
            parts.append(self.either(_JOINING + 1))
        return _made(nodes.Concat, nodes=parts)

    def filtered(self) -> nodes.Expr:
        node = self.followed(self.primary())
        while True:
            kind = self._kinds[self._at]
            if kind == "|":
                self._at += 1
                name = self._expect(_NAME)
                arguments = self.arguments() if self._kinds[self._at] == "(" else _arguments()
                node = _made(nodes.Filter, node=node, name=name, **arguments)
            elif kind == "is":
                node = self.tested(node)
            else:
                return node

    def tested(self, node: nodes.Expr) -> nodes.Expr:
        self._at += 1
        negated = self._skip("not")
        name = self._expect(_NAME)
        if self._kinds[self._at] in (_NAME, _STRING, _INTEGER, "(", "[", "if", "in", "is", "not", "."):
            raise _Unknown  # may be the test's argument
        test = _made(nodes.Test, node=node, name=name, **_arguments())
        return _made(nodes.Not, node=test) if negated else test

    def primary(self) -> nodes.Expr:
        kind, at = self._kinds[self._at], self._at
        self._at += 1
        if kind == _NAME:
            text = self._texts[at]
            if text in _CONSTANTS:
                return _made(nodes.Const, value=_CONSTANTS[text])
            return _made(nodes.Name, name=text, ctx="load")
        if kind == _STRING and self._kinds[self._at] != _STRING:
            return _made(nodes.Const, value=self._texts[at][1:-1])
        if kind == _INTEGER:
            return _made(nodes.Const, value=int(self._texts[at]))
        if kind == "(":
            self._nested()
            inner = self.conditional()
            self._expect(")")
            return inner
        if kind == "[":
            self._nested()
            return _made(nodes.List, items=self.items("]"))
        raise _Unknown

    def items(self, end: str) -> list[nodes.Expr]:
        items: list[nodes.Expr] = []
        while not self._skip(end):
            if items:
                self._expect(",")
                if self._skip(end):
                    break
            items.append(self.conditional())
        return items

    def followed(self, node: nodes.Expr) -> nodes.Expr:
        while True:
            kind = self._kinds[self._at]
            if kind == ".":
                self._at += 1
                node = _made(nodes.Getattr, node=node, attr=self._expect(_NAME), ctx="load")
            elif kind == "[":
                self._at += 1
                self._nested()
                key = self.conditional()
                self._expect("]")
                node = _made(nodes.Getitem, node=node, arg=key, ctx="load")
            elif kind == "(":
                node = _made(nodes.Call, node=node, **self.arguments())
            else:
                return node

    def arguments(self) -> dict[str, Any]:
        """What stands in the brackets of a filter or a call, by position or by name."""
        self._expect("(")
        self._nested()
        found = _arguments()
        while not self._skip(")"):
            if found["args"] or found["kwargs"]:
                self._expect(",")
                if self._skip(")"):
                    break
            if self._kinds[self._at] == _NAME and self._kinds[self._at + 1] == "=":
                key = self._expect(_NAME)
                self._at += 1
                found["kwargs"].append(_made(nodes.Keyword, key=key, value=self.conditional()))
            elif found["kwargs"]:
                raise _Unknown
            else:
                found["args"].append(self.conditional())
        return found


def _arguments() -> dict[str, Any]:
    return {"args": [], "kwargs": [], "dyn_args": None, "dyn_kwargs": None}
