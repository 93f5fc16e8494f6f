"""`noetl catalog register|list|show|diff`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from noetl.cli.client import Client, Refused
from noetl.cli.registry.asking import Verbs, add_verb, group, reaches_servers, within
from noetl.cli.registry.diff import diff
from noetl.cli.registry.files import playbook_files, read_playbook, read_scripts
from noetl.cli.text import fail, note, out, print_problem, print_warnings
from noetl.core.limits import CATALOG_ROWS_MAX

PATH = "/api/catalog"
HTTP_UNPROCESSABLE = 422


def add_verbs(verbs: Verbs[argparse.ArgumentParser]) -> None:
    own = group(verbs, "catalog", "register playbooks and look them up")

    one = reaches_servers(add_verb(own, "register", register, "register playbooks under their paths"))
    one.add_argument("files", nargs="+", metavar="PATH", help="a playbook file, or a folder with playbooks")
    one.add_argument("--check", action="store_true", help="say what would be said, and register nothing")
    one.add_argument("--json", action="store_true", help="one JSON object per playbook")

    one = reaches_servers(add_verb(own, "list", list_playbooks, "list the newest version of every playbook"))
    one.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="only paths that begin with it")
    one.add_argument("--limit", type=int, default=CATALOG_ROWS_MAX)
    one.add_argument("--json", action="store_true")

    one = reaches_servers(add_verb(own, "show", show, "print a playbook"))
    one.add_argument("path", metavar="PATH")
    one.add_argument("--version", type=int, metavar="N", help="that version, not the newest")
    one.add_argument("--script", metavar="SCRIPT", help="print this script of the playbook instead")
    one.add_argument("--json", action="store_true", help="with its versions, as one JSON object")

    one = reaches_servers(add_verb(own, "diff", diff, "show what changed between two versions"))
    one.add_argument("path", metavar="PATH")
    one.add_argument("--from", type=int, dest="old", metavar="N", help="default: the version before the other one")
    other = one.add_mutually_exclusive_group()
    other.add_argument("--to", type=int, dest="new", metavar="N", help="default: the newest version")
    other.add_argument("--file", metavar="FILE", help="compare with a file that is not registered")
    one.add_argument("--exit-code", action="store_true", help="exit with 1 when there is a difference")
    one.add_argument("--json", action="store_true")


# --- register --------------------------------------------------------------------------------------------


def register(arguments: argparse.Namespace, client: Client) -> int:
    """Every file is tried; 1 when one of them could not be registered."""
    found = playbook_files(arguments.files)
    if found is None:
        return 2
    if not found.files:
        fail("there is no playbook: a playbook is a YAML file with `apiVersion: noetl.io/…`")
        return 2
    registering = _Registering(client, check=arguments.check, is_json=arguments.json)
    for file in found.files:
        registering.take(file)
    registering.settle()
    if len(found.files) > 1 or found.passed_over or found.unreadable:
        note(registering.summary(found.passed_over, found.unreadable))
    return 1 if registering.failed or found.unreadable else 0


class _Registering:
    """Files one after the other, and what is said about all of them."""

    def __init__(self, client: Client, *, check: bool, is_json: bool) -> None:
        self._client = client
        self._check = check
        self._is_json = is_json
        self._counts = {"registered": 0, "unchanged": 0, "valid": 0}
        self._warnings = 0
        self._paths: dict[str, Path] = {}
        # What names playbooks that were not there: they may come with a later file.
        self._waiting: list[tuple[Path, dict[str, Any]]] = []
        self.failed = 0

    def take(self, file: Path) -> None:
        text = read_playbook(str(file))
        scripts = read_scripts(str(file), text) if text is not None else None
        if text is None or scripts is None:
            self.failed += 1
            return
        body = {"playbook": text, "file": str(file), "scripts": scripts, "check": self._check}
        answer = self._ask(file, body)
        if answer is None:
            self.failed += 1
            return
        other = self._paths.setdefault(answer["path"], file)
        if other != file:
            note(f"warning: {file}: has the path {answer['path']!r} of {other} too: both are versions of one playbook")
            self._warnings += 1
        if any(warning["code"] == "missing_playbook" for warning in answer["warnings"]):
            self._waiting.append((file, body))
            self._count(answer)
            self._tell(answer, is_waiting=True)
        else:
            self._count(answer)
            self._tell(answer)

    def settle(self) -> None:
        """Ask again about files that named others: the same content is the same version, with what is missing now."""
        for file, body in self._waiting:
            answer = self._ask(file, {**body, "beside": sorted(self._paths)} if self._check else body)
            if answer is not None and self._is_json:
                out(json.dumps({"file": str(file), **answer}))
            elif answer is not None:
                missing = [one for one in answer["warnings"] if one["code"] == "missing_playbook"]
                print_warnings(missing)
                self._warnings += len(missing)

    def summary(self, passed_over: int, unreadable: int) -> str:
        parts = [f"{count} {word}" for word, count in self._counts.items() if count]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if unreadable:
            parts.append(f"{unreadable} could not be looked at")
        if self._warnings:
            parts.append(f"{self._warnings} warning{'s' if self._warnings > 1 else ''}")
        others = f" ({passed_over} other YAML file{'s' if passed_over > 1 else ''} passed over)" if passed_over else ""
        return ", ".join(parts) + others

    def _ask(self, file: Path, body: dict[str, Any]) -> dict[str, Any] | None:
        try:
            return self._client.request("POST", PATH, body=body)
        except Refused as refused:
            if refused.status != HTTP_UNPROCESSABLE:
                raise
            if self._is_json:
                problems = refused.body.get("problems") or []
                error = {"code": refused.body.get("code"), "message": refused.body.get("detail"), "problems": problems}
                out(json.dumps({"file": str(file), "error": error}))
            print_problem(refused.body, is_json=False)
            return None

    def _count(self, answer: dict[str, Any]) -> None:
        word = "valid" if self._check else "registered" if answer["created"] else "unchanged"
        self._counts[word] += 1

    def _tell(self, answer: dict[str, Any], *, is_waiting: bool = False) -> None:
        """The line of a file and its warnings, but not those that a later file may settle."""
        warnings = [one for one in answer["warnings"] if not is_waiting or one["code"] != "missing_playbook"]
        print_warnings(warnings)
        self._warnings += len(warnings)
        if not self._is_json:
            out(_said(answer))
        elif not is_waiting:
            out(json.dumps(answer))


def _said(answer: dict[str, Any]) -> str:
    if answer["version"] is None:
        return f"{'valid':<10} {answer['path']}"
    what = "registered" if answer["created"] else "unchanged"
    newer = f"; the newest is version {answer['newest']}" if answer["newest"] != answer["version"] else ""
    return f"{what:<10} {answer['path']} version {answer['version']}{newer}"


# --- list and show ---------------------------------------------------------------------------------------


def list_playbooks(arguments: argparse.Namespace, client: Client) -> int:
    rows = client.request("GET", PATH, prefix=arguments.prefix or None, limit=arguments.limit)["playbooks"]
    if arguments.json:
        out(json.dumps(rows))
        return 0
    if not rows:
        note("no playbooks here yet: noetl catalog register PATH")
    for row in rows:
        out(f"{row['path']:<40} version {row['version']:<4} {row['created_at'][:19]}Z  {row['digest'][:12]}")
    return 0


def show(arguments: argparse.Namespace, client: Client) -> int:
    wanted = arguments.script
    answer = client.request(
        "GET",
        within(PATH, arguments.path),
        version=arguments.version,
        with_scripts="true" if wanted or arguments.json else None,
    )
    if arguments.json:
        out(json.dumps(answer))
        return 0
    if wanted is not None and wanted not in answer["scripts"]:
        known = ", ".join(answer["scripts"]) or "none"
        fail(f"version {answer['version']} of {answer['path']!r} has no script {wanted!r}: its scripts are {known}")
        return 2
    newest, id_ = answer["versions"][0]["version"], answer["catalog_id"]
    when, digest = answer["created_at"][:19], answer["digest"][:12]
    note(f"version {answer['version']} of {newest}, registered {when}Z, {digest}, catalog_id {id_}")
    for uri, script in answer["scripts"].items():
        note(f"script {uri}, {script['bytes']:,} bytes, {script['sha256'][:12]}")
    print_warnings(answer["warnings"], answer["path"])
    text = answer["playbook"] if wanted is None else answer["scripts"][wanted]["text"]
    out(text.removesuffix("\n"))
    return 0
