"""`noetl catalog register|list|show`."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from noetl.cli.client import Client, Refused
from noetl.cli.registry.asking import Verbs, add_verb, group, within
from noetl.cli.run import read_playbook
from noetl.cli.text import fail, note, out, print_problem
from noetl.core.limits import CATALOG_ROWS_MAX

PATH = "/api/catalog"
HTTP_UNPROCESSABLE = 422
# What tells a playbook from the other YAML files of a folder.
_PLAYBOOK = re.compile(r"^[\"']?apiVersion[\"']?\s*:\s*[\"']?noetl\.io/", re.MULTILINE)


def add_verbs(verbs: Verbs[argparse.ArgumentParser]) -> None:
    own = group(verbs, "catalog", "register playbooks and look them up")

    one = add_verb(own, "register", register, "register playbooks under their paths")
    one.add_argument("files", nargs="+", metavar="PATH", help="a playbook file, or a folder with playbooks")
    one.add_argument("--json", action="store_true", help="one JSON object per playbook")

    one = add_verb(own, "list", list_playbooks, "list the newest version of every playbook")
    one.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="only paths that begin with it")
    one.add_argument("--limit", type=int, default=CATALOG_ROWS_MAX)
    one.add_argument("--json", action="store_true")

    one = add_verb(own, "show", show, "print a playbook")
    one.add_argument("path", metavar="PATH")
    one.add_argument("--version", type=int, metavar="N", help="that version, not the newest")
    one.add_argument("--json", action="store_true", help="with its versions, as one JSON object")


def register(arguments: argparse.Namespace, client: Client) -> int:
    """Every file is tried; 1 when one of them could not be registered."""
    files = playbook_files(arguments.files)
    if files is None:
        return 2
    if not files:
        fail("there is no playbook: a playbook is a YAML file with `apiVersion: noetl.io/…`")
        return 2
    results = [_register(file, client, is_json=arguments.json) for file in files]
    return 0 if all(results) else 1


def _register(file: Path, client: Client, *, is_json: bool) -> bool:
    text = read_playbook(str(file))
    if text is None:
        return False
    try:
        answer = client.request("POST", PATH, body={"playbook": text, "file": str(file)})
    except Refused as refused:
        if refused.status != HTTP_UNPROCESSABLE:
            raise
        print_problem(refused.body, is_json=False)
        return False
    for warning in answer["warnings"]:
        note(f"warning: {warning['message']}")
    if is_json:
        out(json.dumps(answer))
    else:
        out(_said(answer))
    return True


def _said(answer: dict[str, Any]) -> str:
    what = "registered" if answer["created"] else "unchanged"
    newer = f"; the newest is version {answer['newest']}" if answer["newest"] != answer["version"] else ""
    return f"{what:<10} {answer['path']} version {answer['version']}{newer}"


def playbook_files(given: list[str]) -> list[Path] | None:
    """The files as given, and the playbooks in the folders; None after saying what is not there."""
    found: list[Path] = []
    for name in given:
        path = Path(name)
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.suffix in (".yaml", ".yml") and one.is_file())
            found += [one for one in inside if _is_playbook(one)]
        elif path.exists():
            found.append(path)
        else:
            fail(f"{name}: no such file or folder")
            return None
    return found


def _is_playbook(file: Path) -> bool:
    try:
        return _PLAYBOOK.search(file.read_text("utf-8", errors="replace")) is not None
    except OSError:
        return True  # reading it again will say what is wrong


def list_playbooks(arguments: argparse.Namespace, client: Client) -> int:
    rows = client.request("GET", PATH, prefix=arguments.prefix or None, limit=arguments.limit)["playbooks"]
    if arguments.json:
        out(json.dumps(rows))
        return 0
    if not rows:
        note("no playbooks here yet: noetl catalog register PATH")
    for row in rows:
        out(f"{row['path']:<40} version {row['version']:<4} {row['created_at'][:19]}Z  {row['sha256'][:12]}")
    return 0


def show(arguments: argparse.Namespace, client: Client) -> int:
    answer = client.request("GET", within(PATH, arguments.path), version=arguments.version)
    if arguments.json:
        out(json.dumps(answer))
        return 0
    newest = answer["versions"][0]["version"]
    note(f"version {answer['version']} of {newest}, registered {answer['created_at'][:19]}Z, {answer['sha256'][:12]}")
    out(answer["playbook"].removesuffix("\n"))
    return 0
