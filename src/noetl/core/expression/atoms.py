"""Atoms: the parts of an expression that read exactly one step's result (architecture §6).

A worker, which has the result in its hands, evaluates the atoms; the server evaluates the residual, in which
each atom is a reserved name.  Both together give what the whole expression gives, including what is undefined
and what is never evaluated; where that cannot be had, the plan is not evaluable and a worker does it all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Literal

from jinja2.visitor import NodeTransformer

from noetl.core.errors import TemplateFailed, TemplateInvalid
from noetl.core.expression.analysis import (
    LINKS,
    PATH_NODES,
    Path,
    called_function,
    children_of,
    nodes,
    parse,
    path_in,
    sole_expression,
)
from noetl.core.expression.data_filters import FILTERS
from noetl.core.expression.sandbox import ATOM_PREFIX
from noetl.core.expression.template import Template, compile_expression, evaluate
from noetl.core.expression.text_filters import TEXT_FILTERS
from noetl.core.expression.views import AtomError, Undefined, View, bytes_min, lookup, place_of
from noetl.core.expression.writing import write

COMPLETING_NAMES = frozenset({"output", "outcome", "result", "response", "error", "fanin"})
"""Names that stand for the step that just completed."""

Outcome = tuple[Literal["value"], object] | tuple[Literal["undefined"]] | tuple[Literal["error"], str]

_FALLBACK = "ctx"  # a key that `ctx` lacks may be a step's result
_EVENT_FACTS = frozenset({"name", "step", "timestamp"})  # the rest of `event` is the completing step's result
_ENVELOPE_DATA = frozenset({"data", "result", "response"})
_RESULTS = frozenset({"results", "data", "result"})
_TRUTH_VALUED = (nodes.Compare, nodes.Not, nodes.Test)
# What a filter does with values: makes a scalar of them, or hands them (or parts of them) on as they are.
_SCALAR_FILTERS = frozenset(TEXT_FILTERS) - {"fromjson"} | {"count", "join", "length", "truth"}
_DEFAULT_FILTERS = frozenset({"d", "default"})
_PASSING_FILTERS = frozenset(FILTERS) - _SCALAR_FILTERS - {"groupby", "map", "random"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Atom:
    """One sub-expression over one step's result; `step` is empty for the completing step."""

    key: str
    step: str
    template: Template
    bare_path: Path | None = None
    """The keys below the result, when the atom is nothing but a path."""

    @property
    def name(self) -> str:
        """The name that stands for the atom in the residual."""
        return ATOM_PREFIX + self.key

    @property
    def expression(self) -> str:
        """The source, without `{{ }}`."""
        return self.template.source[3:-3]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomPlan:
    """How an expression is evaluated without opening payloads."""

    atoms: tuple[Atom, ...]
    residual: Template
    evaluable: bool

    def bind(self, outcomes: Mapping[str, Outcome]) -> dict[str, object]:
        """The names of the residual for the outcomes by atom key.

        An atom without an outcome is one whose step did not run: it is evaluated here, with nothing defined.
        """
        return {atom.name: _bound(atom, outcomes.get(atom.key) or evaluate_atom(atom, {})) for atom in self.atoms}


def _bound(atom: Atom, outcome: Outcome) -> object:
    if outcome[0] == "value":
        return outcome[1]
    return AtomError(outcome[1]) if outcome[0] == "error" else Undefined(atom.expression)


def evaluate_atom(atom: Atom, names: Mapping[str, object], *, allow_loops: bool = False) -> Outcome:
    """What an atom gives for the names of its step; `allow_loops` as for `render`."""
    try:
        value = evaluate(atom.template, names, allow_loops=allow_loops)
    except TemplateFailed as error:
        return ("error", str(error))
    return ("undefined",) if isinstance(value, Undefined) else ("value", value)


