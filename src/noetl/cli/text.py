"""Writing to the terminal: results to standard output, everything about them to standard error."""

from __future__ import annotations

import json
import sys
from typing import Any


def note(message: str) -> None:
    print(message, file=sys.stderr)


def fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)


def out(message: str = "") -> None:
    print(message)


def place_of(finding: dict[str, Any], file: str | None = None) -> str:
    """Where a finding is, `file:line:column: ` as far as it is known."""
    named = {**finding, "file": finding.get("file") or file}
    place = ":".join(str(named[key]) for key in ("file", "line", "column") if named.get(key) is not None)
    return f"{place}: " if place else ""


def print_warnings(warnings: list[dict[str, Any]], file: str | None = None) -> None:
    """What was said about a playbook; warnings that were recorded know no file, and get one to be shown with."""
    for warning in warnings:
        note(f"warning: {place_of(warning, file)}{warning['message']}")


def print_problem(body: dict[str, Any], *, is_json: bool) -> None:
    """What a host refused: every finding with its place."""
    problems = body.get("problems") or []
    if is_json:
        error = {"code": body.get("code"), "message": body.get("detail"), "problems": problems}
        print(json.dumps({"execution_id": None, "status": "REFUSED", "result": None, "error": error}))
    if not problems:
        fail(str(body.get("detail", body)))
    for problem in problems:
        fail(f"{place_of(problem)}{problem['message']}")
