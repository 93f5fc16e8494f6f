"""The one Jinja environment of the product, and the code it generates.

What was not enough: the stock sandbox lets a template call every public method of what it is given, folds
constants while compiling (so `'a' * 10**9` would run at registration), and cannot intercept `~`, slices,
comparisons, literals and printing.  So the generator below writes a call of a function of this module for
each of them (`ours.…`); generated code touches data only through those, and the filter and test tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from jinja2 import Template, TemplateSyntaxError, nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.lexer import Token, TokenStream
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, missing

from noetl.core.errors import TemplateFailed, TemplateInvalid, TemplateRefused
from noetl.core.expression.data_filters import FILTERS, TESTS, apply_filter, apply_test
from noetl.core.expression.evaluation import Evaluation, check_chars
from noetl.core.expression.operators import binary, chain, compare, concatenate, cut, kind_of, unary
from noetl.core.expression.reader import read_quickly
from noetl.core.expression.views import SCALAR_TYPES, AtomError, Made, MadeDict, Undefined, bare, lookup
from noetl.core.limits import TEMPLATE_CHARS_MAX, TEMPLATE_NODES_MAX, TEMPLATE_RANGE_MAX

ATOM_PREFIX = "__atom_"
BRACKETS_MAX = 32
"""Open brackets at one place; the parser needs about thirteen Python frames for each."""

TOKENS_MAX = 2 * TEMPLATE_NODES_MAX
MESSAGE_CHARS_MAX = 300
BUILTINS = frozenset({"now", "range", "token", "namespace"})

__all__ = ["Made", "MadeDict", "chain", "compare", "concatenate", "cut"]  # for generated code

_OPENING = frozenset({"lparen", "lbracket", "lbrace"})
_CLOSING = frozenset({"rparen", "rbracket", "rbrace"})
_LOOP_NAMES = frozenset(
    {
        "index",
        "index0",
        "revindex",
        "revindex0",
        "first",
        "last",
        "length",
        "previtem",
        "nextitem",
        "depth",
        "depth0",
    }
)
_BACKSLASH = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("\n\\'\"abfnrtv01234567xNuU")
_ARITHMETIC = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow)

Program = Callable[[Evaluation], Any]


class Generator(CodeGenerator):
    """Writes Python for a checked tree.  `roots` collects the free names that the code will ask for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.roots: set[str] = set()
        self.is_expression = False

    def enter_frame(self, frame: Frame) -> None:
        super().enter_frame(frame)
        self.roots.update(
            param for action, param in frame.symbols.loads.values() if action == "resolve" and param is not None
        )

    def write_commons(self) -> None:
        self.writeline("resolve = context.resolve_or_missing")
        self.writeline("undefined = cond_expr_undefined = environment.undefined")
        self.writeline("concat = environment.concat")
        if not self.is_expression:
            self.writeline("if 0: yield None")

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        expression = node.body[0] if node.body else None
        self.is_expression = isinstance(expression, nodes.ExprStmt)
        self.writeline("from noetl.core.expression import sandbox as ours")
        if not isinstance(expression, nodes.ExprStmt):
            super().visit_Template(node, frame)
            return
        self.writeline("from jinja2.runtime import missing, internalcode, TemplateRuntimeError")
        self.writeline("name, blocks, debug_info = None, {}, ''")
        self.writeline("def root(context, missing=missing, environment=environment):", extra=1)
        self.indent()
        self.write_commons()
        scope = Frame(nodes.EvalContext(self.environment, None))
        scope.symbols.analyze_node(node)
        self.enter_frame(scope)
        self.pull_dependencies(node.body)
        self.writeline("return ")
        self.visit(expression.node, scope)

    def _write_call(self, function: str, frame: Frame, *parts: nodes.Expr | str | None) -> None:
        """Write `ours.<function>(<part>, …)`: nodes as their code, texts as they are, absent as None."""
        self.write(f"ours.{function}(")
        for part in parts:
            if isinstance(part, nodes.Node):
                self.visit(part, frame)
            else:
                self.write(str(part))
            self.write(", ")
        self.write(")")

    def visit_Name(self, node: nodes.Name, frame: Frame) -> None:
        if node.ctx == "load" and node.name.startswith(ATOM_PREFIX):
            self.write(f"ours.atom({frame.symbols.ref(node.name)}, {node.name!r})")
        else:
            super().visit_Name(node, frame)

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        self._write_call("item", frame, node.node, repr(node.attr), repr(path_of(node)))

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._write_call("cut", frame, "context", node.node, node.arg.start, node.arg.stop, node.arg.step)
        else:
            self._write_call("item", frame, node.node, node.arg, repr(path_of(node)))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._write_call("concatenate", frame, "context", *node.nodes)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        if len(node.ops) == 1:
            operand = node.ops[0]
            self._write_call("compare", frame, "context", repr(operand.op), node.expr, operand.expr)
            return
        self.write("ours.compare_all(context, ")
        self.visit(node.expr, frame)
        for operand in node.ops:
            self.write(f", {operand.op!r}, lambda: ")
            self.visit(operand.expr, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        # Tuples exist as targets of assignments only; as a value, (a, b) is a list like any other.
        if node.ctx == "load":
            self.visit_List(node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_List(self, node: nodes.List | nodes.Tuple, frame: Frame) -> None:
        self.write("ours.Made((")
        for item in node.items:
            self.visit(item, frame)
            self.write(", ")
        self.write("))")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("ours.MadeDict({")
        for item in node.items:
            self._write_call("key", frame, item.key)
            self.write(": ")
            self.visit(item.value, frame)
            self.write(", ")
        self.write("})")

    def _logic(self, node: nodes.BinExpr, frame: Frame) -> None:
        self.write("(")
        for index, operand in enumerate(_unchained(node, (type(node),))):
            self.write(f" {node.operator} " if index else "")
            self.visit(operand, frame)
        self.write(")")

    def _arithmetic(self, node: nodes.BinExpr, frame: Frame) -> None:
        self.write("ours.chain(context, ")
        for part in _unchained(node, _ARITHMETIC, with_operators=True):
            if isinstance(part, str):
                self.write(f", {part!r}, ")
            elif isinstance(part, nodes.Tuple):
                super().visit_Tuple(part, frame)
            else:
                self.visit(part, frame)
        self.write(")")

    visit_And = visit_Or = _logic
    visit_Add = visit_Sub = visit_Mul = visit_Div = visit_FloorDiv = visit_Mod = visit_Pow = _arithmetic

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        if isinstance(node.node, nodes.Name) and node.node.name in BUILTINS:
            self.write(f"ours.call_{node.node.name}(context")
            self.signature(node, frame)
            self.write(")")
        else:
            super().visit_Call(node, frame, forward_caller=forward_caller)


def _unchained(node: nodes.Expr, kinds: tuple[type, ...], *, with_operators: bool = False) -> list[Any]:
    """The operands of a left-leaning chain, so that `a + b + c …` nests once and not once per operand."""
    parts: list[Any] = []
    while isinstance(node, nodes.BinExpr) and isinstance(node, kinds):
        parts += [node.right, node.operator] if with_operators else [node.right]
        node = node.left
    return [node, *reversed(parts)]


def path_of(node: nodes.Expr) -> str:
    """The written form of a path, for messages."""
    path = _path_of(node)
    return path if len(path) <= MESSAGE_CHARS_MAX else path[:MESSAGE_CHARS_MAX] + "…"


def _path_of(node: nodes.Expr) -> str:
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.Getattr):
        return f"{_path_of(node.node)}.{node.attr}"
    if isinstance(node, nodes.Getitem):
        inner = repr(node.arg.value) if isinstance(node.arg, nodes.Const) else "…"
        return f"{_path_of(node.node)}[{inner}]"
    return "(…)"


class Sandbox(ImmutableSandboxedEnvironment):
    """Immutable, without globals, loader, optimizer and escaping."""

    code_generator_class = Generator
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})
    intercepted_unops = frozenset({"+", "-"})

    def __init__(self) -> None:
        super().__init__(
            autoescape=False, optimized=False, cache_size=0, keep_trailing_newline=True, finalize=_finalize
        )
        self.globals.clear()
        self.filters = {name: _filter(name) for name in FILTERS}
        self.tests = {name: _test(name) for name in TESTS}
        self.undefined = _undefined  # type: ignore[assignment]
        self.parses = 0

    # -- parsing ------------------------------------------------------------------------------------------
    def parse_source(self, source: str) -> nodes.Template:
        """The syntax tree of a text with template syntax.  Raises TemplateInvalid with the line."""
        if len(source) > TEMPLATE_CHARS_MAX:
            raise TemplateInvalid(f"the template has {len(source):,} characters, the limit is {TEMPLATE_CHARS_MAX:,}")
        self.parses += 1
        quick = read_quickly(source)
        if quick is not None:
            return quick
        try:
            return self._parse(source, None, None)
        except TemplateSyntaxError as error:
            raise TemplateInvalid(f"line {error.lineno}: {str(error.message)[:MESSAGE_CHARS_MAX]}") from error
        except RecursionError as error:
            raise TemplateInvalid("the template is nested too deeply") from error
        except (ValueError, OverflowError) as error:
            raise TemplateInvalid(f"the template cannot be read: {error}") from error

    def _tokenize(
        self, source: str, name: str | None, filename: str | None = None, state: str | None = None
    ) -> TokenStream:
        raw = _escaped(self.lexer.tokeniter(source, name, filename, state))
        return TokenStream(_guarded(self.lexer.wrap(raw, name, filename)), name, filename)

    def program(self, tree: nodes.Template) -> tuple[Program, frozenset[str]]:
        """The compiled form of a checked tree and the free names it asks for."""
        try:
            generator = Generator(self, None, None, optimized=False)
            generator.visit(tree)
            code = self._compile(generator.stream.getvalue(), "<template>")  # type: ignore[attr-defined]
        except TemplateSyntaxError as error:
            raise TemplateInvalid(f"line {error.lineno}: {error.message}") from error
        except (SyntaxError, RecursionError, MemoryError, OverflowError) as error:
            raise TemplateInvalid("the template is too complicated to compile") from error
        root: Any = Template.from_code(self, code, {}).root_render_func
        return root, frozenset(generator.roots)

    # -- stock entry points: generated code uses the functions below instead --------------------------------
    def getattr(self, obj: Any, attribute: str) -> Any:
        return item(obj, attribute, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        return item(obj, argument, str(argument))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        return binary(context, operator, left, right)

    def call_unop(self, context: Any, operator: str, arg: Any) -> Any:  # noqa: ARG002 - Jinja's signature
        return unary(operator, arg)

    def concat(self, parts: Iterable[str]) -> str:
        pieces = list(parts)
        check_chars(sum(map(len, pieces)))
        return "".join(pieces)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if type(__obj) is not Macro:
            refuse_call("this value")
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        return __obj(*args, **kwargs)


def item(subject: object, key: object, path: str) -> object:
    """`subject.key` and `subject[key]`."""
    kind = type(subject)
    if kind is LoopContext and key in _LOOP_NAMES:
        return getattr(subject, str(key))
    if kind is Namespace and isinstance(key, str) and not key.startswith("_"):
        return getattr(subject, key, Undefined(path))
    return lookup(subject, key if type(key) in SCALAR_TYPES else bare(key), path)


def key(value: object) -> object:
    """A key of a mapping literal."""
    value = bare(value)
    if not isinstance(value, str) and type(value) not in SCALAR_TYPES:
        raise TemplateFailed(f"a key must be a text or a number, not {kind_of(value)}")
    return value


def atom(value: object, name: str) -> object:
    """The value of a name that stands for an atom; a failed atom fails where it is used."""
    if isinstance(value, AtomError):
        value._fail()
    if type(value) is Undefined:
        # A new one each time: lists take an element for equal to itself, and this one is equal to nothing.
        return Undefined(value._path)
    return Undefined(name) if value is missing else value


def compare_all(evaluation: Evaluation, left: object, *rest: Any) -> bool:
    """`a < b < c`: each operand is evaluated once, and only as far as needed."""
    for index in range(0, len(rest), 2):
        right = rest[index + 1]()
        if not compare(evaluation, rest[index], left, right):
            return False
        left = right
    return True


def call_now(evaluation: Evaluation) -> str:
    if evaluation.now is None:
        raise TemplateFailed("now() has no time here")
    return evaluation.now


def call_range(evaluation: Evaluation, *bounds: object) -> list[int]:
    numbers: list[Any] = [bare(bound) for bound in bounds]
    span = range(*numbers)
    if len(span[: TEMPLATE_RANGE_MAX + 1]) > TEMPLATE_RANGE_MAX:
        raise TemplateRefused(f"a range must have at most {TEMPLATE_RANGE_MAX:,} numbers")
    evaluation.charge(len(span))
    return list(span)


def call_token(evaluation: Evaluation, /, *args: object, **kwargs: object) -> object:
    if evaluation.token is None:
        raise TemplateRefused("token() is available in the fields of a task only")
    return evaluation.token(*map(bare, args), **{name: bare(value) for name, value in kwargs.items()})


def call_namespace(_: Evaluation, **attributes: object) -> Namespace:
    return Namespace(**attributes)


def refuse_call(what: str) -> NoReturn:
    raise TemplateRefused(f"{what} cannot be called; use a filter, such as 'x | upper' or 'x | get(key)'")


def _undefined(hint: str | None = None, name: str | None = None, **_: object) -> Undefined:
    return Undefined(name or hint or "value")


@pass_context
def _finalize(evaluation: Evaluation, value: object) -> str:
    return evaluation.text(value)


def _filter(name: str) -> Callable[..., object]:
    @pass_context
    def run(evaluation: Evaluation, value: object, /, *args: object, **kwargs: object) -> object:
        return apply_filter(evaluation, name, value, args, kwargs)

    return run


def _test(name: str) -> Callable[..., bool]:
    @pass_context
    def run(evaluation: Evaluation, value: object, /, *args: object, **kwargs: object) -> bool:
        return apply_test(evaluation, name, value, args, kwargs)

    return run


def _escaped(tokens: Iterable[tuple[int, str, str]]) -> Iterator[tuple[int, str, str]]:
    """The raw tokens, with the backslash of an unknown escape doubled: Python would warn, and may one day refuse."""
    for line, kind, text in tokens:
        known = kind != "string" or "\\" not in text
        yield line, kind, text if known else _BACKSLASH.sub(_kept, text)


def _kept(match: re.Match[str]) -> str:
    return match[0] if match[1] in _KNOWN_ESCAPES else "\\" + match[0]


def _guarded(tokens: Iterable[Token]) -> Iterator[Token]:
    """The tokens, as long as there are not too many and not too many brackets are open."""
    depth = 0
    for count, token in enumerate(tokens):
        if token.type in _OPENING:
            depth += 1
        elif token.type in _CLOSING:
            depth -= 1
        if depth > BRACKETS_MAX:
            message = f"more than {BRACKETS_MAX} brackets are open at once: the expression is nested too deeply"
            raise TemplateSyntaxError(message, token.lineno)
        if count > TOKENS_MAX:
            raise TemplateSyntaxError(f"the template is too long: it has more than {TOKENS_MAX:,} words", token.lineno)
        yield token
