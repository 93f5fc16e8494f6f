"""A plugin for the tests that run over a copy of the product: it tells which product that was and how tests failed.

With the address of a server they use that one: every guard with a server of its own would take ten times as long."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Generator
from pathlib import Path
from traceback import walk_tb
from typing import Any

import pytest

REPORT = "GUARDS_REPORT"
SERVER = "GUARDS_SERVER"
SAYS_CHARS_MAX = 300
Reporting = Generator[None, pytest.TestReport, pytest.TestReport]
_TESTS = str(Path(__file__).parents[2])
_failed: list[dict[str, str | bool]] = []
_passed: list[str] = []


def _borrow(known: dict[str, Any]) -> None:
    """The server of whoever started us, and names of databases that nobody else uses there."""
    from noetl.adapters.postgres.embedded import EmbeddedPostgres, ServerAddress
    from tests.support import postgres

    home = Path(known["home"])
    address = ServerAddress(socket_dir=Path(known["socket_dir"]), port=known["port"], pid=known["pid"], adopted=True)
    server = postgres.RunningServer(postgres=EmbeddedPostgres(home), address=address, home=home)
    postgres.shared_server = lambda: server  # type: ignore[assignment]
    from tests.support import databases

    databases._numbers = itertools.count(os.getpid() * 10_000)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Reporting:
    report = yield
    if report.when == "call" and report.passed:
        _passed.append(item.nodeid)
    if call.excinfo is not None and report.failed:
        error = call.excinfo.value
        _failed.append(
            {
                "test": item.nodeid,
                "is_about_behaviour": report.when == "call" and is_about_behaviour(error),
                "says": says(error)[:SAYS_CHARS_MAX],
            }
        )
    return report


def says(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def is_about_behaviour(error: BaseException | None) -> bool:
    """Whether a test saw something that must not be.  A broken import or a statement that cannot run is no such thing,
    nor is an assertion of the product about itself."""
    if error is None:
        return False
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_about_behaviour, error.exceptions))
    if isinstance(error, pytest.fail.Exception):
        return True  # what had to be refused was not
    if not isinstance(error, AssertionError):
        return False
    return _raised_in(error).startswith(_TESTS) or is_about_behaviour(error.__cause__)


def _raised_in(error: BaseException) -> str:
    return [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)][-1]


def pytest_sessionfinish() -> None:
    import noetl

    told = {"package": noetl.__file__, "passed": _passed, "failed": _failed}
    Path(os.environ[REPORT]).write_text(json.dumps(told), "utf-8")


# Before any conftest: those import what would start another server.
if SERVER in os.environ:
    _borrow(json.loads(os.environ[SERVER]))
