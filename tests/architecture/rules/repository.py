"""Rules about every file of the repository, whatever its language."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from .source import Finding

SKIPPED = frozenset({"__pycache__", "build", "dist", "htmlcov", "node_modules"})
HIDDEN_BUT_OURS = frozenset({".ci", ".github"})
LOCKS = frozenset({*(f"{tool}.lock" for tool in ("uv", "poetry", "pdm", "pipfile")), "package-lock.json"})
DECISION_LINES_MAX = 40
DECISION_HEADINGS = ("## Context", "## Decision", "## Consequences", "## How we would know it was wrong")

# Patterns are written so that this file does not match them.
UNWANTED: tuple[tuple[str, re.Pattern[str], str], ...] = (
    (
        "machine paths",
        re.compile(
            r"(?:(?<![\w.~}\]/-])|(?<=file://))/(?:root|work|home/\w+|Users/\w+)(?=/|$|[\s\"'`,;:)])",
            re.MULTILINE,
        ),
        "a path of somebody's machine",
    ),
    (
        "registry hosts",
        re.compile(
            r"\b(?:pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|docker\.io|ghcr\.io|gcr\.io|quay\.io"
            r"|jfrog\.io|anaconda\.org|repo\.maven)\b|--(?:extra-)?index-url\b",
            re.IGNORECASE,
        ),
        "a download address",
    ),
    (
        "lock files",
        re.compile(r"\b(?:uv|poetry|pdm)\.lock\b"),
        "a lock file with download addresses; versions are in constraints.txt",
    ),
    (
        "history",
        re.compile(
            r"\b(?:issue|ticket|pull request|PR)\s*(?:#\s*|no\.?\s*)\d+|\bissue\s+(?:#|\d)"
            r"|\bsession[- ](?:log|notes)\b|\bdiar(?:y|ies)\b",
            re.IGNORECASE,
        ),
        "history belongs in the commit, not in the text",
    ),
)


def files(root: Path) -> Iterator[Path]:
    """Files of the repository: no hidden folders but ours, nothing generated."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if name not in SKIPPED
            and not name.endswith(".egg-info")
            and (not name.startswith(".") or name in HIDDEN_BUT_OURS)
        )
        for name in sorted(names):
            if name != ".coverage":
                yield Path(folder) / name


def unwanted_text(text: str, path: str) -> list[Finding]:
    return [
        Finding(rule=rule, key=path, line=text.count("\n", 0, match.start()) + 1, message=message)
        for rule, pattern, message in UNWANTED
        for match in pattern.finditer(text)
    ]


def unwanted_files(paths: list[str]) -> list[Finding]:
    return [
        Finding(rule="lock files", key=path, line=1, message="a lock file with download addresses")
        for path in paths
        if path.rpartition("/")[2].lower() in LOCKS
    ]


# --- constraints.txt -------------------------------------------------------------------------------------

PIN = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*==[0-9][0-9a-z.!+]*")
REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    return dict(line.split("==", 1) for line in text.splitlines() if "==" in line)


def bad_pins(text: str, requirements: list[str]) -> list[str]:
    """Lines that are more than a name and a version, names out of order, requirements without a pin."""
    lines = text.splitlines()
    found = [f"not name==version: {line!r}" for line in lines if not PIN.fullmatch(line)]
    names = [line.split("==")[0] for line in lines]
    if names != sorted(set(names)):
        found.append("names are not sorted, or one is there twice")
    for requirement in requirements:
        match = REQUIREMENT.match(requirement)
        if match is None or normal(match[1]) not in names:
            found.append(f"no pin for {requirement}")
    return found


# --- decisions -------------------------------------------------------------------------------------------

DECISION_NAME = re.compile(r"(\d{4})-[a-z0-9]+(?:-[a-z0-9]+)*\.md")


def bad_decisions(pages: dict[str, str]) -> list[str]:
    """Pages by file name: numbered without gaps or doubles, short, with the four headings."""
    found = [f"{name}: not NNNN-title.md" for name in pages if not DECISION_NAME.fullmatch(name)]
    numbers = sorted(int(match[1]) for match in map(DECISION_NAME.fullmatch, pages) if match)
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"numbers are not 1 to {len(numbers)}, each once: {numbers}")
    for name, text in pages.items():
        count = len(text.splitlines())
        if count > DECISION_LINES_MAX:
            found.append(f"{name}: {count} lines, at most {DECISION_LINES_MAX}")
        found += [f"{name}: no '{heading}'" for heading in DECISION_HEADINGS if heading not in text]
    return found
