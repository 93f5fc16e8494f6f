"""`noetl validate`: what registering would say.

Without a server only the files are looked at; a server also knows which credentials and playbooks are there."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from noetl.cli.attach import attach
from noetl.cli.client import Client, Refused
from noetl.cli.registry.files import playbook_files, read_playbook, read_scripts
from noetl.cli.text import fail, note, out, place_of, print_warnings
from noetl.core.errors import PlaybookInvalid, Problem
from noetl.core.playbook.compile import compile_playbook
from noetl.settings import Settings
from noetl.wiring.tools import tool_kinds

PATH = "/api/catalog"
HTTP_UNPROCESSABLE = 422


def validate(arguments: argparse.Namespace, settings: Settings) -> int:
    """Every file is looked at; 1 when one of them is not valid."""
    found = playbook_files(arguments.files)
    if found is None:
        return 2
    if not found.files:
        fail("there is no playbook: a playbook is a YAML file with `apiVersion: noetl.io/…`")
        return 2
    attachment = attach(settings) if settings.server_url is not None else None
    try:
        client = attachment.client if attachment is not None else None
        told = [_look(file, settings, client) for file in found.files]
    finally:
        if attachment is not None:
            attachment.leave()
    for one in told:
        _tell(one, is_json=arguments.json)
    bad = sum(not one["valid"] for one in told)
    if len(told) > 1:
        warnings = sum(len(one["warnings"]) for one in told)
        note(f"{len(told) - bad} valid, {bad} not valid, {warnings} warnings")
    if all(not one["valid"] and not one["problems"] for one in told):
        return 2  # nothing of it could even be read
    return 1 if bad or found.unreadable else 0


def _look(file: Path, settings: Settings, client: Client | None) -> dict[str, Any]:
    told: dict[str, Any] = {"file": str(file), "valid": False, "problems": [], "warnings": []}
    text = read_playbook(str(file))
    if text is None:
        return told
    scripts = read_scripts(str(file), text, *(settings.script_roots if client is None else ()))
    if scripts is None:
        return told
    told |= _compiled(file, text, scripts) if client is None else _asked(file, text, scripts, client)
    return told


def _compiled(file: Path, text: str, scripts: dict[str, str]) -> dict[str, Any]:
    try:
        compiled = compile_playbook(text, file=str(file), kinds=tool_kinds())
    except PlaybookInvalid as error:
        return {"problems": [_document(one) for one in error.problems]}
    missing = [
        use.problem("script_missing", f"script {use.name!r} cannot be found", file=str(file), field="script")
        for use in compiled.scripts
        if use.name not in scripts
    ]
    return {
        "valid": not missing,
        "path": compiled.playbook.path,
        "sha256": compiled.digest,
        "steps": len(compiled.steps),
        "problems": [_document(one) for one in missing],
        "warnings": [_document(one) for one in compiled.warnings],
    }


def _document(problem: Problem) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in ("code", "message", "file", "line", "column", "step", "field")}


def _asked(file: Path, text: str, scripts: dict[str, str], client: Client) -> dict[str, Any]:
    body = {"playbook": text, "file": str(file), "scripts": scripts, "check": True}
    try:
        answer = client.request("POST", PATH, body=body)
    except Refused as refused:
        if refused.status != HTTP_UNPROCESSABLE:
            raise
        return {"problems": refused.body.get("problems") or [{"code": "refused", "message": str(refused)}]}
    return {"valid": True, **{name: answer[name] for name in ("path", "sha256", "digest", "warnings")}}


def _tell(told: dict[str, Any], *, is_json: bool) -> None:
    for problem in told["problems"]:
        fail(f"{place_of(problem)}{problem['message']}")
    print_warnings(told["warnings"])
    if is_json:
        out(json.dumps(told))
    elif told["valid"]:
        steps = f", {told['steps']} steps" if "steps" in told else ""
        out(f"{told['file']}: valid{steps}, digest {told['sha256'][:12]}")
