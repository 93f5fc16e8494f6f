"""How user code becomes a result (dsl 9.1): names in, one value out.

Owns the rules of the language for `python` tasks.  Knows nothing of processes, sockets or machine limits.
Only a child process may call `run_program`, because it executes user code.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import datetime
import importlib
import inspect
import json
import keyword
import linecache
import os
import re
import sys
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any, NamedTuple, NoReturn, cast

from noetl.core.errors import Failure, ToolFailed

# User code is a module of its own name: dataclasses, typing and pickle look their module up in `sys.modules`.
MODULE_NAME = "__playbook__"

_BODY_NAME = "__playbook_body__"
_BODIES_MAX = 16
_ALWAYS_THERE: dict[str, object] = {"json": json, "os": os, "datetime": datetime, "uuid": uuid}
_NEEDS_CONTEXT = re.compile(r"\b(?:context|main)\b")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MISSING = object()


class Inputs(NamedTuple):
    """Everything a task gives to its code."""

    input: Mapping[str, object]
    names: Mapping[str, object]
    context: Mapping[str, object] | None
    libs: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """User code after compilation; the same program runs many times."""

    filename: str
    lines: list[str]
    module: CodeType
    mentioned: frozenset[str]
    binds_result: bool
    """The code assigns `result` somewhere at its top level."""
    body: list[ast.stmt] | None
    """Statements to wrap into a function, for code with a top-level `return`."""
    bodies: dict[tuple[str, ...], CodeType] = field(default_factory=dict)
    """The wrapped body, compiled per set of parameters."""


class ReadOnlyDict(dict[str, object]):
    """A mapping that can be read, copied and written as JSON like a dict, and not changed."""

    def _refuse(self, *_args: object, **_options: object) -> NoReturn:
        raise TypeError("context is read-only: return what you want to keep")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> dict[str, object]:
        return dict(self)

    def __reduce__(self) -> tuple[type, tuple[dict[str, object]]]:
        return (dict, (dict(self),))  # a copy by `copy` or `pickle` is an ordinary dict


def needs_context(code: str) -> bool:
    """Whether to give `context`: the code names it, or has a `main` whose parameters may come from it."""
    return _NEEDS_CONTEXT.search(code) is not None


def compile_program(source: str, filename: str) -> Program:
    """Raises SyntaxError, or ValueError for text that cannot be source code."""
    tree = ast.parse(source, filename)
    has_return = any(isinstance(node, ast.Return) for node in _own_nodes(tree))
    future, body = _split_future_imports(tree) if has_return else ([], [])
    module = ast.Module(body=future, type_ignores=[]) if has_return else tree
    return Program(
        filename=filename,
        lines=source.splitlines(keepends=True),
        module=compile(module, filename, "exec", dont_inherit=True),
        mentioned=frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)),
        binds_result=any("result" in _names_bound_by(node) for node in _own_nodes(tree)),
        body=body if has_return else None,
    )


def run_program(program: Program, inputs: Inputs) -> object:
    """The result of the code, as the code left it.  Every exception of the code comes out unchanged."""
    # A fresh module per run; `forget` empties it.
    module = ModuleType(MODULE_NAME)
    sys.modules[MODULE_NAME] = module
    linecache.cache[program.filename] = (0, None, program.lines, program.filename)
    injected = _injected(program, inputs)
    namespace = module.__dict__
    namespace["__builtins__"] = builtins
    namespace["__file__"] = program.filename
    namespace.update(injected)
    exec(program.module, namespace)  # noqa: S102  # this is the purpose; it happens in a child process only
    if program.body is not None:
        return _run_body(program, program.body, namespace, injected)
    result = namespace.get("result")
    if result is not None and (program.binds_result or result is not injected.get("result", _MISSING)):
        return result
    main = namespace.get("main")
    if callable(main):
        return _call_main(main, inputs)
    return {"status": "ok"}


def forget() -> None:
    """Empty the namespace of the last run, which also runs the destructors of user objects."""
    module = sys.modules.pop(MODULE_NAME, None)
    if module is not None:
        module.__dict__.clear()


# --- names in --------------------------------------------------------------------------------------------


def _injected(program: Program, inputs: Inputs) -> dict[str, object]:
    """Later entries win: modules, libs, the whole input, context, loop names, the keys of `input`."""
    injected = dict(_ALWAYS_THERE)
    if inputs.libs:
        injected.update(_import_libs(inputs.libs))
    injected["input_data"] = injected["args"] = inputs.input
    if "context" in program.mentioned:
        injected["context"] = ReadOnlyDict(inputs.context or {})
    injected.update(inputs.names)
    injected.update(inputs.input)
    return injected


def _import_libs(libs: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for alias, wanted in libs.items():
        try:
            yield alias, _import_lib(alias, wanted)
        except ImportError as error:
            raise _misconfigured(f"libs: {alias}: {error}", "LIB_MISSING") from error


def _import_lib(alias: str, wanted: object) -> object:
    if isinstance(wanted, str):
        return importlib.import_module(wanted)
    if isinstance(wanted, Mapping):
        module_name, name = wanted.get("from"), wanted.get("import")
        if isinstance(module_name, str) and isinstance(name, str):
            module = importlib.import_module(module_name)
            found = getattr(module, name, _MISSING)
            return importlib.import_module(f"{module_name}.{name}") if found is _MISSING else found
    raise _misconfigured(f"libs: {alias}: give a module name or a mapping with `from` and `import`", "LIB_INVALID")


def _misconfigured(message: str, code: str) -> ToolFailed:
    return ToolFailed(Failure(kind="config", code=code, message=message))


# --- a top-level return ----------------------------------------------------------------------------------


def _run_body(
    program: Program, body: list[ast.stmt], namespace: dict[str, object], injected: Mapping[str, object]
) -> object:
    declared_global = {name for node in _own_nodes_of(body) if isinstance(node, ast.Global) for name in node.names}
    parameters = tuple(
        sorted(
            name
            for name in injected
            if name in program.mentioned and name not in declared_global and _is_parameter(name)
        )
    )
    code = program.bodies.get(parameters)
    if code is None:
        if len(program.bodies) >= _BODIES_MAX:
            program.bodies.clear()
        code = program.bodies[parameters] = _compile_body(body, parameters, program)
    exec(code, namespace)  # noqa: S102
    function = cast("Callable[..., object]", namespace[_BODY_NAME])
    return function(*(injected[name] for name in parameters))


def _compile_body(body: list[ast.stmt], parameters: tuple[str, ...], program: Program) -> CodeType:
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(arg=name) for name in parameters],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    function = ast.FunctionDef(name=_BODY_NAME, args=arguments, body=body, decorator_list=[], lineno=1, col_offset=0)
    module = ast.Module(body=[function], type_ignores=[])
    flags = program.module.co_flags & __future__.annotations.compiler_flag
    ast.fix_missing_locations(module)
    return cast("CodeType", compile(module, program.filename, "exec", flags=flags, dont_inherit=True))


def _split_future_imports(tree: ast.Module) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """`from __future__` must stay outside the function; only the docstring may stand before it."""
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    return list(future), [node for node in tree.body if node not in future]


def _is_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name != "__debug__"


# --- main ------------------------------------------------------------------------------------------------


def _call_main(main: Callable[..., object], inputs: Inputs) -> object:
    positional, named = _bind_main(main, inputs)
    value = main(*positional, **named)
    if inspect.isawaitable(value):
        import asyncio  # noqa: PLC0415  # costs 40 ms and few playbooks need it

        async def wait() -> object:
            return await value

        run = value if inspect.iscoroutine(value) else wait()
        return asyncio.run(cast("Coroutine[Any, Any, object]", run))
    return value


def _bind_main(main: Callable[..., object], inputs: Inputs) -> tuple[list[object], dict[str, object]]:
    context = inputs.context or {}
    whole: dict[str, object] = {
        "context": ReadOnlyDict(context),
        "input_data": inputs.input,
        "args": inputs.input,
    }
    sources = (inputs.input, inputs.names, whole, context)
    positional: list[object] = []
    named: dict[str, object] = {}
    taken: set[str] = set()
    rest_wanted = False
    for name, parameter in inspect.signature(main).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            rest_wanted = True
            continue
        taken.add(name)
        source = next((source for source in sources if name in source), None)
        if source is not None:
            value = source[name]
        elif parameter.default is not parameter.empty:
            value = parameter.default
        else:
            raise TypeError(f"main() needs {name!r}, which is neither in input nor in context and has no default")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(value)
        else:
            named[name] = value
    if rest_wanted:
        named.update((name, value) for name, value in inputs.input.items() if name not in taken)
    return positional, named


# --- the syntax tree -------------------------------------------------------------------------------------


def _own_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    return _own_nodes_of(tree.body)


def _own_nodes_of(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Nodes that run at the top level: not inside a function, lambda, class or comprehension."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, _COMPREHENSIONS):
            # A `:=` inside a comprehension binds in the scope around it.
            waiting.extend(inner for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))
        elif not isinstance(node, _SCOPES):
            waiting.extend(ast.iter_child_nodes(node))


def _names_bound_by(node: ast.AST) -> tuple[str | None, ...]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            return (name,)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return tuple(alias.asname or alias.name.partition(".")[0] for alias in aliases)
        case ast.ExceptHandler(name=bound) | ast.MatchAs(name=bound) | ast.MatchStar(name=bound):
            return (bound,)
        case ast.MatchMapping(rest=bound):
            return (bound,)
    return ()
