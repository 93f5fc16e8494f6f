"""Templates: compiled once, evaluated often, against names that are looked up only when they are mentioned.

Data is rendered once: what a template inserts is never read as a template.  Nothing but errors of
`core/errors.py` leaves `render`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from jinja2 import TemplateError, nodes
from jinja2.utils import missing

from noetl.core.errors import NoetlError, TemplateFailed, TemplateInvalid, TemplateRefused
from noetl.core.expression.analysis import (
    SANDBOX,
    Facts,
    check,
    guarded_paths,
    parse,
    path_in,
    sole_expression,
)
from noetl.core.expression.evaluation import Evaluation, check_chars, without_views
from noetl.core.expression.sandbox import Program
from noetl.core.expression.values import is_true, normalise, plain
from noetl.core.expression.views import SCALAR_TYPES, AtomError, Undefined, View, is_seen, lookup

TEMPLATE_CACHE_MAX = 4_096
TEMPLATE_CACHED_CHARS_MAX = 8_192

EXPRESSION_DEPTH = 2
"""How deep an expression lies in the tree of `{{ expression }}`."""

TOKEN_FUNCTION = "token()"  # noqa: S105 - a name and no secret
"""The name under which a caller hands in the function `token`; no template can spell it."""

_SYNTAX = ("{{", "{%", "{#")
_PLAIN_TYPES = SCALAR_TYPES | {dict, list}
_EVALUATION_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RuntimeError,
    StopIteration,
    TemplateError,
    TypeError,
    ValueError,
)
_INTERNAL_NAME = re.compile(r"\b_(\w+\(\))")

Place = tuple[str | int, ...]
Instead = Callable[[str, Place, NoetlError], "Template"]
Kind = Literal["literal", "expression", "text", "broken"]


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template.  `compile_template(template.source)` gives an equal one."""

    source: str
    kind: Kind
    roots: frozenset[str] = frozenset()
    needs_child: bool = False
    mentions: frozenset[tuple[str, ...]] = frozenset()
    uses_random: bool = False
    uses_now: bool = False
    tokens: frozenset[str | None] = frozenset()
    """The names that `token()` is called with; None stands for one that only the evaluation knows."""
    path: tuple[str | int, ...] | None = None
    """The root name and keys of an expression that is a plain path; it is evaluated without Jinja."""
    _value: str | bool | None = field(default=None, repr=False)
    _program: Program | None = field(default=None, repr=False, compare=False)
    _tree: nodes.Template | nodes.Expr | None = field(default=None, repr=False, compare=False)
    """What the source was parsed to: an expression, or else the whole; nobody changes it.  None where there is nothing
    to look at."""


def parse_count() -> int:
    """How many templates were parsed in this process."""
    return SANDBOX.parses


def compile_template(source: str) -> Template:
    """Compile a YAML string.  Raises TemplateInvalid, or TemplateRefused for what is never available."""
    if not _has_syntax(source):
        return literal_template(source)
    return _compile_cached(source) if len(source) <= TEMPLATE_CACHED_CHARS_MAX else _compile(source)


def forget_templates() -> None:
    """Parse everything anew from now on, for whoever measures what parsing costs."""
    _compile_cached.cache_clear()


def _has_syntax(source: str) -> bool:
    return "{" in source and any(mark in source for mark in _SYNTAX)


def compile_condition(source: str | bool) -> Template:
    """Compile a `when`: `{{ }}` is optional, a YAML boolean is a constant."""
    if isinstance(source, bool):
        return Template(str(source).lower(), "literal", _value=source)
    if _has_syntax(source):
        return compile_template(source)
    template = compile_template("{{ " + source.strip() + " }}")
    if template.kind != "expression":
        raise TemplateInvalid("line 1: a condition is one expression")
    return template


def broken_template(source: str, reason: str) -> Template:
    """Stands for text that is no template: whoever evaluates it fails with the reason."""

    def program(_: Evaluation) -> object:
        raise TemplateFailed(reason)

    return Template(source, "broken", _program=program)


def literal_template(source: str) -> Template:
    """Text that is left as it is, whatever braces it holds."""
    return Template(source, "literal", _value=source)


