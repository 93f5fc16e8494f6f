"""`noetl cancel`: end an execution before its time, and see that it has ended."""

from __future__ import annotations

import argparse
import time

from noetl.cli.attach import attach
from noetl.cli.client import Refused
from noetl.cli.text import fail, note, out
from noetl.settings import Settings

# A little longer than what runs is given to confirm.
CONFIRMED_SECONDS_MAX = 20.0


def cancel(arguments: argparse.Namespace, settings: Settings) -> int:
    attachment = attach(settings)
    try:
        client, execution_id = attachment.client, arguments.execution_id
        client.request(
            "POST", f"/api/executions/{execution_id}/cancel", body={"reason": arguments.reason or "noetl cancel"}
        )
        note(f"execution {execution_id} is asked to end")
        deadline = time.monotonic() + CONFIRMED_SECONDS_MAX
        view = client.execution(execution_id, wait=True)
        while view["status"] == "RUNNING" and time.monotonic() < deadline:
            view = client.execution(execution_id, wait=True)
        out(f"{view['status']} {execution_id}")
        return 0 if view["status"] == "CANCELLED" else 1
    except Refused as refused:
        fail(str(refused))
        return 2
    finally:
        attachment.leave()
