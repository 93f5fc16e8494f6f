"""Which tests run in one process, and in which order.

A file is never split.  Files that share something dear are one group, for each process that runs one of them would make
its own: a JVM with a Spark session, a Spark driver, or the world of the language's tests.  And what takes long begins
first: a slow file that begins last keeps one processor busy while the others have nothing to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import pytest

# The first pattern that fits a file says where it belongs; files that fit none stand alone.
GROUPS: Mapping[str, Sequence[str]] = {
    "spark drivers": (
        "tests/language/*",
        "tests/integration/test_spark_drivers.py",
        "tests/integration/test_spark_own_sources.py",
        "tests/integration/test_spark_playbooks.py",
    ),
    "spark session": (
        "tests/integration/test_source_credentials.py",
        "tests/integration/test_spark_events.py",
        "tests/integration/test_spark_http*.py",
        "tests/integration/test_spark_job*.py",
        "tests/integration/test_spark_postgres*.py",
        "tests/integration/test_spark_runtime.py",
        "tests/integration/test_spark_source*.py",
        "tests/integration/test_spark_types.py",
    ),
}

# In this order, then everything else.  Only what takes many seconds has to be named, and a wrong order costs only time.
FIRST = (
    *GROUPS,
    "tests/e2e/test_shapes.py",
    "tests/integration/test_embedded_postgres.py",
    "tests/e2e/test_documents.py",
    "tests/integration/test_notebook.py",
    "tests/fault/*",
    "tests/e2e/*",
    "tests/simulation/*",
    "tests/architecture/*",
    "tests/contract/*",
    "tests/integration/*",
)


def scope_of(nodeid: str) -> str:
    """The group of a test, or its file."""
    file = nodeid.split("::", 1)[0]
    for name, patterns in GROUPS.items():
        if _fits(file, patterns):
            return name
    return file


def rank_of(scope: str) -> int:
    """Smaller is earlier."""
    return next((rank for rank, one in enumerate(FIRST) if scope == one or _fits(scope, [one])), len(FIRST))


def slowest_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """All tests of a scope stay together and in their own order."""
    ranked: dict[str, list[pytest.Item]] = {}
    for item in items:
        ranked.setdefault(scope_of(item.nodeid), []).append(item)
    return [item for scope in sorted(ranked, key=rank_of) for item in ranked[scope]]


def _fits(file: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(file, pattern) for pattern in patterns)