def data_path(atom: Atom, names: Mapping[str, object]) -> Path | None:
    """Where the value of a bare path lies in the step's raw result, aliases resolved; None if it does not.

    `load.data.rows` may be `rows` of the result (by the alias `data`) or `rows` of its key `data`.
    """
    if atom.bare_path is None or atom.template.path is None:
        return None
    keys = atom.bare_path
    subject: object = names
    # What stands for a member of the result, and not for the result itself.
    place: Path = ("fanin",) if atom.template.path[0] == "fanin" else ()
    for number, key in enumerate(atom.template.path):
        if number >= len(atom.template.path) - len(keys):
            below = place_of(subject, key)
            if below is None:
                return None
            place += below
        subject = lookup(subject, key, "path")
    return place


def heavy_place(atom: Atom, names: Mapping[str, object], bytes_max: int) -> Path | None:
    """Where the value of a bare path lies when it has more bytes than allowed and that can be told without writing it
    out, or reading it.  A value with parts that are stored on their own is never copied: it stays what it is."""
    if atom.bare_path is None or atom.template.path is None:
        return None
    subject: object = names
    for key in atom.template.path:
        subject = lookup(subject, key, "path")
    is_apart = isinstance(subject, View) and subject._holds_parts()
    return data_path(atom, names) if is_apart or bytes_min(subject, bytes_max) > bytes_max else None


def atoms_of(
    template: Template,
    step_names: frozenset[str],
    completing: str | None,
    *,
    condition: bool = False,
    nested: Mapping[str, frozenset[str]] | None = None,
) -> AtomPlan:
    """Split a template.  `condition` says that only the truth (dsl §5.2) of its value matters; `nested` are the keys of
    steps' results under which other results stand, which are views too."""
    whole = AtomPlan(atoms=(), residual=template, evaluable=True)
    if template.kind in ("literal", "broken"):
        return whole
    if template.needs_child or template.uses_random:
        return replace(whole, evaluable=False)
    expression = _expression(template._tree)
    if expression is None:
        return replace(whole, evaluable=not _mentions_steps(template, step_names, completing))
    if completing is not None and any(mention[:2] == ("event", "payload") for mention in template.mentions):
        expression = _PayloadAlias().visit(_own(template))
    splitter = _Splitter(step_names, completing, nested or {})
    splitter.look(expression)
    residual = splitter.split(expression, final=True, condition=condition)
    if not splitter.evaluable:
        return replace(whole, evaluable=False)
    if not splitter.found:
        return whole
    try:
        return _plan(splitter, residual)
    except TemplateInvalid:
        return replace(whole, evaluable=False)


def _plan(splitter: _Splitter, residual: nodes.Expr) -> AtomPlan:
    atoms = tuple(splitter.atom(key) for key in splitter.found)
    residual_template = compile_expression("{{ " + write(residual) + " }}", residual)
    return AtomPlan(atoms=atoms, residual=residual_template, evaluable=True)


def _mentions_steps(template: Template, step_names: frozenset[str], completing: str | None) -> bool:
    special = COMPLETING_NAMES if completing is not None else frozenset[str]()
    for root, *keys in template.mentions:
        if root == _FALLBACK and (not keys or keys[0] in step_names):
            return True
        if root in step_names or root in special or root == "steps":
            return True
        if root == "event" and (not keys or keys[0] not in _EVENT_FACTS):
            return True
    return False


def _expression(tree: nodes.Node | None) -> nodes.Expr | None:
    if isinstance(tree, nodes.Template):
        return sole_expression(tree) or _printed_expression(tree)
    return tree if isinstance(tree, nodes.Expr) else None


def _own(template: Template) -> nodes.Expr:
    """A tree that may be changed: that of the template belongs to everybody who has its source."""
    expression = _expression(parse(template.source))
    assert expression is not None
    return expression


def _printed_expression(tree: nodes.Template) -> nodes.Expr | None:
    """A text template without statements, as the concatenation that it is."""
    parts: list[nodes.Expr] = [nodes.Const("")]
    for output in tree.body:
        if not isinstance(output, nodes.Output):
            return None
        parts += [nodes.Const(part.data) if isinstance(part, nodes.TemplateData) else part for part in output.nodes]
    return nodes.Concat([*parts, nodes.Const("")] if len(parts) < 2 else parts)


