"""`noetl items`: what became of each item of a loop."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from noetl.cli.client import Client
from noetl.cli.registry.asking import Verbs, asking, reaches_servers, within
from noetl.cli.text import note, out

_PAGE_ITEMS = 1_000
_ERROR_CHARS = 100


def add_verb(verbs: Verbs[argparse.ArgumentParser]) -> None:
    text = "show what became of each item of a loop"
    one = reaches_servers(verbs.add_parser("items", help=text, description=text))
    one.set_defaults(command=asking(_items))
    one.add_argument("execution_id", metavar="ID")
    one.add_argument("step", metavar="STEP")
    one.add_argument("--failed", action="store_true", help="only those that failed or never ran")
    one.add_argument("--index", type=int, metavar="N", help="one item, with what went in and what came out")
    one.add_argument("--first", type=int, metavar="N", help="from this index on")
    one.add_argument("--limit", type=int, default=100, metavar="N", help="at most so many (100); 0 for all")
    one.add_argument("--run", type=int, metavar="N", help="that run of the step, not the last one")
    one.add_argument("--json", action="store_true", help="one JSON object per line")


def _items(arguments: argparse.Namespace, client: Client) -> int:
    path = within(f"{within('/api/executions', arguments.execution_id)}/items", arguments.step)
    if arguments.index is not None:
        view = client.request("GET", path, index=arguments.index, run=arguments.run)
        out(json.dumps(view["items"][0]) if arguments.json else "\n".join(_whole(view["items"][0])))
        return 0
    shown, pages = 0, _pages(client, path, arguments)
    for view in pages:
        if not shown and not arguments.json:
            out(_head(view))
        for item in view["items"]:
            out(json.dumps(item) if arguments.json else _line(item))
        shown += len(view["items"])
        if arguments.limit and shown >= arguments.limit and view["next_index"] is not None:
            note(f"there is more: --first {view['next_index']}, or --limit 0 for all")
        if arguments.failed and not arguments.json and view["next_index"] is None and view["dead_letter"]:
            note(f"dead letter: {view['dead_letter']['uri']}")
    return 0


def _pages(client: Client, path: str, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    first, left = arguments.first, arguments.limit or None
    while True:
        view = client.request(
            "GET",
            path,
            first=first,
            limit=_PAGE_ITEMS if left is None else min(left, _PAGE_ITEMS),
            failed="true" if arguments.failed else None,
            run=arguments.run,
        )
        yield view
        first = view["next_index"]
        left = None if left is None else left - len(view["items"])
        if first is None or left == 0:
            return


def _head(view: dict[str, Any]) -> str:
    counts = f"{view['done']:,} of {view['total']:,} done, {view['failed']:,} failed"
    return f"{view['step']}#{view['run']}  {view['kind']}  {counts}, {view['frames']:,} frames"


def _line(item: dict[str, Any]) -> str:
    where = f"  {item['frame_id']} row {item['row']}, attempt {item['attempt']}" if item["frame_id"] else ""
    if item["origin"]:
        where = f"  kept from {item['origin']}, frame {item['frame_id']}"
    return f"{item['index']:>8}  {item['status']:<8}{where}{_error(item)}"


def _error(item: dict[str, Any]) -> str:
    error = item["error"]
    if not error:
        return ""
    message = " ".join(str(error.get("message", "")).split())
    short = message if len(message) <= _ERROR_CHARS else f"{message[: _ERROR_CHARS - 1]}…"
    return f"  {error.get('kind', 'error')}: {short}"


def _whole(item: dict[str, Any]) -> Iterator[str]:
    yield _line(item).strip()
    yield f"input   {json.dumps(item['input'], ensure_ascii=False)}"
    yield f"result  {json.dumps(item['result'], ensure_ascii=False)}"
