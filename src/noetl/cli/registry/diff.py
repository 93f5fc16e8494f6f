"""`noetl catalog diff`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from noetl.cli.client import Client
from noetl.cli.registry.asking import within
from noetl.cli.registry.files import read_playbook, read_scripts
from noetl.cli.text import fail, note, out

PATH = "/api/catalog"


def diff(arguments: argparse.Namespace, client: Client) -> int:
    """Compared here, so that a file that nobody has registered can be one of the sides."""
    from noetl.core.playbook.difference import Edition, difference  # noqa: PLC0415 - no other verb compares

    new = _of_file(arguments) if arguments.file else _of_version(client, arguments.path, arguments.new)
    if new is None:
        return 2
    before = arguments.old
    if before is None and not arguments.file:
        before = new["version"] - 1
        if before < 1:
            fail(f"{arguments.path!r} has no version before version 1: nothing to compare it with")
            return 2
    old = _of_version(client, arguments.path, before)
    found = difference(*(Edition(label=one["label"], text=one["text"], scripts=one["scripts"]) for one in (old, new)))
    if arguments.json:
        changes = [
            {"change": one.change, "what": one.what, "name": one.name, "detail": one.detail} for one in found.changes
        ]
        sides = {"from": old["label"], "to": new["label"]}
        out(json.dumps({"path": arguments.path, **sides, "changes": changes, "text": found.text}))
    else:
        for change in found.changes:
            out(str(change))
        if found.text:
            out("")
            out(found.text)
        else:
            note(f"{old['label']} and {new['label']} are the same")
    return 1 if arguments.exit_code and found.text else 0


def _of_version(client: Client, path: str, version: int | None) -> dict[str, Any]:
    answer = client.request("GET", within(PATH, path), version=version, with_scripts="true")
    return {
        "version": answer["version"],
        "label": f"{path} version {answer['version']}",
        "text": answer["playbook"],
        "scripts": {uri: script["text"] for uri, script in answer["scripts"].items()},
    }


def _of_file(arguments: argparse.Namespace) -> dict[str, Any] | None:
    text = read_playbook(arguments.file)
    scripts = read_scripts(arguments.file, text) if text is not None else None
    if text is None or scripts is None:
        return None
    return {"label": arguments.file, "text": text, "scripts": scripts}