class _PayloadAlias(NodeTransformer):
    """`event.payload` is what the completing step gave, and that has a name which atoms know: `result`."""

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:
        return self._seen(node, node.attr)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        return self._seen(node, node.arg.value if isinstance(node.arg, nodes.Const) else None)

    def _seen(self, node: nodes.Getattr | nodes.Getitem, key: object) -> nodes.Node:
        if isinstance(node.node, nodes.Name) and node.node.name == "event" and key == "payload":
            return nodes.Name("result", "load", lineno=node.lineno)
        return self.generic_visit(node)


# What a part of an expression reads: the names of steps, and None for anything else.
_Reads = frozenset[str | None]
_NOTHING: _Reads = frozenset()
_OTHERS: _Reads = frozenset((None,))


class _Splitter:
    """Finds the atoms of one expression.  Positions are passed down:

    boolean    only the native truth of the value is used
    condition  only the truth of dsl §5.2 is used
    examined   something above may look inside the value, so a view must stay a view
    final      the value becomes (part of) the result and nothing else reads it
    """

    def __init__(
        self, step_names: frozenset[str], completing: str | None, nested: Mapping[str, frozenset[str]]
    ) -> None:
        self.step_names = step_names
        self.completing = completing
        self.nested = nested
        self.evaluable = True
        self.found: dict[str, tuple[str, str, nodes.Expr]] = {}
        self._known: dict[int, _Reads] = {}

    # -- what is read -------------------------------------------------------------------------------------
    def look(self, node: nodes.Node) -> _Reads:
        """What a node reads; notes on the way whether anything in it needs a worker."""
        known = self._known.get(id(node))
        if known is None:
            known = self._known[id(node)] = self._read(node)
        return known

    def _read(self, node: nodes.Node) -> _Reads:
        if isinstance(node, nodes.Const):
            return _NOTHING
        if isinstance(node, PATH_NODES):
            return self._read_path(node)
        # What a function gives is not the step's: but a range of its numbers is nothing else.
        reads = _OTHERS if called_function(node) not in (None, "range") else _NOTHING
        for child in children_of(node):
            reads |= self.look(child)
        return reads

    def _read_path(self, node: nodes.Name | nodes.Getattr | nodes.Getitem) -> _Reads:
        label = self._label(node)
        if label is not None:
            return frozenset((label,))
        if isinstance(node, nodes.Name):
            if node.name == "event" or (node.name == "steps" and self.step_names):
                self.evaluable = False
            return _OTHERS
        path = path_in(node)
        if path is not None and path[2]:
            if path[0] == "event" and path[1][0] in _EVENT_FACTS:
                return _OTHERS
            if path[0] == "steps" and len(path[1]) == 1:
                return _OTHERS  # no such step: undefined here and everywhere
        self._check_fallback(node)
        reads = self.look(node.node)
        if isinstance(node, nodes.Getitem):
            has_steps = any(step is not None for step in reads)
            reads |= self.look(node.arg)
            if has_steps and not self._is_pure(reads):
                self._check_index(node)
        return reads

    def _label(self, node: nodes.Node) -> str | None:
        """The step that a root names: `load`, `steps.load`, `steps['load']`; '' for `output` and the like."""
        if isinstance(node, nodes.Name):
            if self.completing is not None and node.name in COMPLETING_NAMES:
                return ""
            return node.name if node.name in self.step_names else None
        if isinstance(node, LINKS) and isinstance(node.node, nodes.Name) and node.node.name == "steps":
            path = path_in(node)
            if path is not None and path[2]:
                key = path[1][0]
                return key if isinstance(key, str) and key in self.step_names else None
        return None

    def _check_fallback(self, node: nodes.Getattr | nodes.Getitem) -> None:
        if isinstance(node.node, nodes.Name) and node.node.name == _FALLBACK:
            path = path_in(node)
            if path is None or not path[2] or path[1][0] in self.step_names:
                self.evaluable = False

    def _check_index(self, node: nodes.Getitem) -> None:
        if self.look(node.arg) != _NOTHING:
            self.evaluable = False

    def _is_pure(self, reads: _Reads) -> bool:
        """Whether one step's result is read, and nothing else."""
        if None in reads or not reads:
            return False
        return len(reads) == 1 or {"" if step == self.completing else step for step in reads} == {""}

    # -- splitting ----------------------------------------------------------------------------------------
    def split(
        self,
        node: nodes.Expr,
        *,
        boolean: bool = False,
        condition: bool = False,
        examined: bool = False,
        final: bool = False,
    ) -> nodes.Expr:
        """The node with its atoms replaced by names."""
        reads = self.look(node)
        if reads in (_NOTHING, _OTHERS):
            return node
        if self._is_pure(reads):
            if isinstance(node, _TRUTH_VALUED):
                return self._replace(node, reads)
            if boolean:
                return self._replace(nodes.CondExpr(node, nodes.Const(True), nodes.Const(False)), reads)
            if condition:
                return self._replace(nodes.Filter(node, "truth", [], [], None, None), reads)
            if final or _is_faithful(node):
                self.evaluable &= not (examined and self._may_be_view(node))
                return self._replace(node, reads)
        position = {"boolean": boolean, "condition": condition, "examined": examined, "final": final}
        rebuilt: nodes.Expr = self._rebuild(node, position)
        return rebuilt

    def _rebuild(self, node: Any, position: dict[str, bool]) -> Any:
        if isinstance(node, nodes.CondExpr):
            test, value = self.split(node.test, boolean=True), self.split(node.expr1, **position)
            other = None if node.expr2 is None else self.split(node.expr2, **position)
            return nodes.CondExpr(test, value, other)
        if isinstance(node, nodes.And | nodes.Or):
            return self._rebuild_logic(node, position)
        if isinstance(node, nodes.Not):
            return nodes.Not(self.split(node.node, boolean=True))
        if isinstance(node, nodes.BinExpr):
            return type(node)(self.split(node.left), self.split(node.right))
        if isinstance(node, nodes.UnaryExpr):
            return type(node)(self.split(node.node))
        if isinstance(node, nodes.Filter | nodes.Test | nodes.Call):
            return self._rebuild_call(node, position)
        if isinstance(node, nodes.Compare):
            first = self.split(node.expr)
            return nodes.Compare(first, [nodes.Operand(operand.op, self.split(operand.expr)) for operand in node.ops])
        if isinstance(node, nodes.Concat):
            return nodes.Concat([self.split(part, final=True) for part in node.nodes])
        if isinstance(node, nodes.List | nodes.Tuple | nodes.Dict):
            return self._rebuild_literal(node, examined=position["examined"], final=position["final"])
        if isinstance(node, nodes.Getattr):
            return nodes.Getattr(self.split(node.node, examined=True), node.attr, "load")
        return self._rebuild_item(node)

    def _rebuild_logic(self, node: nodes.And | nodes.Or, position: dict[str, bool]) -> nodes.Expr:
        left = position
        if position["condition"]:
            # `a and b`: a decides by its native truth.  `a or b`: a true `a` is itself the value.
            left = {"boolean": isinstance(node, nodes.And), "final": isinstance(node, nodes.Or)}
        return type(node)(self.split(node.left, **left), self.split(node.right, **position))

    def _rebuild_call(self, node: Any, position: dict[str, bool]) -> Any:
        inner: dict[str, bool] = {}
        if isinstance(node, nodes.Call):
            callee = [node.node]
        else:
            if isinstance(node, nodes.Filter) and node.name in _DEFAULT_FILTERS:
                inner = {"examined": position["examined"], "final": position["final"]}
            looks_inside = isinstance(node, nodes.Filter) and node.name not in _SCALAR_FILTERS
            callee = [self.split(node.node, **(inner or {"examined": looks_inside})), node.name]
        return type(node)(
            *callee,
            [self.split(arg, **inner) for arg in node.args],
            [nodes.Keyword(pair.key, self.split(pair.value, **inner)) for pair in node.kwargs],
            None if node.dyn_args is None else self.split(node.dyn_args),
            None if node.dyn_kwargs is None else self.split(node.dyn_kwargs),
        )

    def _rebuild_literal(self, node: Any, *, examined: bool, final: bool) -> nodes.Expr:
        if isinstance(node, nodes.Dict):
            return nodes.Dict(
                [
                    nodes.Pair(self.split(pair.key), self.split(pair.value, examined=examined, final=final))
                    for pair in node.items
                ]
            )
        items = [self.split(item, examined=examined, final=final) for item in node.items]
        return nodes.Tuple(items, "load") if isinstance(node, nodes.Tuple) else nodes.List(items)

    def _rebuild_item(self, node: nodes.Getitem) -> nodes.Expr:
        key: nodes.Expr = node.arg
        if isinstance(key, nodes.Slice):
            bounds = [None if bound is None else self.split(bound) for bound in (key.start, key.stop, key.step)]
            key = nodes.Slice(*bounds)
        else:
            key = self.split(key)
        return nodes.Getitem(self.split(node.node, examined=True), key, "load")

    def _may_be_view(self, node: nodes.Expr) -> bool:
        """Whether the value may be a view, whose aliases are lost when it is recorded."""
        if isinstance(node, nodes.CondExpr):
            return self._may_be_view(node.expr1) or (node.expr2 is not None and self._may_be_view(node.expr2))
        if isinstance(node, nodes.And | nodes.Or):
            return self._may_be_view(node.left) or self._may_be_view(node.right)
        if isinstance(node, nodes.Filter) and node.name in _DEFAULT_FILTERS:
            return any(self._may_be_view(part) for part in (node.node, *node.args) if part is not None)
        if self._label(node) is not None:
            return True
        path = path_in(node)
        return path is not None and self._is_view(path[0], path[1])

    def _is_view(self, root: str, keys: Path) -> bool:
        """Whether a path may lead to a view: to a result, or to a result inside a result."""
        if root == "steps":
            step, keys = str(keys[0]) if keys else "", keys[1:]
        elif root in COMPLETING_NAMES:
            step = self.completing or ""
            if root in ("output", "outcome") and keys and keys[0] in _ENVELOPE_DATA:
                if len(keys) == 1:
                    return True
                keys = keys[1:]
        else:
            step = root
        if not keys or keys[0] not in self.nested.get(step, ()):
            return False
        return len(keys) == 1 or (len(keys) == 2 and keys[0] in _RESULTS)

    def _replace(self, node: nodes.Expr, reads: _Reads) -> nodes.Expr:
        step = next(iter(reads)) or "" if len(reads) == 1 else ""
        source = write(node)
        key = sha256(f"{source}\0{step}".encode()).hexdigest()[:16]
        self.found[key] = (step, source, node)
        return nodes.Name(ATOM_PREFIX + key, "load")

    def _bare_path(self, node: nodes.Expr) -> Path | None:
        path = path_in(node)
        if path is None or not path[2]:
            return None
        return path[1][1:] if path[0] == "steps" else path[1]

    def atom(self, key: str) -> Atom:
        step, source, node = self.found[key]
        template = compile_expression("{{ " + source + " }}", node)
        return Atom(key=key, step=step, template=template, bare_path=self._bare_path(node))


def _is_faithful(node: nodes.Expr) -> bool:
    """Whether the value survives being recorded as JSON: nothing undefined and no view is inside it."""
    if isinstance(node, nodes.Const | nodes.Name | nodes.Compare | nodes.Test | nodes.Not | nodes.Concat):
        return True
    if isinstance(node, LINKS):
        return _is_faithful(node.node)
    if isinstance(node, nodes.CondExpr):
        return _is_faithful(node.expr1) and (node.expr2 is None or _is_faithful(node.expr2))
    if isinstance(node, nodes.BinExpr):
        return _is_faithful(node.left) and _is_faithful(node.right)
    if isinstance(node, nodes.Filter):
        if node.name in _SCALAR_FILTERS:
            return True
        given = [node.node, *node.args, *(pair.value for pair in node.kwargs)]
        return node.name in _PASSING_FILTERS and all(part is not None and _is_faithful(part) for part in given)
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(isinstance(item, nodes.Const) for item in node.items)
    if isinstance(node, nodes.Dict):
        return not node.items
    return isinstance(node, nodes.UnaryExpr | nodes.Call)