def guarded(template: Template) -> frozenset[tuple[str, ...]]:
    """The paths that a template asks about before it relies on them."""
    return frozenset() if template._tree is None else guarded_paths(template._tree)


def constant_truth(template: Template) -> bool | None:
    """The truth of a condition that reads nothing; None when it depends on something."""
    if template.roots or template.uses_now or template.uses_random or template.needs_child or template.kind == "broken":
        return None
    try:
        return is_true(render(template, {}))
    except TemplateFailed:
        return None


def free_names(source: str) -> frozenset[str]:
    """The names that a template reads from its surroundings."""
    return compile_template(source).roots


def _compile(source: str) -> Template:
    return _compile_tree(source, parse(source))


_compile_cached = lru_cache(maxsize=TEMPLATE_CACHE_MAX)(_compile)


def compile_expression(source: str, expression: nodes.Expr) -> Template:
    """As `compile_template` of `{{ }}` around an expression, when its tree is at hand: a part of a tree that was
    checked, with names in the places of other parts."""
    path = path_in(expression)
    if path is not None and path[2]:
        return _path_template(source, path[0], path[1], expression)
    return _program_template(source, check(expression, depth=EXPRESSION_DEPTH), expression, None)


def _compile_tree(source: str, tree: nodes.Template) -> Template:
    facts = check(tree)
    expression = sole_expression(tree)
    if expression is not None:
        path = path_in(expression)
        if path is not None and path[2]:
            return _path_template(source, path[0], path[1], expression)
    elif all(isinstance(part, nodes.Output) for part in tree.body):
        printed = [part for output in tree.body for part in output.nodes]  # type: ignore[attr-defined]
        if all(isinstance(part, nodes.TemplateData) for part in printed):
            return Template(source, "literal", _value="".join(part.data for part in printed))
    return _program_template(source, facts, expression, tree)


def _path_template(source: str, root: str, keys: tuple[str | int, ...], expression: nodes.Expr) -> Template:
    return Template(
        source,
        "expression",
        frozenset((root,)),
        mentions=frozenset(((root, *map(str, keys)),)),
        path=(root, *keys),
        _tree=expression,
    )


def _program_template(
    source: str, facts: Facts, expression: nodes.Expr | None, tree: nodes.Template | None
) -> Template:
    whole = expression if expression is not None else tree
    assert whole is not None
    roots, mentions, program = frozenset(facts.names), frozenset(facts.mentions), _Later(whole)
    if not facts.always_compiles:
        # Only the code knows which names are bound inside, and making it shows whether it can be made.
        roots &= program.make()
        mentions = frozenset(mention for mention in mentions if mention[0] in roots)
    if "token" in facts.calls:
        roots |= {"token"}
        mentions |= {("token",)}
    return Template(
        source,
        "text" if expression is None else "expression",
        roots,
        needs_child=facts.needs_child,
        mentions=mentions,
        uses_random=facts.uses_random,
        uses_now="now" in facts.calls,
        tokens=frozenset(facts.tokens),
        _program=program,
        _tree=whole,
    )


class _Later:
    """Code that is made of a tree when it is first run: of the templates of a large playbook most never are."""

    __slots__ = ("_program", "_tree")

    def __init__(self, tree: nodes.Template | nodes.Expr) -> None:
        self._tree = tree
        self._program: Program | None = None

    def make(self) -> frozenset[str]:
        """Make the code now, and say which free names it asks for."""
        tree = self._tree
        if isinstance(tree, nodes.Expr):
            tree = nodes.Template([nodes.ExprStmt(tree, lineno=1)], lineno=1)
        self._program, roots = SANDBOX.program(tree)
        return roots

    def __call__(self, evaluation: Evaluation) -> Any:
        if self._program is None:
            try:
                self.make()
            except TemplateInvalid as error:
                raise TemplateFailed(str(error)) from error
            assert self._program is not None
        return self._program(evaluation)


