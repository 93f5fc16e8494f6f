"""The schedule of the tests names files that exist, and puts together what shares a JVM."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.support.schedule import FIRST, GROUPS, rank_of, scope_of

ROOT = Path(__file__).parents[2]
FILES = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))}
# What a file imports when it uses the session, or the driver, that all tests of a process share.
SHARED = {
    "spark session": r"\b(shared_session|shared_open_session)\b|from tests\.support\.(spark_jobs|spark_sources) import",
    "spark drivers": r"\b(shared_compute|running_world)\b",
}


@pytest.mark.parametrize("pattern", [pattern for patterns in (*GROUPS.values(), FIRST) for pattern in patterns])
def test_every_pattern_fits_something(pattern: str) -> None:
    assert pattern in GROUPS or any(fnmatchcase(file, pattern) for file in FILES)


@pytest.mark.parametrize("group", SHARED)
def test_files_that_share_a_jvm_are_in_one_group(group: str) -> None:
    own = str(Path(__file__).relative_to(ROOT))
    sharing = [file for file, text in FILES.items() if file != own and re.search(SHARED[group], text)]
    assert sharing
    assert [file for file in sharing if scope_of(file) not in SHARED] == []


def test_a_test_has_the_scope_of_its_file_and_groups_come_first() -> None:
    assert scope_of("tests/unit/test_ids.py::test_x[a::b]") == "tests/unit/test_ids.py"
    assert scope_of("tests/integration/test_spark_job_code.py::test_x") == "spark session"
    ranks = [rank_of(scope) for scope in ("spark session", "tests/e2e/test_shapes.py", "tests/e2e/test_gc.py")]
    assert ranks == sorted(ranks)
    assert ranks[-1] < rank_of("tests/unit/test_ids.py")
