"""Calls and names that must not appear, or only in one place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from .source import Finding, Module, aliases, calls, dotted, finding, is_under, nodes, words

# --- clocks, chance, environment -------------------------------------------------------------------------

CLOCKS = words(
    "datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today datetime.date.today time.time "
    "time.time_ns time.localtime time.gmtime uuid.uuid1 uuid.uuid4 os.urandom"
)
CHANCE = ("random.", "secrets.", "numpy.random.")
# The shell's edge.  Everything else takes time and ids from a port.
CLOCK_HOMES = ("src/noetl/adapters/", "src/noetl/processes/", "src/noetl/cli/", "src/noetl/bench/")

ENVIRONMENT = frozenset({"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"})
ENVIRONMENT_HOME = ("src/noetl/settings.py",)


def references(source: Module) -> list[tuple[ast.expr, str]]:
    """Each use of an imported name, in full; also as a default argument or a callback, not only as a call."""
    found: list[tuple[ast.expr, str]] = []
    inner: set[ast.AST] = set()
    for node in nodes(source):  # parents come before their children
        if node in inner or not isinstance(node, ast.Attribute | ast.Name):
            continue
        parts = list(ast.walk(node))
        inner.update(parts[1:])
        head = next((part.id for part in parts if isinstance(part, ast.Name)), "")
        if head in aliases(source):
            found.append((node, dotted(source, node)))
    return found


def clocks_and_chance(source: Module) -> list[Finding]:
    if is_under(source.path, CLOCK_HOMES):
        return []
    return [
        finding("clock and chance", source, node, f"{name}: time and ids come from a port")
        for node, name in references(source)
        if name in CLOCKS or name.startswith(CHANCE)
    ]


def environment_reads(source: Module) -> list[Finding]:
    if is_under(source.path, ENVIRONMENT_HOME):
        return []
    return [
        finding("environment", source, node, f"{name}: only settings.py reads the environment")
        for node, name in references(source)
        if any(name == entry or name.startswith(f"{entry}.") for entry in ENVIRONMENT)
    ]


# --- templates, objects from bytes, code from text -------------------------------------------------------

ENVIRONMENTS = words(
    "jinja2.Environment jinja2.environment.Environment jinja2.Template jinja2.environment.Template "
    "jinja2.sandbox.SandboxedEnvironment jinja2.sandbox.ImmutableSandboxedEnvironment "
    "jinja2.nativetypes.NativeEnvironment"
)


def template_environments(sources: Iterable[Module]) -> list[Finding]:
    """Every construction of a Jinja2 environment, also through a class derived from one."""
    sources = list(sources)
    derived = set(ENVIRONMENTS)
    size = 0
    while size != len(derived):
        size = len(derived)
        for source in sources:
            for node in nodes(source):
                if isinstance(node, ast.ClassDef) and any(_qualified(source, base) in derived for base in node.bases):
                    derived.add(f"{source.name}.{node.name}")
    return [
        finding("one template environment", source, call, "constructs a Jinja2 environment")
        for source in sources
        for call, _ in calls(source)
        if _qualified(source, call.func) in derived
    ]


def _qualified(source: Module, node: ast.AST) -> str:
    name = dotted(source, node)
    head = name.split(".")[0]
    is_local = isinstance(node, ast.Name) and node.id == head and head not in aliases(source)
    return f"{source.name}.{name}" if is_local else name


PICKLES = words("pickle _pickle cPickle marshal shelve dill cloudpickle joblib copyreg")


def pickles(source: Module) -> list[Finding]:
    found = []
    for node in nodes(source):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        if any(name.split(".")[0] in PICKLES for name in names):
            found.append(finding("no pickle", source, node, "no pickle at rest or on the wire"))
    return found


UNSAFE_YAML = words(
    "yaml.Loader yaml.CLoader yaml.FullLoader yaml.CFullLoader yaml.UnsafeLoader yaml.CUnsafeLoader "
    "yaml.unsafe_load yaml.unsafe_load_all yaml.full_load yaml.full_load_all"
)


def unsafe_yaml(source: Module) -> list[Finding]:
    message = "YAML is read with a safe loader"
    found = [finding("safe YAML", source, node, message) for node, name in references(source) if name in UNSAFE_YAML]
    for call, name in calls(source):
        if name in {"yaml.load", "yaml.load_all"}:
            loaders = [*call.args[1:2], *(item.value for item in call.keywords if item.arg == "Loader")]
            if not any("Safe" in dotted(source, loader) for loader in loaders):
                found.append(finding("safe YAML", source, call, message))
    return found


CODE_HOME = ("src/noetl/tools/python/",)


def code_from_text(source: Module) -> list[Finding]:
    if is_under(source.path, CODE_HOME):
        return []
    return [
        finding("no code from text", source, call, f"{name}() belongs to the child of the python tool")
        for call, name in calls(source)
        if name in {"eval", "exec", "__import__", "builtins.eval", "builtins.exec"}
    ]


# --- errors, output, tasks -------------------------------------------------------------------------------

BROAD = frozenset({"Exception", "BaseException", "builtins.Exception", "builtins.BaseException"})


def _caught(source: Module, node: ast.AST) -> list[ast.expr | None]:
    """What a handler or a `suppress` catches; None is the bare `except:`."""
    if isinstance(node, ast.ExceptHandler):
        return [*node.type.elts] if isinstance(node.type, ast.Tuple) else [node.type]
    if isinstance(node, ast.Call) and dotted(source, node.func) == "contextlib.suppress":
        return [*node.args]
    return []


def broad_excepts(source: Module) -> list[Finding]:
    return [
        finding("named errors", source, node, "catch what you can name")
        for node in nodes(source)
        if any(item is None or dotted(source, item) in BROAD for item in _caught(source, node))
    ]


PRINT_HOMES = ("src/noetl/cli/", "src/noetl/bench/")


def prints(source: Module) -> list[Finding]:
    if is_under(source.path, PRINT_HOMES):
        return []
    return [
        finding("no print", source, call, "only the command line prints")
        for call, name in calls(source)
        if name == "print"
    ]


def _task_groups(source: Module) -> set[str]:
    """Names, also of attributes, that this module binds to an `asyncio.TaskGroup`."""
    found: set[str] = set()

    def is_group(node: ast.AST | None) -> bool:
        return node is not None and any(
            dotted(source, item) in {"asyncio.TaskGroup", "TaskGroup"} for item in ast.walk(node)
        )

    for node in nodes(source):
        if isinstance(node, ast.withitem) and is_group(node.context_expr) and node.optional_vars:
            found.add(_last(node.optional_vars))
        elif isinstance(node, ast.arg) and is_group(node.annotation):
            found.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and is_group(node.annotation):
            found.add(_last(node.target))
        elif isinstance(node, ast.Assign) and is_group(node.value):
            found.update(_last(target) for target in node.targets)
    # `self._group = group` passes the knowledge on.
    for node in nodes(source):
        if isinstance(node, ast.Assign) and _last(node.value) in found:
            found.update(_last(target) for target in node.targets)
    return found - {""}


def _last(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def loose_tasks(source: Module) -> list[Finding]:
    groups = _task_groups(source)
    found = []
    for call, name in calls(source):
        if name == "asyncio.ensure_future":
            is_loose = True
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "create_task":
            is_loose = _last(call.func.value) not in groups
        else:
            is_loose = name == "asyncio.create_task"
        if is_loose:
            found.append(finding("owned tasks", source, call, "a TaskGroup owns every task"))
    return found


# --- SQL -------------------------------------------------------------------------------------------------

SQL_START = re.compile(
    r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|MERGE|CREATE|ALTER|DROP|TRUNCATE|COPY|LOCK|GRANT)\s"
    r"|(?i:\s*(?:select\s[^.]+\sfrom\s|insert\s+into\s|update\s+[\w.\"]+\s+set\s|delete\s+from\s"
    r"|with\s+(?:recursive\s+)?\w+\s+as\s*\())"
)


def _docstrings(source: Module) -> set[ast.AST]:
    """Strings that stand alone as a statement: documentation, never a query."""
    return {node.value for node in nodes(source) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}


def _is_sql(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr):
        return bool(node.values) and _is_sql(node.values[0])
    value = node.value if isinstance(node, ast.Constant) else None
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return isinstance(text, str) and bool(SQL_START.match(text))


def sql_in_python(source: Module) -> list[Finding]:
    """A statement in Python, however it is written.  Queries live in named .sql files."""
    skipped = _docstrings(source)
    for node in nodes(source):
        if isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
    return [
        finding("SQL in files", source, node, "SQL lives in a .sql file of its adapter")
        for node in nodes(source)
        if node not in skipped and isinstance(node, ast.Constant | ast.JoinedStr) and _is_sql(node)
    ]


def sql_from_pieces(source: Module) -> list[Finding]:
    """A statement that is formatted or joined.  Values are bound, and only identifiers may need this."""
    found = []
    for node in nodes(source):
        is_joined = isinstance(node, ast.JoinedStr) and len(node.values) > 1 and _is_sql(node)
        is_added = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod) and _is_sql(node.left)
        is_formatted = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {"format", "format_map", "replace", "join"}
            and _is_sql(node.func.value)
        )
        if is_joined or is_added or is_formatted:
            found.append(finding("SQL from pieces", source, node, "bind values; never build a statement"))
    return found


# --- names -----------------------------------------------------------------------------------------------

LOCATOR_HOME = ("src/noetl/core/locator/",)
LOCATOR_SCHEME = "noetl:/"


def locators_by_hand(source: Module) -> list[Finding]:
    """A `noetl://` text, also a part of one, outside of the package that builds and parses them."""
    if is_under(source.path, LOCATOR_HOME):
        return []
    skipped = _docstrings(source)
    return [
        finding("locators in one place", source, node, "core/locator builds and parses noetl:// names")
        for node in nodes(source)
        if node not in skipped
        and isinstance(node, ast.Constant)
        and isinstance(node.value, str | bytes)
        and LOCATOR_SCHEME in (node.value if isinstance(node.value, str) else node.value.decode("latin-1")).lower()
    ]


EMPTY_NAMES = words("util utils helper helpers common manager managers misc")
EMPTY_ENDINGS = ("Manager", "Helper", "Helpers", "Utils", "Util")


def star_imports(source: Module) -> list[Finding]:
    return [
        finding("no star imports", source, node, f"name what you take from {node.module}")
        for node in nodes(source)
        if isinstance(node, ast.ImportFrom) and any(name.name == "*" for name in node.names)
    ]


def empty_names(source: Module) -> list[Finding]:
    """File, folder and class names that say nothing."""
    words = {word for part in source.path.removesuffix(".py").split("/") for word in part.split("_")}
    named: list[tuple[ast.AST, str]] = [(source.tree, word) for word in sorted(words & EMPTY_NAMES)]
    named += [
        (node, node.name)
        for node in nodes(source)
        if isinstance(node, ast.ClassDef) and node.name.endswith(EMPTY_ENDINGS)
    ]
    return [finding("telling names", source, node, f"{name} says nothing; name the noun") for node, name in named]
