"""`noetl doctor`: what is wrong, where, what to do; with `--fix` what can be done is done."""

from __future__ import annotations

import argparse
import json
from typing import Any

from noetl.cli.attach import attach
from noetl.cli.client import Refused
from noetl.cli.text import fail, out
from noetl.core.errors import SchemaOutdated
from noetl.engine.doctor.surroundings import migration_pending
from noetl.settings import Settings


def doctor(arguments: argparse.Namespace, settings: Settings) -> int:
    """1 when findings are left."""
    try:
        # Who fixes must own what is broken, so an embedded host resumes everything for as long as that takes.
        attachment = attach(settings, resume=arguments.fix)
    except SchemaOutdated as error:
        return _print({"findings": [migration_pending(str(error)).to_json()]}, is_json=arguments.json)
    try:
        method, path = ("POST", "/api/doctor/fix") if arguments.fix else ("GET", "/api/doctor")
        answer = attachment.client.request(method, path)
    except Refused as refused:
        fail(str(refused))
        return 2
    finally:
        attachment.leave()
    return _print(answer, is_json=arguments.json)


def _print(answer: dict[str, Any], *, is_json: bool) -> int:
    left: list[dict[str, Any]] = answer["findings"]
    if is_json:
        out(json.dumps({"fixed": answer.get("fixed", []), "findings": left}))
        return 1 if left else 0
    for finding in answer.get("fixed", []):
        out(f"fixed    {finding['code']}  {finding['where']}: {finding['what']}")
    for finding in left:
        out(f"finding  {finding['code']}  {finding['where']}: {finding['what']}")
        out(f"         {'can be fixed; ' if finding['can_fix'] else ''}{finding['do']}")
    if not left:
        out("nothing is wrong" if not answer.get("fixed") else "nothing is wrong any more")
    return 1 if left else 0
