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


def print_problem(body: dict[str, Any], *, is_json: bool) -> None:
    """What a host refused: every finding with its place."""
    problems = body.get("problems") or []
    if is_json:
        error = {"code": body.get("code"), "message": body.get("detail"), "problems": problems}
        print(json.dumps({"execution_id": None, "status": "REFUSED", "result": None, "error": error}))
    if not problems:
        fail(str(body.get("detail", body)))
    for problem in problems:
        place = ":".join(str(problem[key]) for key in ("file", "line", "column") if problem.get(key) is not None)
        fail(f"{place}: {problem['message']}" if place else problem["message"])
