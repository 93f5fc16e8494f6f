"""What must hold for every file of the repository, whatever its language."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.architecture.rules import repository as rules
from tests.architecture.rules.source import ROOT, Finding, expect_none, stale, unexcused

# path: reason
EXCUSED: dict[str, str] = {}


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    paths = list(rules.files(ROOT))
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    found = rules.unwanted_files(names)
    for path, name in zip(paths, names, strict=True):
        found += rules.unwanted_text(path.read_text(encoding="utf-8", errors="replace"), name)
    return found


def test_no_file_knows_a_machine_a_download_address_or_its_own_history(findings: list[Finding]) -> None:
    expect_none(unexcused(findings, EXCUSED))


def test_every_excuse_is_still_needed(findings: list[Finding]) -> None:
    expect_none(stale(findings, EXCUSED))


def test_constraints_pin_every_requirement_by_name_and_version_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    expect_none(rules.bad_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"), required))


def test_decisions_are_short_and_numbered_once() -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs/decisions").iterdir()}
    assert pages
    expect_none(rules.bad_decisions(pages))


def test_the_first_example_fits_on_a_page() -> None:
    assert len((ROOT / "examples/hello_world.yaml").read_text(encoding="utf-8").splitlines()) <= 45


# --- the rules can fail ----------------------------------------------------------------------------------

# Written in two pieces, so that this file does not break the rule it tests.
BAD = [
    "see /" + "root/data",
    "open('/" + "work/main/x')",
    "HOME=/" + "home/anna/.noetl",
    "file:///" + "root/x",
    "https://pypi" + ".org/simple",
    "image: docker" + ".io/library/postgres",
    "pip install --index" + "-url x",
    "the file uv" + ".lock",
    "fixed in issue " + "#29",
    "see PR " + "#7",
    "from the session" + "-log",
    "a dia" + "ry of the work",
]


@pytest.mark.parametrize("text", BAD)
def test_an_unwanted_text_is_found(text: str) -> None:
    assert len(rules.unwanted_text(f"first line\n{text}\n", "x.md")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "GET /api/work/1",
        "https://example.org/root/x",
        "./work/x",
        "noetl://tenant/a/org/b",
        "one issue of many",
    ],
)
def test_an_ordinary_text_is_accepted(text: str) -> None:
    assert rules.unwanted_text(text, "x.md") == []


def test_an_unwanted_file_is_found() -> None:
    assert len(rules.unwanted_files(["a/uv" + ".lock", "constraints.txt"])) == 1


@pytest.mark.parametrize(
    ("text", "requirements"),
    [
        ("rich>=15\n", []),
        ("rich==15.0.0 --hash=sha256:00\n", []),
        ("rich @ https://example.org/rich.whl\n", []),
        ("./rich\n", []),
        ("ruff==1.0\nrich==15.0.0\n", []),
        ("rich==15.0.0\nrich==15.0.1\n", []),
        ("rich==15.0.0\n", ["asyncpg>=0.32"]),
    ],
)
def test_a_bad_pin_is_found(text: str, requirements: list[str]) -> None:
    assert rules.bad_pins(text, requirements)


def test_a_good_pin_is_accepted() -> None:
    assert rules.bad_pins("pytest==9.2.0\ntypes-pyyaml==6.0.12\n", ["types-PyYAML", "pytest>=9"]) == []


def test_a_bad_decision_page_is_found() -> None:
    page = "\n".join(rules.DECISION_HEADINGS)
    assert rules.bad_decisions({"0001-a.md": page, "0002-b.md": page}) == []
    assert rules.bad_decisions({"0001-a.md": page, "0001-b.md": page})
    assert rules.bad_decisions({"0002-a.md": page})
    assert rules.bad_decisions({"README.md": page})
    assert rules.bad_decisions({"0001-a.md": page + "\n" * 40})
    assert rules.bad_decisions({"0001-a.md": "## Context"})


def test_the_walk_skips_what_is_hidden_or_generated(tmp_path: Path) -> None:
    for name in ["a.md", ".venv/b.py", ".ci/run", "x.egg-info/c", "src/__pycache__/d.pyc", "src/e.py"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in rules.files(tmp_path)]
    assert sorted(found) == [".ci/run", "a.md", "src/e.py"]
