"""`noetl retry`: run the failed items of an execution again, in a new one that begins with its state."""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Callable
from typing import Any

from noetl.cli.attach import Attachment, attach
from noetl.cli.client import Refused
from noetl.cli.registry.asking import within
from noetl.cli.run import Stay
from noetl.cli.text import fail, out, print_problem
from noetl.settings import Settings


def retry(arguments: argparse.Namespace, settings: Settings) -> int:
    if not arguments.failed_items:
        fail("say what to run again: noetl retry ID --failed-items")
        return 2
    body: dict[str, Any] = {"items": "failed"}
    if arguments.step is not None:
        body["step"] = arguments.step
    path = f"{within('/api/executions', arguments.execution_id)}/retry"
    # The key makes a repeated request the same execution when the host was lost with the answer.
    key = secrets.token_hex(16)

    def submit(attachment: Attachment) -> dict[str, Any]:
        return attachment.client.request("POST", path, body=body, idempotency_key=key)

    if arguments.detach:
        return _detached(settings, submit, is_json=arguments.json)
    stay = Stay(settings, is_json=arguments.json)
    try:
        return stay.follow(submit, body, name=f"retry of {arguments.execution_id}")
    except KeyboardInterrupt:
        stay.say_how_to_go_on()
        return 130
    finally:
        stay.leave()


def _detached(settings: Settings, submit: Callable[[Attachment], dict[str, Any]], *, is_json: bool) -> int:
    attachment = attach(settings)
    try:
        started = submit(attachment)
    except Refused as refused:
        print_problem(refused.body, is_json=is_json)
        return 2
    else:
        out(json.dumps(started) if is_json else started["execution_id"])
        return 0
    finally:
        attachment.leave()