def render(
    template: Template,
    names: Mapping[str, object],
    *,
    now: str | None = None,
    strict: bool = False,
    allow_loops: bool = False,
    warnings: list[str] | None = None,
    random: Callable[[int], int] | None = None,
) -> object:
    """The value of a template: native for an expression, a string for text; Undefined becomes None.

    `allow_loops` is for child processes: it admits templates with loops and raises the work limit.
    `random` picks an index below a number; without it the filter `random` is refused.
    """
    value = evaluate(template, names, now=now, strict=strict, allow_loops=allow_loops, warnings=warnings, random=random)
    return None if type(value) is Undefined else value


def evaluate(template: Template, names: Mapping[str, object], **options: Any) -> object:
    """As `render`, but an undefined value stays Undefined."""
    if template.path is not None:
        return _follow(template.path, names)
    if template._program is None:
        return template._value
    return _run(template, names, **options)


def _follow(path: tuple[str | int, ...], names: Mapping[str, object]) -> object:
    return _handed_over(path, _found(path, names))


def _handed_over(path: tuple[str | int, ...], value: object) -> object:
    """What a path gives: plain data, or Undefined."""
    if len(path) == 1 and type(value) is dict:
        return without_views(value)
    return value if type(value) in _PLAIN_TYPES or type(value) is Undefined else plain(value)


def _found(path: tuple[str | int, ...], names: Mapping[str, object]) -> object:
    root, *keys = path
    value = _named(names, str(root))
    if value is missing:
        value = Undefined(str(root))
    elif type(value) is AtomError:
        value._fail()
    text = ".".join(map(str, path))
    for key in keys:
        value = lookup(value, key, text)
    return value


def _named(names: Mapping[str, object], root: str) -> Any:
    """The value of a free name, or Jinja's `missing`; a function is no value."""
    try:
        value = names[root]
    except KeyError:
        return missing
    if is_seen(value):
        return value
    return missing if callable(value) else normalise(value)


def _run(
    template: Template,
    names: Mapping[str, object],
    *,
    now: str | None = None,
    strict: bool = False,
    allow_loops: bool = False,
    warnings: list[str] | None = None,
    random: Callable[[int], int] | None = None,
) -> object:
    if template.needs_child and not allow_loops:
        raise TemplateRefused("a template with loops or macros is rendered in a child process only")
    known: dict[str, object] = _Known()
    evaluation = Evaluation(
        resolve=known.__getitem__,
        now=now,
        strict=strict,
        in_child=allow_loops,
        warnings=warnings,
        random=random,
    )
    _look_up(template.roots, names, known, evaluation)
    try:
        result = template._program(evaluation)  # type: ignore[misc]
        if template.kind == "text":
            return _printed(result)
        return result if type(result) is Undefined else evaluation.settle(result)
    except NoetlError:
        raise
    except RecursionError as error:
        raise TemplateFailed("the template or its data is nested too deeply") from error
    except MemoryError as error:
        raise TemplateRefused("the template needs too much memory") from error
    except _EVALUATION_ERRORS as error:
        raise TemplateFailed(_INTERNAL_NAME.sub(r"\1", str(error)) or type(error).__name__) from error


class _Known(dict[str, object]):
    """The names that a template asks for.  The code also asks for the functions that it calls, which are no names."""

    __slots__ = ()

    def __missing__(self, name: str) -> object:
        return missing


def _look_up(
    roots: frozenset[str], names: Mapping[str, object], known: dict[str, object], evaluation: Evaluation
) -> None:
    for root in roots:
        known[root] = _named(names, root)
    if "token" in roots:
        # The function stands beside a value of that name, which a workload may well have.
        token = names.get(TOKEN_FUNCTION, names.get("token"))
        evaluation.token = token if callable(token) else None


def _printed(pieces: Any) -> str:
    parts, chars = [], 0
    for piece in pieces:
        parts.append(piece)
        chars += len(piece)
        check_chars(chars)
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class CompiledValue:
    """Strings in nested mappings and lists are templates, keys are not.  Equal sources are equal values."""

    source: object
    roots: frozenset[str] = field(compare=False)
    mentions: frozenset[tuple[str, ...]] = field(compare=False)
    needs_child: bool = field(compare=False)
    uses_random: bool = field(compare=False)
    uses_now: bool = field(compare=False)
    tokens: frozenset[str | None] = field(compare=False)
    _shape: object = field(compare=False, repr=False)

    def template_at(self, path: tuple[str | int, ...]) -> Template:
        """The template that a text of the value was compiled to."""
        found: Any = self._shape
        for key in path:
            found = found[key]
        assert isinstance(found, Template)
        return found


