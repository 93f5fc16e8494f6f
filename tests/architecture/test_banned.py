"""Calls and names that must not appear.  An exception is one line in EXCUSED, with a reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.architecture.rules import banned as rules
from tests.architecture.rules.source import (
    ROOT,
    Finding,
    Module,
    expect_none,
    module,
    modules,
    product,
    stale,
    unexcused,
)
from tests.architecture.rules.statements import statements

RULES: dict[str, Callable[[Module], list[Finding]]] = {
    "clock and chance": rules.clocks_and_chance,
    "environment": rules.environment_reads,
    "no pickle": rules.pickles,
    "safe YAML": rules.unsafe_yaml,
    "no code from text": rules.code_from_text,
    "named errors": rules.broad_excepts,
    "no print": rules.prints,
    "owned tasks": rules.loose_tasks,
    "SQL in files": rules.sql_in_python,
    "SQL from pieces": rules.sql_from_pieces,
    "locators in one place": rules.locators_by_hand,
    "no star imports": rules.star_imports,
    "telling names": rules.empty_names,
}
# These hold for the tests as well.
ALSO_IN_TESTS = ("no pickle", "safe YAML", "no star imports", "telling names")

# rule: {key: reason}.  The key is a file, or a file and the definition around the place.
EXCUSED: dict[str, dict[str, str]] = {
    "environment": {
        "src/noetl/adapters/spark/runtime/environment.py::jvm_environment": "gives Spark's JVM one without our secrets",
        "src/noetl/adapters/spark/driver/settings.py": "a driver inherits what Spark needs, and no secret of ours",
        "src/noetl/tools/python/child/loop.py": "gives user code a clean environment of its own",
        "src/noetl/tools/python/child/leftovers.py": "looks whether user code changed the child's environment",
        "src/noetl/tools/python/child/zygote.py::main": "empties what its children would inherit",
    },
    "named errors": {
        "src/noetl/adapters/spark/child/jobs.py::JobThread.run": "tool boundary: a job may raise anything",
        "src/noetl/engine/work/calling/caller.py::Caller.run": "tool boundary: no defect prints what it was given",
        "src/noetl/engine/control/reconcile.py::supervised": "task supervision: one execution, not the decider",
        "src/noetl/engine/projecting/folder.py::Folder._load": "task supervision: one execution, not its shard",
        "src/noetl/engine/projecting/folder.py::_step": "task supervision: one execution, not its shard",
        "src/noetl/engine/work/frames/frame.py::FrameRun._run_row": "task supervision: a defect fails one row only",
        "src/noetl/engine/work/worker.py::Worker._guarded": "task supervision: a defect fails one command only",
        "src/noetl/processes/host/host.py::Host._main": "process entry: handed to the thread that waits",
        "src/noetl/tools/python/child/loop.py::Child._render": "tool boundary: filters meet data of any kind",
        "src/noetl/tools/python/child/loop.py::Child._run": "tool boundary: user code may raise anything",
        "src/noetl/tools/python/child/loop.py::Child._value": "tool boundary: str() of a user's object",
        "src/noetl/tools/python/child/loop.py::serve": "process entry: the worker sees the connection end",
        "src/noetl/tools/python/child/failures.py::_message": "tool boundary: str() of a user's exception",
        "src/noetl/tools/python/child/failures.py::_traceback": "tool boundary: as above, for the traceback",
        "src/noetl/adapters/spark/job/failures.py::_text": "tool boundary: str() of a user's exception",
        "src/noetl/adapters/spark/job/perform.py::perform": "tool boundary: user code and Spark may raise anything",
        "src/noetl/tools/python/child/zygote.py::warm": "process entry: the child that needs it reports the error",
    },
    "SQL in files": {
        "src/noetl/bench/loops.py::_bare": "the plain driver loop beside the product",
        "src/noetl/bench/loops.py::_bare.commit": "the plain driver loop beside the product",
        "src/noetl/adapters/postgres/embedded.py": "roles and databases, before any driver can connect",
        "src/noetl/adapters/postgres/migrate.py::_ensure_partitions": "a partition's name and bounds are no values",
        "src/noetl/adapters/postgres/shape.py": "generates the text that a migration holds",
        "src/noetl/bench/appends.py": "the plain loop that the ledger is compared with",
        "src/noetl/bench/ground.py": "a database of its own for every benchmark",
        "src/noetl/bench/runs.py": "the plain commits that a run is compared with",
        "src/noetl/bench/data/plane.py": "a look at the ledger that no user needs",
        "src/noetl/bench/control/watching.py": "looks at watermarks beside the product",
    },
    "SQL from pieces": {
        "src/noetl/adapters/postgres/migrate.py::_ensure_partitions": "a partition's name and bounds are no values",
        "src/noetl/adapters/postgres/shape.py": "generates the text that a migration holds",
        "src/noetl/bench/appends.py": "the same column list twice; bounds are no values",
        "src/noetl/bench/ground.py": "the name of a database is no value",
    },
}


@pytest.fixture(scope="module")
def findings() -> dict[str, list[Finding]]:
    found = {name: [item for source in product() for item in rule(source)] for name, rule in RULES.items()}
    for name in ALSO_IN_TESTS:
        found[name] += [item for source in modules("tests") for item in RULES[name](source)]
    return found


@pytest.mark.parametrize("rule", RULES)
def test_nothing_banned_is_used(rule: str, findings: dict[str, list[Finding]]) -> None:
    expect_none(unexcused(findings[rule], EXCUSED.get(rule, {})))


@pytest.mark.parametrize("rule", RULES)
def test_every_excuse_is_still_needed(rule: str, findings: dict[str, list[Finding]]) -> None:
    expect_none(stale(findings[rule], EXCUSED.get(rule, {})))


def test_excuses_name_a_rule_that_exists() -> None:
    assert set(EXCUSED) <= set(RULES)


def test_one_template_environment_is_constructed_and_it_is_in_the_expression_module() -> None:
    found = rules.template_environments(product())
    assert [item.key.split("::")[0].startswith("src/noetl/core/expression") for item in found] == [True]


def test_sql_files_keep_the_rules_of_the_ledger() -> None:
    for path in sorted((ROOT / "src").rglob("*.sql")):
        expect_none(statements(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()))


# --- the rules can fail ----------------------------------------------------------------------------------

BAD: list[tuple[str, str]] = [
    ("clock and chance", "from datetime import datetime\nx = datetime.now()"),
    ("clock and chance", "import datetime as dt\nx = dt.datetime.utcnow()"),
    ("clock and chance", "import datetime\nx = datetime.date.today()"),
    ("clock and chance", "import time\nx = time.time()"),
    ("clock and chance", "from time import time_ns as clock\nx = clock()"),
    ("clock and chance", "import time\ndef f(clock=time.time): ..."),
    ("clock and chance", "import uuid\nx = uuid.uuid4()"),
    ("clock and chance", "from uuid import uuid1\nx = uuid1()"),
    ("clock and chance", "import random\nx = random.random()"),
    ("clock and chance", "from random import Random\nx = Random(1)"),
    ("clock and chance", "import secrets\nx = secrets.token_hex()"),
    ("environment", "import os\nx = os.environ['HOME']"),
    ("environment", "import os\nx = os.environ.get('HOME')"),
    ("environment", "from os import getenv\nx = getenv('HOME')"),
    ("environment", "import os as system\nx = system.getenv('HOME')"),
    ("no pickle", "import pickle"),
    ("no pickle", "def f():\n    from marshal import loads"),
    ("no pickle", "import cloudpickle as safe"),
    ("safe YAML", "import yaml\nx = yaml.load(text)"),
    ("safe YAML", "import yaml\nx = yaml.full_load(text)"),
    ("safe YAML", "from yaml import unsafe_load\nx = unsafe_load(text)"),
    ("no code from text", "eval('1')"),
    ("no code from text", "def f(): exec(code, {})"),
    ("named errors", "try: x\nexcept Exception: pass"),
    ("named errors", "try: x\nexcept: pass"),
    ("named errors", "try: x\nexcept (ValueError, BaseException): pass"),
    ("named errors", "import contextlib\nwith contextlib.suppress(Exception): x"),
    ("no print", "print('x')"),
    ("owned tasks", "import asyncio\nx = asyncio.create_task(f())"),
    ("owned tasks", "from asyncio import create_task\nx = create_task(f())"),
    ("owned tasks", "import asyncio\nx = asyncio.ensure_future(f())"),
    ("owned tasks", "import asyncio\nx = asyncio.get_running_loop().create_task(f())"),
    ("owned tasks", "def f(loop): loop.create_task(g())"),
    ("SQL in files", "q = 'SELECT 1'"),
    ("SQL in files", "q = b'CREATE ROLE noetl LOGIN;'"),
    ("SQL in files", "q = '''\n    insert into noetl.event values ($1)'''"),
    ("SQL in files", "q = f'UPDATE {table} SET a = 1'"),
    ("SQL in files", "f('with x as (select 1) select a from x')"),
    ("SQL in files", "q = 'select a, b from noetl.event'"),
    ("SQL from pieces", "q = f'SELECT {column} FROM x'"),
    ("SQL from pieces", "q = 'SELECT ' + column"),
    ("SQL from pieces", "q = 'DELETE FROM %s' % table"),
    ("SQL from pieces", "q = 'SELECT {}'.format(column)"),
    ("locators in one place", "x = f'noetl://tenant/{tenant}'"),
    ("locators in one place", "x = uri.startswith('noetl://')"),
    ("locators in one place", "x = uri == b'NOETL://'"),
    ("no star imports", "from noetl.core.errors import *"),
    ("telling names", "class LeaseManager: ..."),
]


@pytest.mark.parametrize(("rule", "text"), BAD)
def test_a_banned_use_is_found(rule: str, text: str) -> None:
    assert len(RULES[rule](module(text))) == 1


GOOD: list[tuple[str, str]] = [
    ("clock and chance", "from datetime import UTC, datetime\nx = datetime.fromtimestamp(1, UTC)"),
    ("clock and chance", "import time\nx = time.monotonic()"),
    ("clock and chance", "def f(secrets, clock): return secrets.get(clock.time())"),
    ("environment", "import os\nx = os.getpid()"),
    ("safe YAML", "import yaml\nx = yaml.load(text, Loader=yaml.SafeLoader)"),
    ("safe YAML", "import yaml\nx = yaml.safe_load(text)"),
    ("no code from text", "x.eval('1')"),
    ("named errors", "try: x\nexcept (ValueError, OSError): pass"),
    (
        "owned tasks",
        "import asyncio\nasync def f():\n  async with asyncio.TaskGroup() as g:\n    g.create_task(h())",
    ),
    ("owned tasks", "import asyncio\ndef f(group: asyncio.TaskGroup): group.create_task(h())"),
    (
        "owned tasks",
        "import asyncio\nclass A:\n  def __init__(self, group: asyncio.TaskGroup):\n    self._tasks = group\n"
        "  def f(self): self._tasks.create_task(h())",
    ),
    ("SQL in files", "def f():\n    '''SELECT is a word of this docstring.'''"),
    ("SQL in files", "x = 'with a name'\ny = 'select one of them'\nz = 'update the page'"),
    ("SQL from pieces", "x = f'selected {count} rows from {table}'"),
    ("locators in one place", "def f():\n    'Reads a `noetl://` name.'"),
    ("locators in one place", "x = 'noetl'"),
    ("telling names", "class Writer: ..."),
]


@pytest.mark.parametrize(("rule", "text"), GOOD)
def test_a_proper_use_is_accepted(rule: str, text: str) -> None:
    assert RULES[rule](module(text)) == []


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        ("clock and chance", "src/noetl/adapters/memory/clock.py", "import time\nx = time.time()"),
        ("environment", "src/noetl/settings.py", "import os\nx = os.environ"),
        ("no code from text", "src/noetl/tools/python/child/loop.py", "exec(code, {})"),
        ("no print", "src/noetl/cli/main.py", "print('x')"),
    ],
)
def test_a_rule_does_not_hold_at_the_edge_it_protects(rule: str, path: str, text: str) -> None:
    assert RULES[rule](module(text, path)) == []
    assert len(RULES[rule](module(text, "src/noetl/engine/sample.py"))) == 1


@pytest.mark.parametrize("name", ["utils", "helpers", "common", "manager", "misc", "row_helpers"])
def test_an_empty_name_is_found(name: str) -> None:
    assert len(rules.empty_names(module("", f"src/noetl/engine/{name}.py"))) == 1
    assert len(rules.empty_names(module("", f"src/noetl/{name}/ledger.py"))) == 1


def test_an_excuse_stands_for_a_place_or_for_a_file_and_for_nothing_else() -> None:
    found = rules.prints(module("def f(): print('x')"))
    place, file = "src/noetl/engine/sample.py::f", "src/noetl/engine/sample.py"
    assert len(unexcused(found, {})) == 1
    assert len(unexcused(found, {f"{file}::g": "reason"})) == 1
    assert unexcused(found, {place: "reason"}) == unexcused(found, {file: "reason"}) == []
    assert stale(found, {place: "reason", file: "reason"}) == []
    assert stale(found, {f"{file}::g": "reason", place: ""}) == [f"{file}::g", place]


def test_a_second_template_environment_is_found_also_through_a_derived_class() -> None:
    home = module(
        "from jinja2.sandbox import ImmutableSandboxedEnvironment as Base\nclass Ours(Base): ...\nx = Ours()",
        "src/noetl/core/expression.py",
    )
    second = module("from noetl.core.expression import Ours\nx = Ours()", "src/noetl/engine/render.py")
    third = module("import jinja2\nx = jinja2.Template('')", "src/noetl/tools/noop.py")
    assert len(rules.template_environments([home])) == 1
    assert len(rules.template_environments([home, second, third])) == 3


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE noetl.event SET meta = $1",
        "delete from only noetl.event",
        "TRUNCATE noetl.event",
        "CREATE TRIGGER t AFTER INSERT ON noetl.event",
        "INSERT INTO noetl.payload VALUES ($1) ON CONFLICT DO NOTHING",
        "SELECT * FROM noetl.event",
        "CREATE TABLE noetl.event_rest PARTITION OF noetl.event DEFAULT",
    ],
)
def test_a_forbidden_statement_is_found(text: str) -> None:
    assert len(statements(text, "x.sql")) == 1


def test_comments_and_other_tables_are_no_forbidden_statement() -> None:
    text = "-- UPDATE noetl.event would be wrong\nUPDATE noetl.event_cursor SET a = 1;\n/* CREATE TRIGGER */"
    assert statements(text, "x.sql") == []
    assert statements("INSERT INTO noetl.payload VALUES ($1) ON CONFLICT (digest) DO NOTHING", "x.sql") == []
