"""`noetl limits`: the shared limits that are in use, and who waits."""

from __future__ import annotations

import argparse
import json
from typing import Any

from noetl.cli.attach import attach
from noetl.cli.client import Refused
from noetl.cli.text import fail, note, out
from noetl.core.permits.rates import Allowance
from noetl.settings import Settings


def limits(arguments: argparse.Namespace, settings: Settings) -> int:
    attachment = attach(settings, resume=False)
    try:
        found: list[dict[str, Any]] = attachment.client.request("GET", "/api/limits")["limits"]
    except Refused as refused:
        fail(str(refused))
        return 2
    finally:
        attachment.leave()
    if arguments.json:
        out(json.dumps({"limits": found}))
        return 0
    if not found:
        note("no limit is in use: they are shown while executions use them")
    for one in found:
        allowed = Allowance(rate=one["rate"], concurrency=one["concurrency"])
        out(f"{one['name']}  {allowed}: {one['in_use']:,} in use, {one['waiting']:,} waiting")
        for user in one["executions"]:
            out(f"  {user['execution_id']:<20} {user['in_use']:>6,} in use {user['waiting']:>8,} waiting")
    return 0