def compile_value(value: object, *, instead: Instead | None = None) -> CompiledValue:
    """Compile every string of a YAML value.  An error names the place inside the value; with `instead` a text that is
    no template, or one that is refused, becomes what that makes of it, of its place and of the error."""
    shape = _shape(value, (), instead)
    if isinstance(shape, Template):
        return CompiledValue(
            value,
            shape.roots,
            shape.mentions,
            shape.needs_child,
            shape.uses_random,
            shape.uses_now,
            shape.tokens,
            shape,
        )
    templates = list(_templates(shape))
    return CompiledValue(
        source=value,
        roots=frozenset[str]().union(*(template.roots for template in templates)),
        mentions=frozenset[tuple[str, ...]]().union(*(template.mentions for template in templates)),
        needs_child=any(template.needs_child for template in templates),
        uses_random=any(template.uses_random for template in templates),
        uses_now=any(template.uses_now for template in templates),
        tokens=frozenset[str | None]().union(*(template.tokens for template in templates)),
        _shape=shape,
    )


def literal_value(source: str) -> CompiledValue:
    """A text that is left as it is, whatever braces it holds."""
    nothing: frozenset[str] = frozenset()
    return CompiledValue(source, nothing, frozenset(), False, False, False, frozenset(), literal_template(source))


def sole_template(value: CompiledValue | Template) -> Template | None:
    """The template that a value is, unless it is a mapping or a list."""
    shape = value if isinstance(value, Template) else value._shape
    return shape if isinstance(shape, Template) else None


def render_value(value: CompiledValue, names: Mapping[str, object], **options: Any) -> object:
    """The value with every template rendered, in fresh mappings and lists; options are those of `render`."""
    return _rendered(value._shape, names, options)


def render_with_parts(
    value: CompiledValue, names: Mapping[str, object], **options: Any
) -> tuple[object, dict[Place, View]]:
    """As `render_value`, but where a path leads to a value of which something is stored as a payload of its own, the
    value has null, and its place has a view of it."""
    found: dict[Place, View] = {}
    return _rendered(value._shape, names, options, (), found), found


def _shape(value: object, place: Place, instead: Instead | None) -> object:
    if isinstance(value, str):
        try:
            return compile_template(value)
        except (TemplateInvalid, TemplateRefused) as error:
            if instead is not None:
                return instead(value, place, error)
            raise type(error)(f"{_written(place)}: {error}" if place else str(error)) from error
    if isinstance(value, Mapping):
        return {key: _shape(item, (*place, key), instead) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shape(item, (*place, index), instead) for index, item in enumerate(value)]
    return normalise(value)


def _written(place: Place) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).lstrip(".")


def _templates(shape: object) -> Iterator[Template]:
    if isinstance(shape, Template):
        yield shape
    elif isinstance(shape, dict | list):
        for item in shape.values() if isinstance(shape, dict) else shape:
            yield from _templates(item)


def _rendered(
    shape: object,
    names: Mapping[str, object],
    options: dict[str, Any],
    place: Place = (),
    parts: dict[Place, View] | None = None,
) -> object:
    if isinstance(shape, Template):
        if parts is not None and shape.path is not None:
            value = _found(shape.path, names)
            if isinstance(value, View) and value._holds_parts():
                parts[place] = value
                return None
            value = _handed_over(shape.path, value)
            return None if type(value) is Undefined else value
        return render(shape, names, **options)
    if isinstance(shape, dict):
        return {key: _rendered(item, names, options, (*place, key), parts) for key, item in shape.items()}
    if isinstance(shape, list):
        return [_rendered(item, names, options, (*place, number), parts) for number, item in enumerate(shape)]
    return shape
